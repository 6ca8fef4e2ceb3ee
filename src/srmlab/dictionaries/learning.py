"""Training a dictionary on a model's states, or transcoders on the inputs and outputs of its steps.

Every step runs the model on a batch of windows and takes one Adam step on the states of all tokens, for every
stream at once. Nothing is stored between steps, and step t reads batch t: the same seed gives the same
dictionary. A stream's loss is its fraction of unexplained variance, so streams of different scale train
alike, and none at the cost of another.

A feature that has not fired on the last `patience` states is dead. With dead="replace" it is re-initialised
along the residual of a poorly explained state (as in Bricken et al., 2023); with dead="auxiliary" the dead
features are trained together on the residual, at 1/32 of the loss (as in Gao et al., 2024).

With `layers="every"` the states after all layers are pooled: the layers share their weights, and one
dictionary then describes a stream at any depth. With `of="mlp"` transcoders are trained, each on all calls of
its step function.

    >>> import srmlab, srmlab.dictionaries, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> tokens = torch.arange(2 * 32).view(2, 32)
    >>> dictionary = srmlab.dictionaries.learn(model, lambda step: tokens + step, steps=3, features=64, k=4)
    >>> dictionary.config.points
    ('layers.7.out',)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, Literal, get_args, overload

import torch
from torch import Tensor

from srmlab.analysis.registry import streams_of
from srmlab.analysis.replacement import Layers, points_at
from srmlab.analysis.states import stream_major
from srmlab.data import Batch, as_batch
from srmlab.dictionaries.dictionary import (
    Activation,
    Dictionary,
    DictionaryConfig,
    largest,
    usual_settings,
)
from srmlab.dictionaries.sparsity import chosen, first_threshold
from srmlab.dictionaries.transcoder import PARTS, Part, Transcoders
from srmlab.dictionaries.transcoding import new_transcoders
from srmlab.errors import UserError, check_choice, unknown
from srmlab.models import HookPoint, LanguageModel

PATIENCE = 100_000  # states without firing, after which a feature is dead
COOLING = 0.2  # of the steps, at the end, in which the rate falls to 0
AUXILIARY = 1 / 32  # the weight of what dead features learn
JUMP = 1.0  # the width of a threshold's jump, in spreads of the states

Dead = Literal["replace", "auxiliary"]
Progress = Callable[[int, float], None]  # steps done, the share of variance unexplained
Batches = Callable[[int], Batch | Tensor | tuple[Tensor, ...]]  # step → what is read


@overload
def learn(
    model: LanguageModel, batch: Batches, *, of: Literal["states"] = "states", **options: Any
) -> Dictionary: ...
@overload
def learn(model: LanguageModel, batch: Batches, *, of: Part, **options: Any) -> Transcoders: ...
def learn(
    model: LanguageModel,
    batch: Batches,
    *,
    of: Literal["states"] | Part = "states",
    steps: int,
    lr: float = 2e-3,
    patience: int = PATIENCE,
    dead: Dead = "replace",
    progress: Progress | None = None,
    **settings: Any,
) -> Dictionary | Transcoders:
    """A dictionary of each stream's states, or transcoders `of` a part of every step function ("mlp",
    "attention", "step").

    `batch` is a function of the step that gives its `srmlab.data.Batch`, or its tokens [B, T] alone. Settings
    are `features` and `k` (of each stream), `activation` and `seed`; of a dictionary also `layers` ("last",
    "every", or their numbers); of transcoders `skip`, `reach` and `per_depth`.
    """
    if not callable(batch):
        raise UserError(
            f"batch is a function of the step, such as lambda step: windows[step], not {type(batch).__name__}"
        )
    new = new_learner(model, of, **settings)
    learn_all(model, batch, new.members, steps, lr, patience, dead, progress)
    return new


def new_learner(model: LanguageModel, of: str, **settings: Any) -> Dictionary | Transcoders:
    """What learns of the states, or of a part of the step functions."""
    check_choice("of", of, ("states", *PARTS))
    make = new_dictionary if of == "states" else new_transcoders
    known = signature(make).parameters.keys() - {"model", "of"}
    if others := settings.keys() - known:
        raise unknown("setting", min(others), sorted(known))
    return new_dictionary(model, **settings) if of == "states" else new_transcoders(model, of, **settings)


def new_dictionary(
    model: LanguageModel,
    features: int | None = None,
    k: int | None = None,
    layers: Layers = "last",
    activation: Activation = "topk",
    seed: int = 0,
) -> Dictionary:
    """One that has learned nothing yet, of the states after some layers ("last", "every", or their numbers).

    "last" is the state that the output function reads; it and "every" include the post-steps, if there are
    any. By default there are 8 features for each dimension of a stream, and an eighth as many as dimensions
    are in use at once.
    """
    shared = usual_settings(streams_of(model, "a dictionary"), features, k, activation)
    return Dictionary(DictionaryConfig(**shared, points=points_at(model, layers)), seed)


def learn_all(
    model: LanguageModel,
    batch: Batches,
    dictionaries: Sequence[Dictionary],
    steps: int,
    lr: float = 2e-3,
    patience: int = PATIENCE,
    dead: Dead = "replace",
    progress: Progress | None = None,
) -> None:
    """Dictionaries or transcoders learn, all from the same passes of the model; each as it would alone."""
    learners = [Learner(one.to(model.device), steps, lr, patience, dead) for one in dictionaries]
    sites = list(dict.fromkeys(site for one in dictionaries for site in (*one.config.points, *one.writes)))
    for step in range(steps):
        values = values_at(model, as_batch(batch(step)).to(model.device), sites)
        left = []
        for learner, one in zip(learners, dictionaries, strict=True):
            states = torch.cat([values[site] for site in one.config.points], dim=1)  # [S, points · N, D]
            targets = torch.cat([values[site] for site in one.writes], dim=1) if one.translates else states
            left.append(learner.step(states, targets))
        if progress is not None:
            progress(step + 1, sum(left) / len(left))
    for one in dictionaries:
        one.eval()


class Learner:
    """A dictionary that learns: the steps of Adam, and what becomes of dead features."""

    def __init__(self, dictionary: Dictionary, steps: int, lr: float, patience: int, dead: Dead) -> None:
        if steps < 1:
            raise UserError(f"steps = {steps}: give 1 or more")
        if not 0 < lr < float("inf"):
            raise UserError(f"lr = {lr}: must be positive")
        check_choice("dead", dead, get_args(Dead))
        self.dictionary, self.steps, self.lr, self.patience, self.dead = dictionary, steps, lr, patience, dead
        self.optimizer = torch.optim.Adam(dictionary.parameters(), lr=lr)
        self.silent = torch.zeros_like(dictionary.bias)  # [S, F] states since it last fired
        self.done = 0

    @torch.enable_grad()  # also where a notebook has turned gradients off
    def step(self, states: Tensor, targets: Tensor) -> float:
        """One step on states [S, N, D], and what is to be made of them; the share of variance left."""
        dictionary = self.dictionary
        if self.done == 0:
            self.variance = settle(dictionary, states, targets)  # [S]
            spread = (states - states.mean(1, keepdim=True)).square().mean((1, 2), keepdim=True)
            self.width = JUMP * spread.sqrt().clamp(min=1e-6)  # [S, 1, 1]
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * min(1.0, (self.steps - self.done) / (COOLING * self.steps))
        activations = dictionary._activations(states)
        codes, cost = chosen(dictionary, activations, self.width)
        residual = targets - dictionary.rebuild(codes, states)  # [S, N, D]
        unexplained = residual.square().sum(-1).mean(1) / self.variance  # [S]
        if not bool(unexplained.isfinite().all()):
            raise UserError(
                f"the loss is not finite at step {self.done}: lower the learning rate, now {self.lr:g}"
            )
        loss = unexplained if cost is None else unexplained + cost
        asleep = self.silent >= self.patience
        if self.dead == "auxiliary" and bool(asleep.any()):
            loss = loss + AUXILIARY * self.of_the_dead(activations, residual.detach(), asleep)
        self.optimizer.zero_grad()
        loss.sum().backward()
        self.optimizer.step()
        dictionary.normalise()
        self.silent = torch.where((codes > 0).any(1), 0.0, self.silent + states.shape[1])
        asleep = self.silent >= self.patience
        if self.dead == "replace" and bool(asleep.any()) and self.steps - self.done > COOLING * self.steps:
            replace(dictionary, self.optimizer, residual.detach(), asleep, states)
            self.silent[asleep] = 0
        self.done += 1
        return unexplained.mean().item()

    def of_the_dead(self, activations: Tensor, residual: Tensor, dead: Tensor) -> Tensor:
        """[S] What dead features alone leave of the residual."""
        few = min(activations.shape[-1], max(1, residual.shape[-1] // 2))
        codes = largest(activations.masked_fill(~dead[:, None], 0), few)
        left = residual - self.dictionary.directed(codes)
        return left.square().sum(-1).mean(1) / self.variance


def values_at(model: LanguageModel, batch: Batch, sites: Sequence[str]) -> dict[str, Tensor]:
    """The values [S, N, D] of all tokens, by site."""
    found: dict[str, Tensor] = {}

    def keep(value: Tensor, hook: HookPoint) -> None:
        found[hook.name] = stream_major(value).flatten(1, 2)

    with model.evaluating(), model.hooks([(sites, keep)]):
        model.check_tokens(batch.tokens, documents=batch.documents)
        model.output_embedding(batch.tokens, documents=batch.documents)
    return found


@torch.no_grad()
def settle(dictionary: Dictionary, states: Tensor, targets: Tensor) -> Tensor:
    """Start at the means of the first states and targets [S, N, D]; the targets' variance [S]."""
    dictionary.begin(states, targets)
    first_threshold(dictionary, states)
    spread = targets - targets.mean(1)[:, None]
    return spread.square().sum(-1).mean(1).clamp(min=1e-12)


@torch.no_grad()
def replace(
    dictionary: Dictionary,
    optimizer: torch.optim.Adam,
    residual: Tensor,
    dead: Tensor,
    states: Tensor | None = None,
) -> None:
    """Re-initialise dead features [S, F] along the residuals [S, N, D] of the states explained worst; what
    they read is along these states, if the dictionary makes something else of them.
    """
    worst = torch.linalg.vector_norm(residual, dim=-1).argsort(dim=-1, descending=True)  # [S, N]
    for s in dead.any(1).nonzero().squeeze(1).tolist():
        features = dead[s].nonzero().squeeze(1)[: worst.shape[1]]
        direction = torch.nn.functional.normalize(residual[s, worst[s, : len(features)]], dim=-1)
        strength = torch.linalg.vector_norm(dictionary.encoder[s], dim=0)[~dead[s]]
        dictionary.directions[s, features] = direction
        read = direction
        if dictionary.translates and states is not None:
            read = states[s, worst[s, : len(features)]] - dictionary.centre[s]
            read = torch.nn.functional.normalize(read, dim=-1)
        dictionary.encoder[s, :, features] = read.T * (strength.mean() if len(strength) else 1.0)
        dictionary.bias[s, features] = 0
        dictionary.forget(s, features)
        if dictionary.threshold is not None and len(strength):
            dictionary.threshold[s, features] = dictionary.threshold[s, ~dead[s]].mean()
        places = {
            "directions": (s, features),
            "encoder": (s, slice(None), features),
            "bias": (s, features),
            "threshold": (s, features),  # where it is learned
            "later": (slice(None), s, features),
        }
        for name, parameter in dictionary.named_parameters():
            state = optimizer.state[parameter] if name in places else {}
            for moment in {"exp_avg", "exp_avg_sq"} & state.keys():
                state[moment][places[name]] = 0
