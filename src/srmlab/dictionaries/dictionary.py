"""A dictionary: an SAE per stream, which writes the stream's states as sums of a few directions out of many.

    x ≈ centre + Σ_f a_f · direction_f          a = few of ReLU((x − centre) · encoder + bias)

Which activations a_f stay above 0 depends on the activation function:

    topk        the k largest of a state (Gao et al., 2024)
    batchtopk   in training, the k·N largest of N states, so that a state has as many as it needs; afterwards
                those above the resulting threshold, one per stream (Bussmann et al., 2024)
    jumprelu    those above a learned threshold per feature (Rajamanoharan et al., 2024)

Directions have norm 1. Streams do not share a space, so every stream has its own SAE; all are held in one
object and computed in one grouped matmul. States have the shape of a site's value, with stream and dim last:
`dictionary.encode(cache["layers.7.out"])`.

    >>> import torch
    >>> dictionary = Dictionary(DictionaryConfig(streams=8, dim=32, features=128, k=4))
    >>> states = torch.randn(2, 50, 8, 32)                      # batch, token, stream, dim
    >>> codes = dictionary.encode(states)
    >>> codes.shape, int((codes > 0).sum(-1).max())
    (torch.Size([2, 50, 8, 128]), 4)
    >>> dictionary.decode(codes).shape
    torch.Size([2, 50, 8, 32])
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

import torch
from torch import Tensor, nn

from srmlab.analysis.registry import streams_of
from srmlab.analysis.states import points_of
from srmlab.errors import UserError, check_choice
from srmlab.files import write_file
from srmlab.models import LanguageModel
from srmlab.storage.identity import model_mark

Activation = Literal["topk", "batchtopk", "jumprelu"]
Null = Literal["shuffled", "random"]
FORMAT = 1
CONFIG, WEIGHTS = "dictionary.json", "dictionary.safetensors"


@dataclass(frozen=True)
class DictionaryConfig:
    """The shape of a dictionary, and what it was learned from."""

    streams: int
    dim: int
    features: int  # of each stream
    k: int  # features in use for one state: at most, or with a threshold about, on average
    points: tuple[str, ...] = ()  # the sites whose states it was learned from
    model: str = ""  # the mark of the model it was learned on
    activation: Activation = "topk"

    def __post_init__(self) -> None:
        check_choice("activation", self.activation, get_args(Activation))
        if self.features < 1:
            raise UserError(f"features = {self.features}: give 1 or more")
        if not 1 <= self.k <= self.features:
            raise UserError(f"k = {self.k}: give 1 to {self.features}, the number of features")

    @property
    def has_threshold(self) -> bool:
        return self.activation != "topk"

    @property
    def most(self) -> int:
        """Features of a state that are shown: with a threshold there may be more of them in use."""
        return min(self.features, 4 * self.k) if self.has_threshold else self.k


class Dictionary(nn.Module):
    """A sparse autoencoder for every stream: `encode` states, `decode` features."""

    translates: ClassVar[bool] = False  # whether it makes something else of a state than the state itself
    threshold: Tensor | None  # [S, F]

    def __init__(self, config: DictionaryConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        S, D, F = config.streams, config.dim, config.features
        directions = torch.randn(S, F, D, generator=torch.Generator().manual_seed(seed))
        directions = nn.functional.normalize(directions, dim=-1)
        self.centre = nn.Parameter(torch.zeros(S, D))
        self.encoder = nn.Parameter(directions.mT.contiguous())  # [S, D, F]
        self.bias = nn.Parameter(torch.zeros(S, F))
        self.directions = nn.Parameter(directions.clone())  # [S, F, D]
        learned, kept = config.activation == "jumprelu", config.activation == "batchtopk"
        if learned:
            self.threshold = nn.Parameter(torch.zeros(S, F))
        else:
            self.register_buffer("threshold", torch.zeros(S, F) if kept else None)

    @property
    def mark(self) -> str:
        """Its directions in 16 hexadecimal digits: which dictionary a feature's number belongs to."""
        values = self.directions.detach().float().cpu().numpy().tobytes()
        return hashlib.blake2b(values, digest_size=8).hexdigest()

    @property
    def members(self) -> tuple[Dictionary, ...]:
        """Itself: what learns of a model is one dictionary, or several transcoders."""
        return (self,)

    @property
    def writes(self) -> tuple[str, ...]:
        """The sites of what it makes of the states at its points."""
        return self.config.points

    def activations(self, states: Tensor) -> Tensor:
        """States […, S, D] → […, S, F], before any are chosen; never negative."""
        return self._by_stream(self._activations, states, self.config.dim)

    def encode(self, states: Tensor) -> Tensor:
        """States […, S, D] → codes […, S, F], few above 0."""
        return self._by_stream(self._encode, states, self.config.dim)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes […, S, F] → states […, S, D]."""
        return self._by_stream(self._decode, codes, self.config.features)

    def forward(self, states: Tensor) -> Tensor:
        """States […, S, D] → what the dictionary makes of them, […, S, D]."""
        return self.decode(self.encode(states))

    def _by_stream(self, compute: Callable[[Tensor], Tensor], values: Tensor, width: int) -> Tensor:
        """Compute on [S, N, width], each stream's values side by side: as the model holds them, so that what
        comes from a site is not copied."""
        S = self.config.streams
        if values.shape[-2:] != (S, width):
            raise UserError(
                f"a tensor of shape {tuple(values.shape)}: need […, {S}, {width}], the streams last but one"
            )
        values = values.to(self.directions.dtype).movedim(-2, 0)
        found = compute(values.reshape(S, -1, width))
        return found.reshape(*values.shape[:-1], found.shape[-1]).movedim(0, -2)

    def _activations(self, states: Tensor) -> Tensor:
        centred = states - self.centre[:, None]
        return torch.baddbmm(self.bias[:, None], centred, self.encoder).relu()

    def _encode(self, states: Tensor) -> Tensor:
        activations = self._activations(states)
        if self.threshold is None:
            return largest(activations, self.config.k)
        return activations * (activations > self.threshold[:, None])

    def _decode(self, codes: Tensor) -> Tensor:
        return torch.baddbmm(self.centre[:, None], codes, self.directions)

    def directed(self, codes: Tensor) -> Tensor:
        """Codes [S, N, F] → the sum of their directions [S, N, D]."""
        return torch.bmm(codes, self.directions)

    def rebuild(self, codes: Tensor, states: Tensor) -> Tensor:  # noqa: ARG002
        """Codes [S, N, F], and the states [S, N, D] they are of → what it makes of them [S, N, D]."""
        return self._decode(codes)

    def begin(self, states: Tensor, targets: Tensor) -> None:  # noqa: ARG002
        """Learning begins, with these states and targets [S, N, D]."""
        self.centre.copy_(states.mean(1))

    def forget(self, stream: int, features: Tensor) -> None:
        """Reset what else belongs to features that are re-initialised."""

    @torch.no_grad()
    def normalise(self) -> None:
        """Give every direction length 1."""
        self.directions.copy_(nn.functional.normalize(self.directions, dim=-1))

    def written(self) -> list[Tensor]:
        """What features write, [S, F, D] each."""
        return [self.directions]

    @torch.no_grad()
    def changed(self, how: Null, draw: torch.Generator | None = None) -> Self:
        """A null: "shuffled", every feature writes what another one would; "random", directions at random."""
        draw = torch.Generator().manual_seed(0) if draw is None else draw
        other = copy.deepcopy(self)
        order = torch.randperm(self.config.features, generator=draw)
        for direction in other.written():
            noise = torch.randn(direction.shape, generator=draw)
            length = direction.norm(dim=-1, keepdim=True)
            drawn = nn.functional.normalize(noise, dim=-1).to(length) * length
            direction.copy_(direction[:, order.to(direction.device)] if how == "shuffled" else drawn)
        return other.eval()


def usual_settings(
    model: LanguageModel, features: int | None, k: int | None, activation: Activation
) -> dict[str, Any]:
    """What the configs of all that is learned on a model have in common."""
    dim = model.stream_dim
    return {
        "streams": len(model.streams),
        "dim": dim,
        "features": usual_features(dim) if features is None else features,
        "k": usual_k(dim) if k is None else k,
        "model": model_mark(model),
        "activation": activation,
    }


def usual_features(dim: int) -> int:
    return 8 * dim


def usual_k(dim: int) -> int:
    return max(1, dim // 8)


def largest(activations: Tensor, k: int) -> Tensor:
    """The k largest of the last axis, 0 elsewhere."""
    values, places = activations.topk(k, dim=-1)
    return torch.zeros_like(activations).scatter(-1, places, values)


def check(model: LanguageModel, dictionary: Dictionary) -> LanguageModel:
    """The model, if the dictionary, or transcoder, was learned on it."""
    config, kind = dictionary.config, "transcoder" if dictionary.translates else "dictionary"
    model = streams_of(model, f"a {kind}")
    fits = (config.streams, config.dim) == (len(model.streams), model.stream_dim)
    if not fits or (config.model and config.model != model_mark(model)):
        raise UserError(
            f"this {kind} was learned on other weights (was the run trained further?): "
            f"train one on these with `srmlab {kind}`"
        )
    known = model.site_names if dictionary.translates else points_of(model)
    if not config.points or not set(config.points) <= set(known):
        raise UserError(f"this {kind}'s points, {config.points}, are not states of this model")
    return model


# --- files --------------------------------------------------------------------------------------------------


def of_states(dictionary: Dictionary) -> Dictionary:
    """The dictionary, if it is one of states: a transcoder is one in all but what it makes of them."""
    if dictionary.translates:
        raise UserError(
            "this is a transcoder, not a dictionary of states: use transcoder_quality, save_transcoders or "
            "srmlab.interop.saelens.save_transcoders"
        )
    return dictionary


def save(dictionary: Dictionary, folder: str | Path) -> Path:
    """Write dictionary.safetensors and dictionary.json into a folder."""
    of_states(dictionary)
    document = dataclasses.asdict(dictionary.config)
    if document["activation"] == "topk":
        del document["activation"]  # as it was before there were others
    return write_learned(folder, "dictionary", document, dictionary.state_dict())


def load(folder: str | Path, device: torch.device | str = "cpu") -> Dictionary:
    """Read a dictionary back."""
    with reading(folder, "dictionary") as (settings, weights):
        dictionary = Dictionary(DictionaryConfig(**settings))
        dictionary.load_state_dict(weights)
    return dictionary.to(device).eval()


def write_learned(
    folder: str | Path, name: str, settings: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> Path:
    """NAME.safetensors and NAME.json of a dictionary or of transcoders."""
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({n: value.contiguous() for n, value in weights.items()}, folder / f"{name}.safetensors")
    document = {"format": FORMAT, **settings}
    write_file(folder / f"{name}.json", json.dumps(document, indent=2) + "\n")
    return folder


@contextmanager
def reading(folder: str | Path, name: str) -> Iterator[tuple[dict[str, Any], dict[str, Tensor]]]:
    """The settings and weights in NAME.json and NAME.safetensors; if using them fails, they are damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder, command = Path(folder), name.removesuffix("s")
    if not (folder / f"{name}.json").is_file():
        learned = "one" if name == command else "them"
        raise UserError(f"no {name} in {folder}; `srmlab {command} RUN` learns {learned}")
    try:
        document = json.loads((folder / f"{name}.json").read_text(), object_hook=_with_tuples)
        if document.pop("format") != FORMAT:
            raise UserError(f"{folder / name}.json is of another version; learn the {name} again")
        yield document, load_file(folder / f"{name}.safetensors")
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{folder} has a damaged {name} file ({error}); learn it again") from None


def _with_tuples(document: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in document.items()}
