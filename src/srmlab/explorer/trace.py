"""A trace: everything one prompt did inside one model, as named arrays and a manifest.

The explorer, the report and the notebook read nothing else, so this file is the contract between the model's
side and the page's. On disk and on the wire a trace is one safetensors file: named arrays with types and
shapes, and the manifest as JSON in the file's metadata. No pickle; any safetensors reader opens it.

    >>> import srmlab
    >>> from srmlab.data.tokenizers import byte_tokenizer
    >>> from srmlab.explorer import capture
    >>> model = srmlab.build(srmlab.preset("srm-nano", vocab_size=257))
    >>> trace = capture(model, byte_tokenizer(), "To be")
    >>> trace["routing"].shape                     # layer, token, head, target, source
    (8, 5, 2, 8, 8)
    >>> Trace.from_bytes(trace.to_bytes()).token_strings
    ['T', 'o', ' ', 'b', 'e']

Values are float16 (float32 if they are of the whole prompt), ids int32, routing weights uint8 (weight = value
/ 255: exact to 0.002, an eighth of a float32's size). A layer is a level of the model's depth. A tick is one
step of one layer, counted through the whole pass: tick = layer × steps a layer + step; where a model has no
steps that move all streams, a tick is a layer. Arrays that are not defined on a model are left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from srmlab.errors import UserError
from srmlab.explorer.measures import LEVELS, measures
from srmlab.files import write_file
from srmlab.models import LanguageModel, ModelConfig

FORMAT = 1


@dataclass(frozen=True)
class Field:
    """One array of a trace: its type, its axes by name, its unit, and what it is."""

    dtype: str
    axes: tuple[str, ...]
    unit: str
    about: str


def _field(dtype: str, axes: str, unit: str, about: str) -> Field:
    return Field(dtype, tuple(axes.split()), unit, about)


FIELDS: dict[str, Field] = {
    "tokens": _field("int32", "token", "id", "the prompt"),
    "routing": _field(
        "uint8", "layer token head target source", "1/255", "the connection's pattern: weight = value / 255"
    ),
    "routing_entropy": _field(
        "float16", "layer token head", "bits", "entropy over sources, mean over targets"
    ),
    "connection_cosine": _field(
        "float16", "layer token stream", "cosine", "cos(c, x): connection against token input"
    ),
    "update_cosine": _field("float16", "tick token stream", "cosine", "cos(y, step output)"),
    "update_cosine_in": _field("float16", "tick token stream", "cosine", "cos(y, state before the step)"),
    "state_norm": _field(
        "float16", "tick token stream", "rms", "root mean square of the state after the step"
    ),
    "step_change": _field("float16", "tick token stream", "ratio", "‖state after − before‖ / ‖before‖"),
    "drift_cosine": _field(
        "float16",
        "transition group token stream",
        "1 − cosine",
        "contribution of a step group, between consecutive layers",
    ),
    "drift_kl": _field(
        "float16",
        "transition group token stream",
        "nats",
        "KL of the softmaxed contributions, between consecutive layers",
    ),
    "surprisal": _field("float16", "token", "bits", "of each token given those before; NaN for the first"),
    "target": _field(
        "int32", "token", "id", "the next token: the prompt's, and at the end the model's own choice"
    ),
    "lens_ids": _field(
        "int32", "lens token rank", "id", "likeliest tokens if the state were decoded after this tick"
    ),
    "lens_logprob": _field("float16", "lens token rank", "nats", "their log-probability"),
    "lens_target": _field("float16", "lens token", "nats", "log-probability of the target"),
    "attribution": _field(
        "float16",
        "layer token stream",
        "logits",
        "direct part of each stream in the target's logit, against the vocabulary's mean",
    ),
    "write_norm": _field(
        "float16",
        "layer token stream",
        "norm",
        "what the stream writes to the output embedding, less its mean",
    ),
    "ablation_kl": _field("float16", "token stream", "bits", "KL(full ‖ stream's final state at its mean)"),
    "stream_lens_id": _field(
        "int32",
        "layer token stream",
        "id",
        "likeliest token with this stream alone; the others at their mean, where streams add up",
    ),
    "stream_lens_logprob": _field("float16", "layer token stream", "nats", "its log-probability"),
    "stream_lens_target": _field(
        "float16", "layer token stream", "nats", "log-probability of the target, decoded likewise"
    ),
    "hub_score": _field(
        "float32",
        "level stream",
        "share of tokens",
        "how often other streams read it, at a weight above level / 255",
    ),
    "incoming": _field("float32", "level stream", "share of tokens", "how often it reads other streams"),
    "self_routing": _field("float32", "level stream", "share of tokens", "how often it reads itself"),
    "convergence_cosine": _field(
        "float32", "group stream", "transition", "when drift_cosine, mean over tokens, settles"
    ),
    "convergence_kl": _field(
        "float32", "group stream", "transition", "when drift_kl, mean over tokens, settles"
    ),
    "given": _field("uint8", "token", "0 or 1", "of a puzzle: whether the cell was given"),
    "cell_value": _field("int32", "layer token", "id", "of a puzzle: its value if this layer were the last"),
    "cell_probability": _field("float16", "layer token", "probability", "of that value"),
    "features": _field(
        "int32",
        "point token stream place",
        "feature",
        "of a dictionary: those in use, the strongest first; −1 where fewer are",
    ),
    "feature_activation": _field("float16", "point token stream place", "activation", "theirs"),
}
ALWAYS = (
    "tokens",
    "surprisal",
    "target",
    "lens_ids",
    "lens_logprob",
    "lens_target",
)  # the others where a model has them
MANIFEST_KEYS = (
    "format", "model", "prompt", "strings", "vocabulary", "order", "letters", "axes", "reference",
)  # fmt: skip


class TraceError(UserError):
    """A file or a set of arrays that is no trace. The message says what is wrong with it."""


@dataclass(frozen=True, eq=False)
class Trace:
    """One prompt through one model. `trace["routing"]` is an array, `trace.manifest` says what the arrays are
    about.
    """

    arrays: Mapping[str, np.ndarray]
    manifest: Mapping[str, Any] = field(repr=False)

    def __post_init__(self) -> None:
        missing = [key for key in MANIFEST_KEYS if key not in self.manifest]
        if missing:
            raise TraceError(f"the manifest of this trace lacks {', '.join(missing)}: trace the prompt again")
        if self.manifest["format"] != FORMAT:
            raise TraceError(
                f"trace format {self.manifest['format']!r}: this version reads {FORMAT}; trace the "
                f"prompt again"
            )
        sizes: dict[str, int] = dict(self.manifest["axes"])
        for name, spec in FIELDS.items():
            array = self.arrays.get(name)
            if array is None:
                if name in ALWAYS:
                    raise TraceError(f"this trace lacks {name!r}: trace the prompt again")
                continue
            expected = tuple(sizes.get(axis, -1) for axis in spec.axes)
            if array.shape != expected or array.dtype != np.dtype(spec.dtype):
                raise TraceError(
                    f"{name} is {array.dtype} {list(array.shape)}; a trace has {spec.dtype} "
                    f"{list(expected)} ({', '.join(spec.axes)})"
                )
        parts = ["features" in self.arrays, "feature_activation" in self.arrays]
        if any(parts) != all([*parts, self.manifest.get("dictionary")]):
            raise TraceError("features, feature_activation and the manifest's dictionary go together")
        unknown = sorted(set(self.arrays) - set(FIELDS))
        if unknown:
            raise TraceError(f"a trace has no array called {unknown[0]!r}")

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def __repr__(self) -> str:
        return f"Trace({self.prompt!r}, {len(self.token_strings)} tokens, {self.manifest['model']['name']})"

    @property
    def prompt(self) -> str:
        return self.manifest["prompt"]

    @property
    def token_strings(self) -> list[str]:
        return list(self.manifest["strings"])

    @property
    def weights(self) -> np.ndarray:
        """Routing weights as float32 [layer, token, head, target, source]."""
        return self.arrays["routing"].astype(np.float32) / 255

    def string(self, token: int) -> str:
        """The text of a token id that occurs somewhere in this trace."""
        return self.manifest["vocabulary"][str(int(token))]

    def to_bytes(self) -> bytes:
        arrays = {name: np.ascontiguousarray(array) for name, array in self.arrays.items()}
        manifest = json.dumps(self.manifest, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return save_safetensors(arrays, metadata={"manifest": manifest})

    @classmethod
    def from_bytes(cls, data: bytes) -> Trace:
        try:
            length = int.from_bytes(data[:8], "little")
            manifest = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["manifest"])
            arrays = load_safetensors(data)
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise TraceError(f"not a trace, or a damaged one ({error}): trace the prompt again") from None
        return cls(arrays, manifest).with_measures()

    def with_measures(self) -> Trace:
        """With the arrays that are worked out of the others; an older trace has none of them."""
        if "hub_score" in self.arrays or "convergence_kl" in self.arrays:
            return self
        axes = {**self.manifest["axes"], "level": LEVELS}
        return Trace({**self.arrays, **measures(self.arrays)}, {**self.manifest, "axes": axes})

    def save(self, path: str | Path) -> Path:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, self.to_bytes())
        return path

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise TraceError(f"cannot read {path}: {error.strerror}") from None
        return cls.from_bytes(data)

    def show(self, **options: Any):
        """The explorer's views of this trace in a notebook: interactive with anywidget, a drawing without."""
        from srmlab.explorer.widget import show

        return show(self, **options)

    def routing(self, **options: Any):
        """The wall of routing maps and the lens on one of them, in a notebook."""
        return self.show(views=["wall", "routing"], **options)

    def lens(self, **options: Any):
        """The logit lens, in a notebook."""
        return self.show(views=["tokens", "lens"], **options)

    def board(self, model: LanguageModel, tokenizer: Any, **options: Any):
        """The ablation board in a notebook: the kernel answers with this model."""
        return self.show(views=["tokens", "board", "ranked"], model=model, tokenizer=tokenizer, **options)


def config_hash(config: ModelConfig) -> str:
    """Twelve hexadecimal digits that change whenever the config does."""
    text = json.dumps(config.to_dict(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
