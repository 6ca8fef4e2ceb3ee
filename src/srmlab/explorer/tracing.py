"""Making a trace: one forward pass with every site cached, and the numbers read off the cache.

    >>> import srmlab
    >>> from srmlab.data.tokenizers import byte_tokenizer
    >>> model = srmlab.build(srmlab.preset("srm-nano", vocab_size=257))
    >>> capture(model, byte_tokenizer(), "A stream")["ablation_kl"].shape       # token, stream
    (8, 8)

What is not defined on a model is not in its trace: routing without a pattern between streams, ablation and
attribution where streams do not add up to the output, steps where a call moves less than all streams.

Axes:  L layer (a level of depth)   N tick   T token   S stream   D stream dim   H head   G step group
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.alignment import cosine
from srmlab.analysis.readout import BITS, Readout, kl_divergence, kl_of_changes
from srmlab.analysis.registry import has_contributions, has_patterns, has_streams
from srmlab.analysis.routing import pattern_entropy
from srmlab.analysis.states import StateMeans, points_of
from srmlab.dictionaries import Lexicon
from srmlab.errors import UserError
from srmlab.explorer.active_features import described, feature_arrays
from srmlab.explorer.lens import Reading, stream_lens, top_lens
from srmlab.explorer.trace import FORMAT, Trace, config_hash
from srmlab.models import Call, LanguageModel
from srmlab.models.puzzle import log_softmax
from srmlab.models.sites import HookFunction, NamesFilter

RANKS = 5  # likeliest tokens kept at every tick
STREAM_LENS_LIMIT = 4e11  # floating-point operations; about ten seconds on two cores
Hooks = Sequence[tuple[NamesFilter, HookFunction]]


class TextTokens(Protocol):
    """What the explorer asks of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Iterable[int]) -> str: ...

    def token_strings(self, ids: Iterable[int]) -> list[str]: ...


@runtime_checkable
class BoardTokens(TextTokens, Protocol):
    """One that reads the boards of puzzles (`boards.py`): every cell has an answer of its own."""

    @property
    def reading(self) -> Reading: ...

    def answer(self, ids: Sequence[int]) -> list[int] | None: ...

    def arrays(self, model: LanguageModel, states: Tensor, ids: Sequence[int]) -> dict[str, Tensor]: ...

    @property
    def manifest(self) -> dict[str, Any]: ...


def reading_of(tokenizer: TextTokens) -> Reading:
    """How its predictions are read: of a board as in its training, of text by softmax."""
    return tokenizer.reading if isinstance(tokenizer, BoardTokens) else Reading()


def ids_of(prompt: str | Sequence[int], tokenizer: TextTokens, context: int) -> list[int]:
    """The tokens of a prompt, if there are any and the model can read them all."""
    ids = tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
    if not ids:
        raise UserError("the prompt is empty: write at least one token")
    if len(ids) > context:
        raise UserError(f"the prompt has {len(ids)} tokens, the model reads {context}: shorten it")
    return ids


@torch.inference_mode()
def capture(
    model: LanguageModel,
    tokenizer: TextTokens,
    prompt: str | Sequence[int],
    *,
    hooks: Hooks = (),
    reference: StateMeans | None = None,
    stream_lens: bool | None = None,
    lexicon: Lexicon | None = None,
    name: str | None = None,
    note: dict[str, Any] | None = None,
    python: str = "",
    answer: int | None = None,
) -> Trace:
    """The trace of `prompt` (text or ids).

    `hooks` intervene while it runs. `reference` holds the mean states (`srmlab.analysis.state_means`);
    without it the means are the prompt's own. `stream_lens` decodes every stream alone: by default when that
    takes seconds. With a `lexicon` (`srmlab.dictionaries.Lexicon`) the trace says which features are in use.
    `python` are the lines that make model, tokenizer, reference and lexicon again. `answer` is the token
    taken for the one after the last, by default the model's own choice: two traces compare on one target.
    """
    ids = ids_of(prompt, tokenizer, model.config.context)
    tokens = torch.tensor(ids, device=model.device)
    with model.evaluating(), model.hooks(hooks):
        logits, cache = model.run_with_cache(tokens[None], names_filter=_wanted(model))
    cache = {site: model.at_tokens(value) for site, value in cache.items()}
    states = States.of(model, cache)
    after = logits[0, -1].argmax(-1, keepdim=True) if answer is None else tokens.new_tensor([answer])
    target = torch.cat((tokens[1:], after))
    board = tokenizer if isinstance(tokenizer, BoardTokens) else None
    if board is not None:
        right = board.answer(ids)
        target = logits[0].argmax(-1) if right is None else tokens.new_tensor(right)
    reading = reading_of(tokenizer)
    arrays = (
        _exchange_arrays(model, cache, states)
        | _step_arrays(states)
        | _drift_arrays(model, cache, states)
        | _lens_arrays(model, states, logits[0], tokens, target, reading)
    )
    if has_streams(model):
        arrays |= _readout_arrays(model, states, logits[0], target, reference, stream_lens, reading)
    elif len(model.streams) > 1:
        arrays |= _plain_stream_lens(model, states, target, reading)
    arrays |= {"tokens": tokens.int(), "target": target.int()}
    if board is not None:
        arrays |= board.arrays(model, states.outputs, ids)
        scores = reading.log_probs(logits[0]).gather(-1, target[:, None]).squeeze(-1)
        arrays["surprisal"] = (-scores * BITS).clamp_max(6e4).half()  # of the answers, not of what is next
    dictionary = None
    if lexicon is not None:
        arrays |= feature_arrays(lexicon, cache)
        dictionary = described(lexicon, arrays["features"].cpu().numpy(), model)
    manifest = _manifest(model, tokenizer, ids, arrays, states, name, note, reference is not None, dictionary)
    return Trace(
        {key: value.cpu().contiguous().numpy() for key, value in arrays.items()},
        {**manifest, "python": python} | ({} if board is None else {"puzzle": board.manifest}),
    ).with_measures()


def _wanted(model: LanguageModel) -> list[str]:
    """The sites a trace is read off."""
    names = [site for point in model.points for site in point.sites]
    for exchange in model.exchanges:
        names += [exchange.message, exchange.update, *([exchange.pattern] if exchange.pattern else [])]
    for call in model.calls:
        names += [call.site, *([call.before] if isinstance(call.before, str) else [])]
    return list(dict.fromkeys([*names, *([model.input_site] if model.input_site else [])]))


@dataclass(frozen=True)
class Steps:
    """What went into every call that moves all streams, and what came out; each [N, T, S, D]."""

    before: Tensor
    after: Tensor


@dataclass(frozen=True)
class States:
    """The cached states of one prompt, stacked."""

    levels: Tensor  # [L, T, S, D] after every level
    final: Tensor  # [T, S, D] as the output reads it
    steps: Steps | None  # None where a call moves one stream, adds a part, or levels differ in their calls
    update: Tensor | None  # [N, T, S, D] what each step was given; None where streams exchange nothing

    @classmethod
    def of(cls, model: LanguageModel, cache: dict[str, Tensor]) -> States:
        points = [model.state_at(point, cache)[0].float() for point in model.points]  # [T, S, D] each
        levels = torch.stack(points[: model.depth])
        steps, update = _steps(model, cache, levels), None
        if steps is not None and len(model.exchanges) == model.depth:
            given = torch.stack([cache[exchange.update][0].float() for exchange in model.exchanges])
            update = given.repeat_interleave(len(steps.after) // model.depth, 0)
        return cls(levels, points[-1], steps, update)

    @property
    def outputs(self) -> Tensor:
        """[L, T, S, D]: the state after every level, the last one as the output reads it."""
        return torch.cat((self.levels[:-1], self.final[None]))

    @property
    def ticks(self) -> Tensor:
        """[N, T, S, D] The state after every step, or after every level where steps are not defined."""
        if self.steps is None:
            return self.levels
        ticks = self.steps.after.clone()
        ticks[-1] = self.levels[-1]  # an intervention on the last level's output counts
        return ticks


def _steps(model: LanguageModel, cache: dict[str, Tensor], levels: Tensor) -> Steps | None:
    counts = {sum(call.level == level for call in model.calls) for level in range(model.depth)}
    if len(counts) != 1 or any(c.before is None or cache[c.site].ndim != 4 for c in model.calls):
        return None
    before, after = [], []
    level = 0
    for call in model.calls:
        z = _before(call, cache)
        if call.level > level:  # from here on with what left the level before, intervened on or not
            level, z = call.level, levels[level]
        before.append(z.expand_as(levels[0]))
        after.append(cache[call.site][0].float())
    return Steps(torch.stack(before), torch.stack(after)) if after else None


def _before(call: Call, cache: dict[str, Tensor]) -> Tensor:
    """[T, S, D], or [T, D] of a call that moves one stream; a constant has no T."""
    return call.before.float() if isinstance(call.before, Tensor) else cache[call.before or ""][0].float()


def _exchange_arrays(model: LanguageModel, cache: dict[str, Tensor], states: States) -> dict[str, Tensor]:
    arrays = {}
    if has_patterns(model):
        sites = [exchange.pattern or "" for exchange in model.exchanges]
        pattern = torch.stack([cache[site][0].float() for site in sites])  # [L, T, H, S, S]
        arrays["routing"] = (pattern * 255).round().clamp(0, 255).to(torch.uint8)
        arrays["routing_entropy"] = pattern_entropy(pattern).half()
    if model.exchanges and model.input_site is not None:
        c = torch.stack([cache[exchange.message][0].float() for exchange in model.exchanges])
        arrays["connection_cosine"] = cosine(c, cache[model.input_site][0].float()[None]).half()
    if states.update is not None and states.steps is not None:
        arrays["update_cosine"] = cosine(states.update, states.steps.after).half()
        arrays["update_cosine_in"] = cosine(states.update, states.steps.before).half()
    return arrays


def _step_arrays(states: States) -> dict[str, Tensor]:
    if states.steps is None:
        return {}
    before, after = states.steps.before, states.steps.after
    ratio = (after - before).norm(dim=-1) / before.norm(dim=-1).clamp_min(1e-9)
    return {
        "state_norm": after.pow(2).mean(-1).sqrt().half(),
        "step_change": ratio.clamp_max(6e4).half(),
    }


def _drift_arrays(model: LanguageModel, cache: dict[str, Tensor], states: States) -> dict[str, Tensor]:
    if not has_contributions(model):
        return {}
    parts = contributions(model, cache, states)  # [L, G, T, S, D]
    log_p = torch.log_softmax(parts, dim=-1)
    return {
        "drift_cosine": (1 - cosine(parts[1:], parts[:-1])).half(),
        "drift_kl": kl_divergence(log_p[:-1], log_p[1:]).clamp_max(6e4).half(),
    }


def contributions(model: LanguageModel, cache: dict[str, Tensor], states: States) -> Tensor:
    """What each group of calls added at each level, summed over its calls: [L, G, T, S, D]. NaN for the
    other streams of a group that moves only one.
    """
    groups = model.call_groups
    # a call whose result stands in a point moves the stream that stands there
    places = {site: s for point in model.points for s, site in enumerate(point.sites)}
    stream = {call.group: places[call.site] for call in model.calls if call.site in places}
    total = states.levels.new_zeros(model.depth, len(groups), *states.levels.shape[1:])
    still = torch.zeros(len(groups), total.shape[3], dtype=torch.bool)  # [G, S]
    for call, moved in zip(model.calls, _moved(model, cache, states), strict=True):
        group = groups.index(call.group)
        if moved.ndim == 3:  # all streams
            total[call.level, group] += moved
        else:
            at = stream.get(call.group, 0)
            total[call.level, group, :, at] += moved
            still[group], still[group, at] = True, False
    total.permute(1, 3, 0, 2, 4)[still] = torch.nan
    return total


def _moved(model: LanguageModel, cache: dict[str, Tensor], states: States) -> Iterable[Tensor]:
    """By how much every call moves all streams [T, S, D], or its own one [T, D]."""
    if states.steps is not None:
        return states.steps.after - states.steps.before
    added = ((call, cache[call.site][0].float()) for call in model.calls)
    return (value if call.before is None else value - _before(call, cache) for call, value in added)


def _lens_arrays(
    model: LanguageModel,
    states: States,
    logits: Tensor,
    tokens: Tensor,
    target: Tensor,
    reading: Reading,
) -> dict[str, Tensor]:
    ticks = states.ticks
    if len(model.points) > model.depth:  # the model's own answer comes later: one more row
        ticks = torch.cat((ticks, states.final[None]))
    embedding = model.read_out(ticks.to(model.unembedding.dtype))  # [N (+1), T, E]
    ids, values, targets = top_lens(model, embedding, target, RANKS, reading)
    scores = reading.log_probs(logits)
    surprisal = -scores[:-1].gather(-1, tokens[1:, None]).squeeze(-1) * BITS
    return {
        "lens_ids": ids.int(),
        "lens_logprob": values.half(),
        "lens_target": targets.half(),
        "surprisal": torch.cat((surprisal.new_full((1,), torch.nan), surprisal)).half(),
    }


def _readout_arrays(
    model: LanguageModel,
    states: States,
    logits: Tensor,
    target: Tensor,
    reference: StateMeans | None,
    with_stream_lens: bool | None,
    reading: Reading,
) -> dict[str, Tensor]:
    """Of streams that add up to the output: what each adds, and what is lost without it."""
    read = Readout(model)
    parts = read.parts(states.outputs.permute(2, 0, 1, 3))  # [S, L, T, E]
    mean = parts.mean(2)  # [S, L, E]
    if reference is not None:
        sites = points_of(model)
        points = [reference.at(site, model.device) for site in (*sites[: model.depth - 1], sites[-1])]
        mean = read.parts(torch.stack(points, dim=1))
    final, final_mean = parts[:, -1], mean[:, -1:]
    kl = _kl_of_ablations(reading, final.sum(0), final_mean - final, read.unembedding)
    direction = read.unembedding[target] - read.unembedding.mean(0)  # [T, E]
    arrays = {
        # of the target's logit less the mean logit; over the streams these add up to it
        "attribution": torch.einsum("slte,te->lts", parts, direction).half(),
        "write_norm": (parts - mean[:, :, None]).norm(dim=-1).permute(1, 2, 0).half(),
        "ablation_kl": (kl.T * BITS).half(),
    }
    cost = 2 * parts.numel() * logits.shape[-1]
    if with_stream_lens or (with_stream_lens is None and cost <= STREAM_LENS_LIMIT):
        others = (mean.sum(0) - mean)[:, :, None]  # [S, L, 1, E]
        arrays |= _stream_lens_arrays(model, parts + others, target, reading)
    return arrays


def _kl_of_ablations(reading: Reading, embedding: Tensor, changes: Tensor, unembedding: Tensor) -> Tensor:
    """[S, T], in nats, of the changes [S, T, E] of the embedding [T, E]."""
    if reading.log_probs is log_softmax:
        return kl_of_changes(embedding, changes, unembedding)[0]
    full, changed = (reading.log_probs(one @ unembedding.T) for one in (embedding, embedding + changes))
    return kl_divergence(full, changed)


def _plain_stream_lens(
    model: LanguageModel, states: States, target: Tensor, reading: Reading
) -> dict[str, Tensor]:
    """Of streams that do not add up: each read on its own, with no others to hold at their mean."""
    outputs = states.outputs.to(model.unembedding.dtype)
    alone = [model.read_stream(outputs[:, :, s], s) for s in range(len(model.streams))]
    return _stream_lens_arrays(model, torch.stack(alone), target, reading)


def _stream_lens_arrays(
    model: LanguageModel, alone: Tensor, target: Tensor, reading: Reading
) -> dict[str, Tensor]:
    """The embeddings of each stream alone [S, L, T, E], decoded."""
    ids, values, targets = stream_lens(model, alone, target, reading)
    return {
        "stream_lens_id": ids.int(),
        "stream_lens_logprob": values.half(),
        "stream_lens_target": targets.half(),
    }


def _manifest(
    model: LanguageModel,
    tokenizer: TextTokens,
    ids: list[int],
    arrays: dict[str, Tensor],
    states: States,
    name: str | None,
    note: dict[str, Any] | None,
    has_reference: bool,
    dictionary: dict[str, Any] | None,
) -> dict[str, Any]:
    used: set[int] = set()
    for key in ("tokens", "target", "lens_ids", "stream_lens_id"):
        if key in arrays:
            used.update(np.unique(arrays[key].cpu().numpy()).tolist())
    for feature in dictionary["about"].values() if dictionary else ():
        used.update(feature["raises"], feature["example"])
    prompt = tokenizer.decode([i for i in ids if i < tokenizer.vocab_size])
    return {
        "format": FORMAT,
        "prompt": prompt,
        "exact": tokenizer.encode(prompt) == ids,  # whether the text gives these tokens again
        "strings": display_strings(tokenizer, ids),
        "vocabulary": dict(
            zip(map(str, sorted(used)), display_strings(tokenizer, sorted(used)), strict=True)
        ),
        "model": {
            "name": name or type(model).__name__,
            "config": model.config.to_dict(),
            "config_hash": config_hash(model.config),
            "parameters": model.num_parameters(),
        },
        "order": orders(model),
        "letters": list(model.call_groups),
        "streams": list(model.streams),
        "axes": {
            "layer": model.depth,
            "token": len(ids),
            "head": heads_of(model),
            "target": len(model.streams),
            "source": len(model.streams),
            "stream": len(model.streams),
            "tick": len(states.ticks),
            "lens": arrays["lens_ids"].shape[0],
            "transition": model.depth - 1,
            "group": len(model.call_groups),
            "rank": arrays["lens_ids"].shape[-1],
            **({"point": len(dictionary["points"]), "place": dictionary["k"]} if dictionary else {}),
        },
        "reference": "evaluation tokens" if has_reference else "this prompt",
        "note": note or {},
        "dictionary": dictionary,
    }


def display_strings(tokenizer: TextTokens, ids: Sequence[int]) -> list[str]:
    """One string a token; ids beyond the tokenizer's table (a padded vocabulary) show as their number."""
    known = tokenizer.vocab_size
    return [tokenizer.token_strings([i])[0] if i < known else f"<{i}>" for i in ids]


def orders(model: LanguageModel) -> list[list[str]]:
    """For every level the groups of its calls, in their order."""
    return [[call.group for call in model.calls if call.level == level] for level in range(model.depth)]


def heads_of(model: LanguageModel) -> int:
    """Heads of the pattern between the streams; 0 if there is none."""
    return model.exchanges[0].heads if has_patterns(model) else 0
