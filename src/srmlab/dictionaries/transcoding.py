"""Learning transcoders from the text, and running the model on them.

    transcoders = srmlab.dictionaries.learn_transcoders(model, batches.batch, steps=500)
    logits = model.run_with_hooks(tokens, fwd_hooks=splice(transcoders))       # all of them in place

Every step runs the model on a batch and takes one step of Adam for each transcoder on what all its calls read
and wrote; nothing is stored, and the same seed gives the same transcoders.

    >>> import srmlab, srmlab.dictionaries, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> tokens = torch.arange(2 * 32).view(2, 32)
    >>> found = srmlab.dictionaries.learn_transcoders(model, lambda s: tokens + s, steps=2, features=64, k=4)
    >>> [member.config.name for member in found], found["B"].config.levels
    (['A', 'B', 'C'], (0, 1, 2, 3, 4, 5, 6, 7))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from srmlab.analysis.interventions import Hook
from srmlab.analysis.registry import streams_of
from srmlab.dictionaries.dictionary import Activation
from srmlab.dictionaries.learning import PATIENCE, Batches, Dead, Progress, learn_all, usual_settings
from srmlab.dictionaries.transcoder import PARTS, Transcoder, TranscoderConfig, Transcoders
from srmlab.errors import UserError, check_choice
from srmlab.models import Call, HookPoint, LanguageModel


def learn_transcoders(
    model: LanguageModel,
    batch: Batches,
    *,
    steps: int,
    of: str = "mlp",
    features: int | None = None,
    k: int | None = None,
    activation: Activation = "topk",
    skip: bool = False,
    reach: int = 1,
    per_depth: bool = False,
    lr: float = 2e-3,
    patience: int = PATIENCE,
    dead: Dead = "replace",
    seed: int = 0,
    progress: Progress | None = None,
) -> Transcoders:
    """Transcoders of a part of every step function: its "mlp", its "attention", or the whole "step".

    With `reach` above 1, features also write into the next levels' calls of their step function. `per_depth`
    learns one for each call instead of one for all, to compare.
    """
    shared = usual_settings(streams_of(model, "a transcoder"), features, k, activation)
    if reach > model.depth or (per_depth and reach > 1):
        raise UserError(f"reach = {reach}: give 1 to {model.depth} levels, and 1 with one for each depth")
    members = [
        Transcoder(TranscoderConfig(**shared, skip=skip, reach=reach, **place), seed + i)
        for i, place in enumerate(places(model, of, per_depth))
    ]
    learn_all(model, batch, members, steps, lr, patience, dead, progress)
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
    given: list[Tensor] = []  # what the calls of one pass have read so far
    codes: list[Tensor] = []
    first = member.config.points[0]

    def listen(value: Tensor, hook: HookPoint) -> None:
        if hook.name == first:
            given.clear()
            codes.clear()
        given.append(value.float())
        codes.append(member.encode(value.float()))

    def put(value: Tensor, _: HookPoint) -> Tensor:
        value = value.clone()
        value[:, :, streams] = member.write(codes, given[-1])[:, :, streams].to(value.dtype)
        return value

    return [
        *((site, listen) for site in member.config.points),
        *((site, put) for site in member.config.writes),
    ]
