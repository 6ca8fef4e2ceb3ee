"""Transcoders for a model's step functions, and running the model on them.

transcoders = srmlab.dictionaries.learn(model, batches.batch, of="mlp", steps=500)
logits = model.run_with_hooks(tokens, fwd_hooks=splice(transcoders))       # all of them in place

>>> import srmlab, srmlab.dictionaries, torch
>>> model = srmlab.build(srmlab.preset("srm-nano"))
>>> tokens = torch.arange(2 * 32).view(2, 32)
>>> found = srmlab.dictionaries.learn(model, lambda s: tokens + s, of="mlp", steps=2, features=64, k=4)
>>> [member.config.name for member in found], found["B"].config.levels
(['A', 'B', 'C'], (0, 1, 2, 3, 4, 5, 6, 7))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from srmlab.analysis.interventions import Hook
from srmlab.analysis.registry import streams_of
from srmlab.dictionaries.dictionary import Activation, usual_settings
from srmlab.dictionaries.transcoder import PARTS, Calls, Transcoder, TranscoderConfig, Transcoders
from srmlab.errors import UserError, check_choice
from srmlab.models import Call, HookPoint, LanguageModel


def new_transcoders(
    model: LanguageModel,
    of: str = "mlp",
    features: int | None = None,
    k: int | None = None,
    activation: Activation = "topk",
    skip: bool = False,
    reach: int = 1,
    per_depth: bool = False,
    seed: int = 0,
) -> Transcoders:
    """Some that have learned nothing yet, of every step function's "mlp", its "attention", or the whole
    "step". With `reach` above 1, features also write into the next levels' calls of their step function.
    `per_depth` makes one for each call instead of one for all, to compare.
    """
    shared = usual_settings(streams_of(model, "a transcoder"), features, k, activation)
    if reach > model.depth or (per_depth and reach > 1):
        raise UserError(f"reach = {reach}: give 1 to {model.depth} levels, and 1 with one for each depth")
    members = (
        Transcoder(TranscoderConfig(**shared, skip=skip, reach=reach, **place), seed + i)
        for i, place in enumerate(places(model, of, per_depth))
    )
    return Transcoders(tuple(members), of)


def places(model: LanguageModel, of: str, per_depth: bool) -> list[dict]:
    """For every transcoder its name, the sites it reads and writes, and their levels."""
    check_choice("of", of, PARTS)
    calls = [(call, written) for call in model.calls if call.given and (written := call.written(of))]
    if not calls:
        raise UserError(f"{type(model).__name__} does not say what its steps' {of} reads and writes")
    groups: dict[str, list[tuple[Call, str]]] = {}
    for i, (call, written) in enumerate(calls):
        name = f"{call.group}-{i}" if per_depth else call.group
        groups.setdefault(name, []).append((call, written))
    return [
        {
            "name": name,
            "points": tuple(call.given for call, _ in members),
            "writes": tuple(written for _, written in members),
            "levels": tuple(call.level for call, _ in members),
        }
        for name, members in groups.items()
    ]


def splice(transcoders: Transcoders, chosen: Mapping[str, Sequence[int]] | None = None) -> list[Hook]:
    """Hooks that put transcoders in place of what they approximate, wherever their step function is called:
    all of them, or only some streams by the names of their step functions.
    """
    hooks: list[Hook] = []
    for member in transcoders:
        streams = range(member.config.streams) if chosen is None else chosen.get(member.config.name, ())
        if len(streams):
            hooks += _splice_one(member, list(streams))
    return hooks


def _splice_one(member: Transcoder, streams: list[int]) -> list[Hook]:
    given: list[Tensor] = []  # what the present call reads
    calls: list[Calls] = []  # of the present pass
    first = member.config.points[0]

    def listen(value: Tensor, hook: HookPoint) -> None:
        given[:] = [value.float()]
        if hook.name == first:
            calls[:] = [Calls(member)]

    def put(value: Tensor, _: HookPoint) -> Tensor:
        written = calls[0].write(given[0])[1]
        value = value.clone()
        value[:, :, streams] = written[:, :, streams].to(value.dtype)
        return value

    points, writes = member.config.points, member.config.writes
    return [*((site, listen) for site in points), *((site, put) for site in writes)]
