"""A transcoder maps a step function's input to its output through a few features out of many.

    a = few of ReLU((u − centre) · encoder + bias)          as in a dictionary
    MLP(u) ≈ target + Σ_f a_f · direction_f (+ u · skip)

The layers of a recursive model share their weights, so **one transcoder for each step function and stream
serves all depths**; `levels` gives the level of each of its calls. With `reach` above 1 its features also
write into later calls of the step function, with a separate direction for every distance in levels: a
cross-layer transcoder whose size does not grow with depth.

    MLP(u_j) ≈ target + Σ_{i ≤ j} Σ_f a_f(u_i) · direction_f[level_j − level_i]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from srmlab.dictionaries.dictionary import Dictionary, DictionaryConfig, Null, largest, reading, write_learned
from srmlab.errors import UserError, unknown

CONFIG = "transcoders.json"
Part = Literal["mlp", "attention", "step"]
PARTS = get_args(Part)
RIDGE = 1e-3  # of the linear map that learning starts from


@dataclass(frozen=True)
class TranscoderConfig(DictionaryConfig):
    """`points` are the sites its calls read, in their order."""

    name: str = ""  # of the step function; with one for each depth, its level too
    writes: tuple[str, ...] = ()  # the sites its calls write
    levels: tuple[int, ...] = ()  # of its calls
    skip: bool = False
    reach: int = 1  # levels that a feature writes into, its own included

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.reach >= 1:
            raise UserError(f"reach = {self.reach}: give 1 or more levels, its own included")


class Transcoder(Dictionary):
    """Sparse features that read what a step function reads and write what it writes."""

    config: TranscoderConfig
    translates: ClassVar[bool] = True

    def __init__(self, config: TranscoderConfig, seed: int = 0) -> None:
        super().__init__(config, seed)
        S, D, F = config.streams, config.dim, config.features
        self.target = nn.Parameter(torch.zeros(S, D))
        self.later = nn.Parameter(torch.zeros(config.reach - 1, S, F, D)) if config.reach > 1 else None
        self.skip = nn.Parameter(torch.zeros(S, D, D)) if config.skip else None

    @property
    def writes(self) -> tuple[str, ...]:
        return self.config.writes

    def distances(self, call: int) -> list[tuple[int, int]]:
        """The calls that write into a call, itself included, and how many levels away they are."""
        levels = self.config.levels
        away = [(i, levels[call] - levels[i]) for i in range(call + 1)]
        return [(i, d) for i, d in away if i == call or (self.later is not None and d < self.config.reach)]

    def write(self, codes: Sequence[Tensor | None], given: Tensor) -> Tensor:
        """The codes […, S, F] of its calls up to one (None of those that no longer write), and what that one
        reads […, S, D] → what it writes."""
        total, directions = self.target, self.written()
        for i, distance in self.distances(len(codes) - 1):
            told = codes[i]
            assert told is not None
            total = total + torch.einsum("...sf,sfd->...sd", told, directions[distance])
        if self.skip is None:
            return total
        return total + torch.einsum("...sd,sde->...se", given.to(self.skip.dtype), self.skip)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes […, S, F] of a call → what it writes, if nothing else adds to that."""
        if self.skip is not None or self.later is not None:
            other = "what it reads" if self.skip is not None else "the codes of earlier calls"
            raise UserError(f"what this transcoder writes needs {other} too: use write(codes, given)")
        return super().decode(codes)

    def forward(self, states: Tensor) -> Tensor:
        """What a call reads […, S, D] → what it writes, if earlier calls do not write there too."""
        if self.later is not None:
            raise UserError("this transcoder writes across layers: use Calls(transcoder).write, call by call")
        return self.write([self.encode(states)], states)

    def _decode(self, codes: Tensor) -> Tensor:
        return torch.baddbmm(self.target[:, None], codes, self.directions)

    def directed(self, codes: Tensor) -> Tensor:
        """Codes [S, N, F], call by call, → the sum of what features write [S, N, D]."""
        if self.later is None:
            return super().directed(codes)
        by_call, directions = codes.unflatten(1, (len(self.config.levels), -1)).unbind(1), self.written()
        nothing = codes.new_zeros(())
        return torch.cat(
            [
                sum((by_call[i] @ directions[d] for i, d in self.distances(call)), nothing)
                for call in range(len(by_call))
            ],
            dim=1,
        )

    def rebuild(self, codes: Tensor, states: Tensor) -> Tensor:
        total = self.target[:, None] + self.directed(codes)
        return total if self.skip is None else total + torch.bmm(states, self.skip)

    def begin(self, states: Tensor, targets: Tensor) -> None:
        """Start at the means, and at the linear map that is nearest: by the skip connection, or by what
        features write where they read.
        """
        self.centre.copy_(states.mean(1))
        given, wanted = states - states.mean(1, keepdim=True), targets - targets.mean(1, keepdim=True)
        power = given.mT @ given
        ridge = RIDGE * power.diagonal(dim1=1, dim2=2).mean(1) + 1e-6
        eye = torch.eye(power.shape[-1], device=power.device)
        linear = torch.linalg.solve(power + ridge[:, None, None] * eye, given.mT @ wanted)  # [S, D, D]
        self.target.copy_(targets.mean(1))
        if self.skip is not None:
            self.skip.copy_(linear)
            self.target.sub_((states.mean(1)[:, None] @ linear)[:, 0])
        else:
            self.directions.copy_(self.encoder.mT @ linear)
            self.normalise()
        left = targets - (
            self.target[:, None] if self.skip is None else states @ self.skip + self.target[:, None]
        )
        said = self.directed(largest(self._activations(states), self.config.k))
        fit = (left * said).sum((1, 2)) / said.square().sum((1, 2)).clamp(min=1e-12)
        least = 0.1 * left.norm(dim=(1, 2)) / said.norm(dim=(1, 2)).clamp(min=1e-6)
        self.encoder.mul_(torch.maximum(fit, least)[:, None, None])  # activations of the size that is needed

    def forget(self, stream: int, features: Tensor) -> None:
        if self.later is not None:
            self.later[:, stream, features] = 0

    def written(self) -> list[Tensor]:
        """What features write [S, F, D], by how many levels ahead."""
        return [self.directions, *(() if self.later is None else self.later.unbind())]

    @torch.no_grad()
    def normalise(self) -> None:
        """Give what a feature writes at all distances together length 1."""
        if self.later is None:
            super().normalise()
            return
        square = self.directions.square().sum(-1) + self.later.square().sum((0, -1))
        length = square.sqrt().clamp(min=1e-12)[..., None]
        self.directions.div_(length)
        self.later.div_(length)


class Calls:
    """The calls of a transcoder in one pass of the model, in their order. Codes are kept as long as they are
    written."""

    def __init__(self, member: Transcoder) -> None:
        self.member = member
        self.codes: list[Tensor | None] = []

    def write(self, given: Tensor) -> tuple[Tensor, Tensor]:
        """What the next call reads […, S, D] → its codes […, S, F], and what it writes."""
        codes, call = self.member.encode(given), len(self.codes)
        self.codes.append(codes)
        written = self.member.write(self.codes, given)
        if call + 1 < len(self.member.config.levels):
            later = {i for i, _ in self.member.distances(call + 1)}
            self.codes = [one if i in later else None for i, one in enumerate(self.codes)]
        return codes, written


@dataclass(frozen=True)
class Transcoders:
    """One for each step function (or for each call of each), of one part of what a step adds."""

    translates: ClassVar[bool] = True

    members: tuple[Transcoder, ...]
    of: str = "mlp"

    def __iter__(self) -> Iterator[Transcoder]:
        return iter(self.members)

    def __getitem__(self, name: str) -> Transcoder:
        for member in self.members:
            if member.config.name == name:
                return member
        raise unknown("transcoder", name, [member.config.name for member in self.members])

    @property
    def config(self) -> TranscoderConfig:
        """What all have in common."""
        return self.members[0].config

    def to(self, device: torch.device | str) -> Transcoders:
        return Transcoders(tuple(member.to(device) for member in self), self.of)

    def changed(self, how: Null, seed: int = 0) -> Transcoders:
        """A null: "shuffled", every feature writes what another one would; "random", directions at random."""
        draw = torch.Generator().manual_seed(seed)
        return Transcoders(tuple(member.changed(how, draw) for member in self), self.of)


def save_transcoders(transcoders: Transcoders, folder: str | Path, half: bool = False) -> Path:
    """Write transcoders.safetensors and transcoders.json into a folder; `half`: as 16-bit numbers, which are
    read back as 32-bit ones."""
    weights = {
        f"{member.config.name}.{name}": (value.half() if half else value).detach().cpu()
        for member in transcoders
        for name, value in member.state_dict().items()
    }
    members = [dataclasses.asdict(member.config) for member in transcoders]
    return write_learned(folder, "transcoders", {"of": transcoders.of, "members": members}, weights)


def load_transcoders(folder: str | Path, device: torch.device | str = "cpu") -> Transcoders:
    """Read transcoders back."""
    members = []
    with reading(folder, "transcoders") as (document, weights):
        for settings in document["members"]:
            member = Transcoder(TranscoderConfig(**settings))
            start = f"{member.config.name}."
            own = {name.removeprefix(start): w for name, w in weights.items() if name.startswith(start)}
            member.load_state_dict(own)
            members.append(member.to(device).eval())
        return Transcoders(tuple(members), document["of"])
