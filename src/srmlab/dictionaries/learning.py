"""Learning a dictionary from the states that a model has on text.

Every step runs the model on a batch of windows and takes one step of Adam on the states of all its tokens, of
every stream at once. Nothing is stored between steps, and step t reads batch t: the same seed gives the same
dictionary. The loss of a stream is the share of its variance that is left unexplained, so streams of
different spread learn alike, and none learns at the cost of another.

A feature that has fired at none of the last `patience` states is dead, and is re-initialised along the
residual of one of the states that are explained worst (as in Bricken et al., 2023).

With `layers="every"` the states after all layers are taken together: the layers share their weights, and one
dictionary then says what a stream carries at any depth.

    >>> import srmlab, srmlab.dictionaries, torch
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> tokens = torch.arange(2 * 32).view(2, 32)
    >>> dictionary = srmlab.dictionaries.learn(model, lambda step: tokens + step, steps=3, features=64, k=4)
    >>> dictionary.config.points
    ('layers.7.out',)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from srmlab.analysis.capture import stream_major
from srmlab.analysis.registry import streams_of
from srmlab.analysis.replacement import Layers, points_at
from srmlab.data import Batch, as_batch
from srmlab.dictionaries.dictionary import Dictionary, DictionaryConfig
from srmlab.errors import UserError
from srmlab.models import LanguageModel
from srmlab.storage.identity import model_mark

PATIENCE = 100_000  # states without firing, after which a feature is dead
COOLING = 0.2  # of the steps, at the end, in which the rate falls to 0

Progress = Callable[[int, float], None]  # steps done, the share of variance unexplained


def learn(
    model: LanguageModel,
    batch: Callable[[int], Batch | Tensor | tuple[Tensor, ...]],
    *,
    steps: int,
    features: int | None = None,
    k: int | None = None,
    layers: Layers = "last",
    lr: float = 2e-3,
    patience: int = PATIENCE,
    seed: int = 0,
    progress: Progress | None = None,
) -> Dictionary:
    """A dictionary of each stream's states after some layers ("last", "every", or layer numbers).

    `batch` gives the `srmlab.data.Batch` of a step, or its tokens [B, T] alone. "last" is the state that the
    output function reads; it and "every" include the post-steps, if there are any. By default there are 8
    features for each dimension of a stream, and an eighth as many as dimensions are in use at once.
    """
    model = streams_of(model, "a dictionary")
    if steps < 1:
        raise UserError(f"steps = {steps}: give 1 or more")
    if not 0 < lr < float("inf"):
        raise UserError(f"lr = {lr}: must be positive")
    dim = model.config.stream_dim
    config = DictionaryConfig(
        streams=len(model.streams),
        dim=dim,
        features=usual_features(dim) if features is None else features,
        k=usual_k(dim) if k is None else k,
        points=points_at(model, layers),
        model=model_mark(model),
    )
    dictionary = Dictionary(config, seed).to(model.device)
    optimizer = torch.optim.Adam(dictionary.parameters(), lr=lr)
    silent = torch.zeros(config.streams, config.features, device=model.device)  # states since it last fired
    variance = torch.ones(config.streams, device=model.device)
    for step in range(steps):
        states = states_of(model, as_batch(batch(step)).to(model.device), config.points)
        if step == 0:
            variance = settle(dictionary, states)
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (steps - step) / (COOLING * steps))
        codes = dictionary.encode(states)
        residual = (states - dictionary.decode(codes)).transpose(0, 1)  # [S, N, D]
        unexplained = residual.square().sum(-1).mean(1) / variance  # [S]
        if not bool(unexplained.isfinite().all()):
            raise UserError(f"the loss is not finite at step {step}: learn with less than lr = {lr:g}")
        optimizer.zero_grad()
        unexplained.sum().backward()
        optimizer.step()
        dictionary.normalise()
        silent = torch.where((codes > 0).any(0), 0.0, silent + len(states))
        dead = silent >= patience
        if bool(dead.any()) and steps - step > COOLING * steps:
            replace(dictionary, optimizer, residual.detach(), dead)
            silent[dead] = 0
        if progress is not None:
            progress(step + 1, unexplained.mean().item())
    return dictionary.eval()


def usual_features(dim: int) -> int:
    return 8 * dim


def usual_k(dim: int) -> int:
    return max(1, dim // 8)


def states_of(model: LanguageModel, batch: Batch, points: Sequence[str]) -> Tensor:
    """The states [N, S, D] of all tokens at all points, point by point."""
    found: list[Tensor] = []
    with model.evaluating():
        model.check_tokens(batch.tokens, documents=batch.documents)
        with model.hooks([(points, lambda value, _: found.append(stream_major(value).flatten(1, 2)))]):
            model.output_embedding(batch.tokens, documents=batch.documents)
    return torch.cat(found, dim=1).transpose(0, 1)


@torch.no_grad()
def settle(dictionary: Dictionary, states: Tensor) -> Tensor:
    """Start at the mean of the first states; the variance [S] around it."""
    states = states.transpose(0, 1)  # [S, N, D]
    dictionary.centre.copy_(states.mean(1))
    spread = states - dictionary.centre[:, None]
    return spread.square().sum(-1).mean(1).clamp(min=1e-12)


@torch.no_grad()
def replace(dictionary: Dictionary, optimizer: torch.optim.Adam, residual: Tensor, dead: Tensor) -> None:
    """Re-initialise dead features [S, F] along the residuals [S, N, D] of the states explained worst."""
    worst = torch.linalg.vector_norm(residual, dim=-1).argsort(dim=-1, descending=True)  # [S, N]
    for s in dead.any(1).nonzero().squeeze(1).tolist():
        features = dead[s].nonzero().squeeze(1)[: worst.shape[1]]
        direction = torch.nn.functional.normalize(residual[s, worst[s, : len(features)]], dim=-1)
        strength = torch.linalg.vector_norm(dictionary.encoder[s], dim=0)[~dead[s]]
        dictionary.directions[s, features] = direction
        dictionary.encoder[s, :, features] = direction.T * (strength.mean() if len(strength) else 1.0)
        dictionary.bias[s, features] = 0
        for parameter, places in (
            (dictionary.directions, (s, features)),
            (dictionary.encoder, (s, slice(None), features)),
            (dictionary.bias, (s, features)),
        ):
            for moment in ("exp_avg", "exp_avg_sq"):
                optimizer.state[parameter][moment][places] = 0
