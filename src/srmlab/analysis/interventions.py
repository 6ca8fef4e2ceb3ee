"""Interventions: change something inside the model, and see what happens to the prediction.

Four kinds, each a list of hooks for `effect` (or for `model.hooks` and `model.run_with_hooks`; lists can be
concatenated):

    replace_streams   mean-, zero- or resample-ablate streams after some layers
    cut_edges         remove edges (layer, head, target, source) from the attention pattern between streams,
                      at all tokens or one, renormalised or not
    patch_streams     patch in streams from another prompt or another layer, at all or some tokens
    hold_features     clamp features of a dictionary to a value; 0 ablates them

    >>> import srmlab, srmlab.analysis, torch
    >>> from srmlab.analysis import interventions
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> tokens, other = torch.arange(32)[None], torch.arange(50, 82)[None]
    >>> cut = interventions.cut_edges(model, [(3, None, 0, 5)])  # layer 3: stream 0 cannot read stream 5
    >>> srmlab.analysis.effect(model, tokens, cut).kl.shape     # batch, token
    (1, 32)
    >>> patch = interventions.patch_streams(model, other, streams=[2], layer=4)
    >>> bool(srmlab.analysis.effect(model, tokens, patch).mean_kl > 0)
    True

An `Intervention` is the same as plain data: it can be validated, sent and saved, and returns its hooks.

    >>> means = srmlab.analysis.state_means(model, [tokens])
    >>> silence = Intervention(ablations=(AblatedStream(stream=5, mode="mean", first=7, last=7),))
    >>> len(silence.hooks(model, means))
    1

Nothing here changes the model: hooks are active for one forward pass.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from srmlab.analysis.registry import pattern_sites, streams_of
from srmlab.analysis.replacement import By, Layers, check_by, points_at, replacer, replacing
from srmlab.analysis.states import StateMeans, stream_major
from srmlab.errors import UserError
from srmlab.models import HookPoint, LanguageModel, Point

if TYPE_CHECKING:
    from srmlab.dictionaries import Dictionary

Hook = tuple[str, Callable[[Tensor, HookPoint], Tensor | None]]
# layer, head, target, source, and token if it is not at all of them; None means all
Edge = (
    tuple[int, int | None, int | None, int | None]
    | tuple[int, int | None, int | None, int | None, int | None]
)
Held = tuple[int, int, float]  # stream, feature, value


def replace_streams(
    model: LanguageModel,
    streams: Iterable[int],
    layers: Layers = "every",
    by: By = "mean",
    means: StateMeans | None = None,
) -> list[Hook]:
    """Hooks that replace streams after some layers ("last", "every", or layer numbers)."""
    model = streams_of(model, "replace_streams")
    check_by(by)
    if by == "mean" and means is None:
        raise UserError('by = "mean" needs means = srmlab.analysis.state_means(model, batches)')
    chosen = _checked_streams(model, streams)
    points = points_at(model, layers)
    if by == "mean" and means is not None:
        means.check(model, points)
    hook = replacing(chosen, replacer(by, means))
    return [(point, hook) for point in points]


def cut_edges(model: LanguageModel, edges: Iterable[Edge], renormalise: bool = True) -> list[Hook]:
    """Hooks that set edges of the connection's pattern to zero; renormalised, a target's other edges grow to
    add up to what all of them did."""
    by_layer: dict[int, list[tuple]] = {}
    for layer, head, target, source, *token in edges:
        place = (*(token or [None]), head, target, source)
        by_layer.setdefault(layer, []).append(tuple(slice(None) if at is None else at for at in place))

    def cutter(places: list[tuple]) -> Callable[[Tensor, HookPoint], Tensor]:
        def cut(pattern: Tensor, hook: HookPoint) -> Tensor:
            whole, pattern = pattern.sum(-1, keepdim=True), pattern.clone()
            tokens = model.at_tokens(pattern)
            for place in places:
                _check_edge(place, tokens, hook)
                (pattern if isinstance(place[0], slice) else tokens)[(slice(None), *place)] = 0
            if not renormalise:
                return pattern
            if bool((pattern < 0).any()):
                raise UserError(f"cut_edges at {hook.name}: weights below 0; pass renormalise=False")
            left = pattern.sum(-1, keepdim=True)
            return pattern * (whole / left.masked_fill(left == 0, 1))

        return cut

    sites = pattern_sites(model, "cut_edges") if by_layer else []
    for layer in by_layer:
        within("layer", layer, len(sites))
    return [(sites[layer], cutter(places)) for layer, places in by_layer.items()]


def _check_edge(place: tuple, pattern: Tensor, hook: HookPoint) -> None:
    for axis, at, size in zip(("token", "head", "target", "source"), place, pattern.shape[1:], strict=True):
        if not isinstance(at, slice) and not -size <= at < size:
            raise UserError(f"cut_edges at {hook.name}: {axis} {at}, must be 0 to {size - 1}")


def patch_streams(
    model: LanguageModel,
    source: Tensor,
    streams: Iterable[int],
    layer: int,
    from_layer: int | None = None,
    tokens: Iterable[int] | None = None,
    from_tokens: Iterable[int] | None = None,
) -> list[Hook]:
    """Hooks that patch in, after `layer`, the streams of a run on `source` [B, T] after `from_layer` (the
    same by default). At all tokens, of prompts of one length; or at `tokens`, from those of the source at
    `from_tokens` (the same by default), of prompts of any length. They are counted in each pass: generate
    with `use_cache=False`, else every new token is the first of its pass."""
    chosen = _checked_streams(model, streams)
    points_at(model, [layer, layer if from_layer is None else from_layer])
    to, origin = model.points[layer], model.points[layer if from_layer is None else from_layer]
    if tokens is None and from_tokens is not None:
        raise UserError("from_tokens needs tokens: the positions in the prompt to patch")
    at = None if tokens is None else list(tokens)
    origins = at if from_tokens is None else list(from_tokens)
    if at is not None and origins is not None and len(at) != len(origins):
        raise UserError(f"{len(origins)} source tokens for {len(at)} prompt tokens: give one for each")
    with model.evaluating(), torch.inference_mode():
        _, cache = model.run_with_cache(source.to(model.device), origin.sites)
    given = model.state_at(origin, cache).clone()
    if origins is not None:
        given = model.at_tokens(given)
        given = given[:, _checked_tokens(origins, given.shape[1], "the source")]

    def patch(state: Tensor, shown: Sequence[int], hook: HookPoint) -> Tensor:
        state = state.clone()
        cells = state if at is None else model.at_tokens(state)
        places = slice(None) if at is None else _checked_tokens(at, cells.shape[1], "the prompt")
        patched = cells[:, places]
        if patched.shape[:2] != given.shape[:2]:
            raise UserError(
                f"the patch at {hook.name} is of {tuple(given.shape[:2])} tokens, "
                f"the prompt of {tuple(patched.shape[:2])}; give both the same shape [batch, token], or "
                "say which tokens"
            )
        patched = patched.clone()
        for place, stream in enumerate(shown):
            if stream in chosen:
                patched[:, :, place] = given[:, :, stream].to(state.dtype)
        cells[:, places] = patched
        return state

    return at_point(to, patch)


Change = Callable[[Tensor, Sequence[int], HookPoint], Tensor]


def at_point(point: Point, change: Change) -> list[Hook]:
    """Hooks that change the state at a point, whether it is one site of all streams or a site for each:
    `change(state [B, T, n, D], the n streams it shows, hook)` gives what comes in its place."""

    def changer(stream: int) -> Callable[[Tensor, HookPoint], Tensor]:
        def hook(value: Tensor, site: HookPoint) -> Tensor:
            if value.ndim == 4:
                return change(value, range(value.shape[2]), site)
            return change(value[:, :, None], [stream], site)[:, :, 0]

        return hook

    return [(site, changer(stream)) for stream, site in enumerate(point.sites)]


def put_in(point: Point, given: Tensor, where: Tensor) -> list[Hook]:
    """Hooks that put `given` [B, T, S, D] in place of a point's state where `where` [B, T, S] is true."""

    def change(state: Tensor, shown: Sequence[int], hook: HookPoint) -> Tensor:  # noqa: ARG001
        chosen = list(shown)
        return torch.where(where[:, :, chosen, None], given[:, :, chosen].to(state.dtype), state)

    return at_point(point, change)


def _checked_tokens(tokens: list[int], length: int, whose: str) -> list[int]:
    for token in tokens:
        if not -length <= token < length:
            raise UserError(f"token {token} of {whose}: it has {length}")
    return tokens


def hold_features(dictionary: Dictionary, held: Iterable[Held]) -> list[Hook]:
    """Hooks that hold features of a dictionary at values.

    A feature held at a value moves its stream's state along the feature's direction, by the value less its
    activation, at every point the dictionary was learned from; what the dictionary does not explain stays as
    it is. Held at 0 a feature is silent; where it is not in use, nothing changes.
    """
    if dictionary.translates:
        raise UserError(
            "hold_features is for a dictionary of states: a transcoder does not write what it reads"
        )
    held = list(held)
    config = dictionary.config
    for stream, feature, value in held:
        within("hold stream", stream, config.streams)
        within("hold feature", feature, config.features)
        if not math.isfinite(value):
            raise UserError(f"hold feature {feature} at {value}: give a number")
    directions = dictionary.directions.detach()

    def moved(states: Tensor, _: str) -> Tensor:
        states = states.float()
        codes = stream_major(dictionary.encode(states.movedim(0, -2)).detach()).flatten(1, 2)  # [S, B·T, F]
        wanted = codes.clone()
        for stream, feature, value in held:
            wanted[stream, :, feature] = value
        return states + torch.bmm(wanted - codes, directions).view_as(states)

    streams = sorted({stream for stream, _, _ in held})
    return [(point, replacing(streams, moved)) for point in config.points] if held else []


@dataclass(frozen=True)
class AblatedStream:
    """Stream `stream` replaced after layers `first` … `last`, counted from 0, both included."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}  # a request names nothing else

    stream: int
    mode: By
    first: int
    last: int


@dataclass(frozen=True)
class CutEdge:
    """One weight of the pattern set to zero, at one token or (None) at all. The target then reads nothing
    from that source through that head; the other weights stay as they are."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    layer: int
    head: int
    target: int
    source: int
    token: int | None = None


@dataclass(frozen=True)
class HeldFeature:
    """One feature of a stream's dictionary held at a value, at all points the dictionary was learned from; 0
    silences it."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    stream: int
    feature: int
    value: float = 0.0


@dataclass(frozen=True)
class Intervention:
    """Ablations, cuts and held features together, as the explorer sends and saves them."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    ablations: tuple[AblatedStream, ...] = ()
    cuts: tuple[CutEdge, ...] = ()
    holds: tuple[HeldFeature, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ablations or self.cuts or self.holds)

    def check(self, model: LanguageModel, tokens: int, dictionary: Dictionary | None = None) -> None:
        """Refuse, in one line, what the model or a prompt of this many tokens does not have."""
        config = model.config
        for a in self.ablations:
            within("stream", a.stream, config.streams)
            within("first layer", a.first, config.depth)
            within("last layer", a.last, config.depth)
            if a.first > a.last:
                raise UserError(f"layers {a.first}–{a.last} are not a range: swap them")
        for c in self.cuts:
            within("layer", c.layer, config.depth)
            within("head", c.head, config.stream_heads)
            within("target stream", c.target, config.streams)
            within("source stream", c.source, config.streams)
            if c.token is not None:
                within("token", c.token, tokens)
        if self.holds and dictionary is None:
            raise UserError(
                "no dictionary was learned on these weights to clamp a feature of: srmlab dictionary RUN"
            )
        for h in self.holds:
            within("stream", h.stream, config.streams)
            within("feature", h.feature, dictionary.config.features if dictionary else 0)

    def hooks(
        self, model: LanguageModel, means: StateMeans, dictionary: Dictionary | None = None
    ) -> list[Hook]:
        """The intervention as (site, function) pairs for `model.hooks`."""
        edges = [(c.layer, c.head, c.target, c.source, c.token) for c in self.cuts]
        hooks = cut_edges(model, edges, renormalise=False)
        final = model.config.depth - 1
        for a in self.ablations:
            if a.first < final:
                inner = range(a.first, min(a.last + 1, final))
                hooks += replace_streams(model, [a.stream], inner, a.mode, means)
            if a.last == final:  # the state that the output function reads
                hooks += replace_streams(model, [a.stream], "last", a.mode, means)
        if self.holds and dictionary is not None:
            hooks += hold_features(dictionary, [(h.stream, h.feature, h.value) for h in self.holds])
        return hooks

    def to_dict(self) -> dict[str, Any]:
        return {name: list(found) for name, found in dataclasses.asdict(self).items()}


def within(what: str, value: int, size: int) -> None:
    if value not in range(size):
        raise UserError(f"{what} {value}: must be 0 to {size - 1}")


def _checked_streams(model: LanguageModel, streams: Iterable[int]) -> list[int]:
    chosen = list(streams)
    if not chosen or any(not 0 <= s < len(model.streams) for s in chosen):
        raise UserError(f"streams = {chosen}: give some of 0 to {len(model.streams) - 1}")
    return chosen
