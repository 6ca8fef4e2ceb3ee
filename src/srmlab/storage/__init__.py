"""What is on disk and how it is read: models, runs, their logs, and which model a file is of.

    srmlab.save(model, "exports/nano", tokenizer=tokenizer)
    model = srmlab.load("exports/nano")            # an export, also one for Hugging Face
    model = srmlab.load("runs/nano")               # the last good checkpoint of a run
    model = srmlab.load("runs/nano/checkpoints/step-600")

An export is `config.json`, `model.safetensors`, `tokenizer/` if there is one, and `SHA256SUMS` over all of
it; a checkpoint is the same with the optimizer beside it. Nothing is unpickled, and a changed bit is
noticed.
"""

from srmlab.storage.identity import model_fingerprint, model_mark
from srmlab.storage.metrics_file import iter_metrics, read_metrics
from srmlab.storage.run_directory import RunDirectory
from srmlab.storage.save_and_load import is_huggingface, load, load_tokenizer, save, saved_tokenizer
from srmlab.storage.weights import CheckpointError, weights_folder

__all__ = [
    "CheckpointError",
    "RunDirectory",
    "is_huggingface",
    "iter_metrics",
    "load",
    "load_tokenizer",
    "model_fingerprint",
    "model_mark",
    "read_metrics",
    "save",
    "saved_tokenizer",
    "weights_folder",
]
