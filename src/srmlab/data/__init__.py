"""Text → tokens → batches. The whole way in five names:

    manifest = prepare(PrepareConfig(source="sotu", out=Path("data/sotu"), tokenizer="bpe:512"))
    data     = open_tokens("data/sotu")               # verified: a short or damaged shard is refused
    batches  = Batches(data.train, context=256, batch_size=32, seed=0)
    batch    = batches.batch(step=0)                  # tokens and targets: a pure function of (seed, step)
    for batch in EvaluationBatches(data.val, context=256, batch_size=32): ...

What a user can cause is a `DataError`, one line that names the fix.
"""

from srmlab.data.batches import (
    Batch,
    Batches,
    EvaluationBatches,
    answers_only,
    as_batch,
    document_ids,
    num_windows,
)
from srmlab.data.corpora import Document, Source, open_source, source_fingerprint
from srmlab.data.errors import DataError
from srmlab.data.preparation import PrepareConfig, Progress, prepare
from srmlab.data.references import ReferenceLosses, reference_losses
from srmlab.data.shards import Manifest, TokenData, Tokens, open_tokens, read_manifest
from srmlab.data.tokenizers import (
    ANSWER,
    Tokenizer,
    byte_tokenizer,
    gpt2_tokenizer,
    load_tokenizer,
    make_tokenizer,
    train_bpe,
)

__all__ = [
    "ANSWER",
    "Batch",
    "Batches",
    "DataError",
    "Document",
    "EvaluationBatches",
    "Manifest",
    "PrepareConfig",
    "Progress",
    "ReferenceLosses",
    "Source",
    "TokenData",
    "Tokenizer",
    "Tokens",
    "answers_only",
    "as_batch",
    "byte_tokenizer",
    "document_ids",
    "gpt2_tokenizer",
    "load_tokenizer",
    "make_tokenizer",
    "num_windows",
    "open_source",
    "open_tokens",
    "prepare",
    "read_manifest",
    "reference_losses",
    "source_fingerprint",
    "train_bpe",
]
