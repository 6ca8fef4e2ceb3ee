"""Which model is this? A hash of its config and its weights, for what is stored about a model.

`model_fingerprint` sees every bit: an analysis that was cut short is continued only with the very same
weights. `model_mark` is the same in any precision: means and dictionaries that were measured in float32 also
serve the same model in bfloat16. Both are in files that were saved long ago, so neither may change.

One hash cannot serve both. The mark looks at a sample, so a store of results that went by it would keep
those of a model in which other weights were edited, and those of another precision; the fingerprint would
refuse every dictionary to a model cast to bfloat16. A third, of all weights rounded to bfloat16, would still
need these two to read what is on disk.

    >>> import srmlab, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> before = model_mark(model), model_fingerprint(model)
    >>> model = model.to(torch.bfloat16)
    >>> model_mark(model) == before[0], model_fingerprint(model) == before[1]
    (True, False)
"""

from __future__ import annotations

import hashlib
import json

import torch

from srmlab.models import LanguageModel

SAMPLE = 64  # values of every weight that a mark is of, about


def model_fingerprint(model: LanguageModel) -> str:
    """The config and all weights, in 32 hexadecimal digits."""
    digest = _begun(model, 16)
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def model_mark(model: LanguageModel) -> str:
    """The config and some values of every weight, in 16 hexadecimal digits: quick, and enough to tell trained
    models apart."""
    digest = _begun(model, 8)
    for value in model.state_dict().values():
        flat = value.detach().flatten()
        some = flat[:: max(1, len(flat) // SAMPLE)].to("cpu", torch.bfloat16)
        digest.update(some.float().numpy().tobytes())
    return digest.hexdigest()


def _begun(model: LanguageModel, size: int) -> hashlib.blake2b:
    return hashlib.blake2b(json.dumps(model.config.to_dict()).encode(), digest_size=size)
