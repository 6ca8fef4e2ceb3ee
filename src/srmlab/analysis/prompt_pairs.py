"""Pairs of prompts for patching: a clean and a corrupt one of equal length, and how far apart a metric finds
their predictions.

    >>> import torch
    >>> metric = logit_difference(right=torch.tensor([1]), wrong=torch.tensor([0]))
    >>> metric(torch.tensor([[[0.0, 0.0], [1.0, 3.0]]])).tolist()   # logits of one pair, two tokens, two ids
    [2.0]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.bootstrap import DRAWS, bootstrapped, error_of_known, mean_of_known
from srmlab.analysis.capture import EvidenceSums, place
from srmlab.analysis.interventions import Hook
from srmlab.analysis.readout import kl_divergence
from srmlab.analysis.result import Array, Evidence, Result
from srmlab.data.tokenizers import Padded
from srmlab.errors import UserError
from srmlab.models import LanguageModel

Side = Literal["corrupt", "clean"]
Metric = Callable[[Tensor], Tensor]  # logits [pair, token, V] → a number for each pair
Prompts = Tensor | Padded
Progress = Callable[[int, int], None]  # how many cells are done, and of how many
Cell = TypeVar("Cell")
Found = TypeVar("Found", bound=Result)
LOGIT_BYTES = 64 * 2**20  # held at once
ROWS = 128  # prompts in one pass


# --- metrics ------------------------------------------------------------------------------------------------


def logit_difference(right: Tensor, wrong: Tensor) -> Metric:
    """The logit of each pair's `right` token less that of its `wrong` one [pair], after the last token."""
    return lambda logits: _picked(logits[:, -1], right) - _picked(logits[:, -1], wrong)


def log_probability(right: Tensor) -> Metric:
    """The log-probability in nats of each pair's token `right` [pair], after the last token."""
    return lambda logits: _picked(logits[:, -1].float().log_softmax(-1), right)


def kl_from(reference: Tensor) -> Metric:
    """KL in nats from the prediction of the logits `reference` [pair, token, V], after the last token."""
    log_p = reference[:, -1].detach().float().log_softmax(-1)
    return lambda logits: kl_divergence(log_p, logits[:, -1].float().log_softmax(-1))


def _picked(values: Tensor, tokens: Tensor) -> Tensor:
    return values.gather(-1, tokens.to(values.device)[:, None]).squeeze(-1)


def measure(metric: Metric, logits: Tensor) -> Tensor:
    """[pair] in fp64, checked."""
    found = metric(logits)
    if not isinstance(found, Tensor) or found.shape != logits.shape[:1]:
        shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise UserError(f"the metric gave {shape}: it must give [{len(logits)}], a number for each pair")
    return found.double()


# --- pairs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pairs:
    """Prompts that are changed, [P, T], and those whose states are put in."""

    changed: Tensor
    giving: Tensor
    real: Tensor  # [P, T] what is not padding

    @staticmethod
    def of(model: LanguageModel, clean: Prompts, corrupt: Prompts, into: Side) -> Pairs:
        if into not in get_args(Side):
            raise UserError(f'into = {into!r}: must be "corrupt" or "clean"')
        (tokens, real), (others, real_too) = (_with_mask(given, model.device) for given in (clean, corrupt))
        if tokens.shape != others.shape or not real.equal(real_too):
            raise UserError(
                f"clean {list(tokens.shape)} and corrupt {list(others.shape)}: the two prompts of a pair "
                "need equally many tokens"
            )
        model.check_tokens(tokens)
        if not bool(real[:, -1].all()):
            raise UserError("pad prompts on the left, as tokenizer(texts) does it")
        return Pairs(*((others, tokens) if into == "corrupt" else (tokens, others)), real)

    @property
    def count(self) -> int:
        return len(self.changed)

    def options(self, times: int = 1) -> dict[str, Any]:
        """What a pass over the pairs, so many times, needs besides tokens."""
        return {} if bool(self.real.all()) else {"attention_mask": self.real.repeat(times, 1)}

    def ends(self, model: LanguageModel, metric: Metric) -> tuple[Tensor, Tensor]:
        """[pair] The metric of the prompts that are changed, and of the others."""
        with model.evaluating():
            changed, giving = (
                measure(metric, model(tokens, **self.options())) for tokens in (self.changed, self.giving)
            )
        return changed.cpu(), giving.cpu()

    @property
    def position_names(self) -> tuple[str, ...]:
        return tuple(f"−{back}" for back in range(self.changed.shape[1], 0, -1))

    @property
    def evidence(self) -> Evidence:
        text = EvidenceSums()
        for tokens in (self.changed, self.giving):
            text.begin(place(tokens, torch.device("cpu")))
        return Evidence(int(self.real.sum()), self.count, text.result().fingerprint)


def _with_mask(given: Prompts, device: torch.device) -> tuple[Tensor, Tensor]:
    if isinstance(given, Padded):
        return given.tokens.to(device), given.attention_mask.to(device).bool()
    if not isinstance(given, Tensor):
        raise UserError(f"prompts are ids [pair, token] or tokenizer(texts), not {type(given).__name__}")
    return given.to(device), torch.ones(given.shape, dtype=torch.bool, device=device)


# --- many changes of the same prompts in one pass -----------------------------------------------------------


def patched(model: LanguageModel, pairs: Pairs, metric: Metric, hooks: Sequence[Hook], cells: int) -> Tensor:
    """[cell, pair] The metric of one pass over all pairs, once for each of `cells`, under hooks."""
    tokens = pairs.changed.repeat(cells, 1)
    with model.evaluating(), model.hooks(hooks):
        logits = model(tokens, **pairs.options(cells)).unflatten(0, (cells, pairs.count))
        return torch.stack([measure(metric, one) for one in logits]).cpu()


def batched(model: LanguageModel, pairs: Pairs, cells: Sequence[Cell]) -> Iterator[Sequence[Cell]]:
    """As many cells at a time as fit into one pass."""
    logits = 4 * pairs.changed.numel() * model.config.vocab_size  # bytes
    size = max(1, min(ROWS // pairs.count, LOGIT_BYTES // logits))
    yield from (cells[i : i + size] for i in range(0, len(cells), size))


# --- errors over pairs --------------------------------------------------------------------------------------


def with_errors(by_pair: dict[str, Array], make: Callable[[dict[str, Any]], Found]) -> Found:
    """The result of means over pairs; standard errors of means from their spread, of what is derived from
    pairs drawn anew."""
    count = len(by_pair["before"])
    found = make(_means(by_pair))
    if count < 2:
        return found
    generator = np.random.default_rng(0)

    def samples() -> Iterator[Found]:
        for _ in range(DRAWS):
            rows = generator.integers(count, size=count)
            yield make(_means({name: values[rows] for name, values in by_pair.items()}))

    errors = {name: error_of_known(values) for name, values in by_pair.items()}
    return make(_means(by_pair) | {"errors": errors | bootstrapped(found, samples(), count)})


def _means(by_pair: dict[str, Array]) -> dict[str, Any]:
    return {name: mean_of_known(values) for name, values in by_pair.items()}


def counted(pairs: int) -> str:
    return f"{pairs} pair{'s' * (pairs != 1)}"


def ranked(share: Array) -> list[tuple]:
    order = np.argsort(-np.abs(np.nan_to_num(share)), axis=None, kind="stable")
    return [tuple(map(int, np.unravel_index(i, share.shape))) for i in order]


def pearson(a: Array, b: Array) -> float:
    """Over the cells that both have; NaN if one of them does not vary."""
    known = np.isfinite(a) & np.isfinite(b)
    x, y = a[known], b[known]
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])
