"""Making a trace: one forward pass with every site cached, and the numbers read off the cache.

    >>> import srmlab
    >>> from srmlab.data.tokenizers import byte_tokenizer
    >>> model = srmlab.build(srmlab.preset("srm-nano", vocab_size=257))
    >>> capture(model, byte_tokenizer(), "A stream")["ablation_kl"].shape       # token, stream
    (8, 8)

Axes:  L layer   N tick   T token   S stream   D stream dim   H head   G step group
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.alignment import cosine
from srmlab.analysis.readout import BITS, Readout, kl_divergence, kl_of_changes
from srmlab.analysis.routing import pattern_entropy
from srmlab.analysis.states import StateMeans
from srmlab.dictionaries import Lexicon
from srmlab.errors import UserError
from srmlab.explorer.active_features import described, feature_arrays
from srmlab.explorer.lens import stream_lens, top_lens
from srmlab.explorer.trace import FORMAT, Trace, config_hash
from srmlab.models import SRM, LanguageModel
from srmlab.models.ordering import LETTERS
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


def require_srm(model: LanguageModel) -> SRM:
    if not isinstance(model, SRM):
        raise UserError(
            f"the explorer looks at streams, which {model.config.architecture} models lack: choose an SRM"
        )
    if model.config.connection != "attention":
        raise UserError(
            f"the explorer looks at routing, which connection = {model.config.connection!r} has none of: "
            "choose an SRM with a learned connection"
        )
    return model


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
) -> Trace:
    """The trace of `prompt` (text or ids).

    `hooks` intervene while it runs. `reference` holds the mean states (`srmlab.analysis.state_means`);
    without it the means are the prompt's own. `stream_lens` decodes every stream alone: by default when that
    takes seconds. With a `lexicon` (`srmlab.dictionaries.Lexicon`) the trace says which features are in use.
    `python` are the lines that make model, tokenizer, reference and lexicon again.
    """
    model = require_srm(model)
    ids = tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
    if not ids:
        raise UserError("the prompt is empty: write at least one token")
    if len(ids) > model.config.context:
        raise UserError(
            f"the prompt has {len(ids)} tokens, the model reads {model.config.context}: shorten it"
        )
    tokens = torch.tensor(ids, device=model.device)
    with model.evaluating(), model.hooks(hooks):
        logits, cache = model.run_with_cache(tokens[None], names_filter=_wanted(model))
    states = States.of(model, cache)
    target = torch.cat((tokens[1:], logits[0, -1].argmax(-1, keepdim=True)))
    arrays = (
        _connection_arrays(cache, states)
        | _step_arrays(model, states)
        | _readout_arrays(model, states, logits[0], tokens, target, reference, stream_lens)
    )
    arrays |= {"tokens": tokens.int(), "target": target.int()}
    dictionary = None
    if lexicon is not None:
        arrays |= feature_arrays(lexicon, cache)
        dictionary = described(lexicon, arrays["features"].cpu().numpy(), model.config.depth)
    manifest = _manifest(model, tokenizer, ids, arrays, name, note, reference is not None, dictionary)
    return Trace(
        {key: value.cpu().contiguous().numpy() for key, value in arrays.items()},
        {**manifest, "python": python},
    ).with_measures()


def _wanted(model: SRM) -> list[str]:
    names = [
        "input.streams",
        "layers.*.connection.*",
        "layers.*.update",
        "layers.*.steps.*.out",
        "layers.*.out",
    ]
    names += ["pre.*.out"] if model.config.pre_steps else []
    return names + (["post.*.out"] if model.config.post_steps else [])


class States:
    """The cached values of one prompt, stacked: what went into every step and what came out."""

    def __init__(
        self, x: Tensor, update: Tensor, before: Tensor, after: Tensor, layers: Tensor, final: Tensor
    ) -> None:
        self.x = x  # [T, S, D] the token input
        self.update = update  # [L, T, S, D]
        self.before = before  # [N, T, S, D]
        self.after = after  # [N, T, S, D]
        self.layers = layers  # [L, T, S, D] after every layer, as the next layer reads it
        self.final = final  # [T, S, D] as the output function reads it

    @classmethod
    def of(cls, model: SRM, cache: dict[str, Tensor]) -> States:
        config = model.config
        x = cache[f"pre.{config.pre_steps - 1}.out" if config.pre_steps else "input.streams"][0].float()
        start = x if config.z0 == "input" else model.z0.float()[None].expand_as(x)
        before, after, layers, update = [], [], [], []
        z = start
        for layer in range(config.depth):
            for step in range(config.calls_per_layer):
                before.append(z)
                z = cache[f"layers.{layer}.steps.{step}.out"][0].float()
                after.append(z)
            z = cache[f"layers.{layer}.out"][0].float()
            layers.append(z)
            update.append(cache[f"layers.{layer}.update"][0].float())
        final = cache[f"post.{config.post_steps - 1}.out"][0].float() if config.post_steps else z
        return cls(
            x, torch.stack(update), torch.stack(before), torch.stack(after), torch.stack(layers), final
        )

    @property
    def outputs(self) -> Tensor:
        """[L, T, S, D]: the state after every layer, the last one as the output function reads it."""
        return torch.cat((self.layers[:-1], self.final[None]))


def _connection_arrays(cache: dict[str, Tensor], states: States) -> dict[str, Tensor]:
    depth = len(states.layers)
    pattern = torch.stack(
        [cache[f"layers.{i}.connection.pattern"][0].float() for i in range(depth)]
    )  # [L, T, H, S, S]
    c = torch.stack([cache[f"layers.{i}.connection.out"][0].float() for i in range(depth)])
    return {
        "routing": (pattern * 255).round().clamp(0, 255).to(torch.uint8),
        "routing_entropy": pattern_entropy(pattern).half(),
        "connection_cosine": cosine(c, states.x[None]).half(),
    }


def _step_arrays(model: SRM, states: States) -> dict[str, Tensor]:
    calls = model.config.calls_per_layer
    update = states.update.repeat_interleave(calls, 0)  # [N, T, S, D]
    moved = states.after - states.before
    ratio = moved.norm(dim=-1) / states.before.norm(dim=-1).clamp_min(1e-9)
    parts = group_contributions(model, moved)  # [L, G, T, S, D]
    log_p = torch.log_softmax(parts, dim=-1)
    return {
        "update_cosine": cosine(update, states.after).half(),
        "update_cosine_in": cosine(update, states.before).half(),
        "state_norm": states.after.pow(2).mean(-1).sqrt().half(),
        "step_change": ratio.clamp_max(6e4).half(),
        "drift_cosine": (1 - cosine(parts[1:], parts[:-1])).half(),
        "drift_kl": kl_divergence(log_p[:-1], log_p[1:]).clamp_max(6e4).half(),
    }


def group_contributions(model: SRM, moved: Tensor) -> Tensor:
    """What each step function added in each layer, summed over its calls: moved [N, T, S, D] → [L, G, T, S,
    D].
    """
    config = model.config
    total = moved.new_zeros(config.depth, config.step_functions, *moved.shape[1:])
    for layer, order in enumerate(model.evaluation_orders):
        for step, group in enumerate(order):
            total[layer, group] += moved[layer * config.calls_per_layer + step]
    return total


def _readout_arrays(
    model: SRM,
    states: States,
    logits: Tensor,
    tokens: Tensor,
    target: Tensor,
    reference: StateMeans | None,
    with_stream_lens: bool | None,
) -> dict[str, Tensor]:
    dtype = model.unembedding.dtype
    weight = model.output_function.from_streams.weight
    ticks = states.after.clone()
    ticks[-1] = states.layers[-1]  # an intervention on the last layer's output counts
    if model.config.post_steps:  # the model's own answer comes after the post-steps: one more row
        ticks = torch.cat((ticks, states.final[None]))
    embedding = ticks.flatten(2).to(dtype) @ weight.T  # [N (+1), T, E]
    ids, values, targets = top_lens(model, embedding, target, min(RANKS, logits.shape[-1]))
    read = Readout(model)
    parts = read.parts(states.outputs.permute(2, 0, 1, 3))  # [S, L, T, E]
    mean = parts.mean(2)  # [S, L, E]
    if reference is not None:
        points = [reference.at(site, model.device) for site in layer_sites(model)]
        mean = read.parts(torch.stack(points, dim=1))
    final, final_mean = parts[:, -1], mean[:, -1:]
    kl, _ = kl_of_changes(final.sum(0), final_mean - final, read.unembedding)  # [S, T]
    direction = read.unembedding[target] - read.unembedding.mean(0)  # [T, E]
    scores = torch.log_softmax(logits.float(), -1)
    surprisal = -scores[:-1].gather(-1, tokens[1:, None]).squeeze(-1) * BITS
    arrays = {
        "lens_ids": ids.int(),
        "lens_logprob": values.half(),
        "lens_target": targets.half(),
        "surprisal": torch.cat((surprisal.new_full((1,), torch.nan), surprisal)).half(),
        # of the target's logit less the mean logit; over the streams these add up to it
        "attribution": torch.einsum("slte,te->lts", parts, direction).half(),
        "write_norm": (parts - mean[:, :, None]).norm(dim=-1).permute(1, 2, 0).half(),
        "ablation_kl": (kl.T * BITS).half(),
    }
    cost = 2 * parts.numel() * logits.shape[-1]
    if with_stream_lens or (with_stream_lens is None and cost <= STREAM_LENS_LIMIT):
        ids, values, targets = stream_lens(model, parts, mean, target)
        arrays |= {
            "stream_lens_id": ids.int(),
            "stream_lens_logprob": values.half(),
            "stream_lens_target": targets.half(),
        }
    return arrays


def _manifest(
    model: SRM,
    tokenizer: TextTokens,
    ids: list[int],
    arrays: dict[str, Tensor],
    name: str | None,
    note: dict[str, Any] | None,
    has_reference: bool,
    dictionary: dict[str, Any] | None,
) -> dict[str, Any]:
    config = model.config
    used: set[int] = set()
    for key in ("tokens", "target", "lens_ids", "stream_lens_id"):
        if key in arrays:
            used.update(np.unique(arrays[key].cpu().numpy()).tolist())
    for feature in dictionary["about"].values() if dictionary else ():
        used.update(feature["raises"], feature["example"])
    ticks = config.depth * config.calls_per_layer
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
            "name": name or "SRM",
            "config": config.to_dict(),
            "config_hash": config_hash(config),
            "parameters": model.num_parameters(),
        },
        "order": [[LETTERS[group] for group in layer] for layer in model.evaluation_orders],
        "letters": list(LETTERS[: config.step_functions]),
        "axes": {
            "layer": config.depth,
            "token": len(ids),
            "head": config.stream_heads,
            "target": config.streams,
            "source": config.streams,
            "stream": config.streams,
            "tick": ticks,
            "lens": ticks + (1 if config.post_steps else 0),
            "transition": config.depth - 1,
            "group": config.step_functions,
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


def layer_sites(model: SRM) -> list[str]:
    """The site of each layer's result; the last is the state the output function reads, after the post-steps
    if there are any.
    """
    config = model.config
    names = [f"layers.{i}.out" for i in range(config.depth)]
    return [*names[:-1], f"post.{config.post_steps - 1}.out" if config.post_steps else names[-1]]
