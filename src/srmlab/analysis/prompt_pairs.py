"""Prompt pairs for patching: a clean and a corrupt prompt of equal length, and metrics of how far apart their
predictions are.

    >>> import torch
    >>> metric = logit_difference(right=torch.tensor([1]), wrong=torch.tensor([0]))
    >>> metric(torch.tensor([[[0.0, 0.0], [1.0, 3.0]]])).tolist()   # logits of one pair, two tokens, two ids
    [2.0]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from srmlab.analysis.bootstrap import DRAWS, bootstrapped, error_of_known, mean_of_known
from srmlab.analysis.capture import evidence_of, place
from srmlab.analysis.interventions import Hook
from srmlab.analysis.readout import kl_divergence
from srmlab.analysis.result import Array, Derived, Evidence, Result
from srmlab.data.tokenizers import Padded
from srmlab.errors import UserError, check_choice
from srmlab.models import LanguageModel, Point

Side = Literal["corrupt", "clean"]
Metric = Callable[[Tensor], Tensor]  # logits [pair, token, V] → a number for each pair
Prompts = Tensor | Padded
Cell = TypeVar("Cell")
Found = TypeVar("Found", bound=Result)
LOGIT_BYTES = 64 * 2**20  # held at once
ROWS = 128  # prompts in one pass


class Patched:
    """What results of patching have in common; `share` and `null` are by cell of their grid."""

    evidence: Evidence
    into: Side
    share: ClassVar[Derived[Array]]
    null: ClassVar[Derived[Array]]
    text: Callable[..., str]  # of a result
    before: Array
    goal: Array

    def of_difference(self, change: Array) -> Array:
        """A change of the metric as a share of what the two prompts differ by; NaN if they do not."""
        whole = np.broadcast_to(self.goal - self.before, change.shape)
        return np.divide(change, whole, out=np.full(change.shape, np.nan), where=whole != 0)

    @property
    def other(self) -> Side:
        """Which of the two prompts gives its states."""
        return "clean" if self.into == "corrupt" else "corrupt"

    @property
    def pairs(self) -> str:
        return f"{self.evidence.sequences} pair{'s' * (self.evidence.sequences != 1)}"

    @property
    def ranking(self) -> list[tuple[int, int, int]]:
        """Cells from the greatest absolute share to the least."""
        order = np.argsort(-np.abs(np.nan_to_num(self.share)), axis=None, kind="stable")
        layers, rows, columns = (part.tolist() for part in np.unravel_index(order, self.share.shape))
        return list(zip(layers, rows, columns, strict=True))

    def strongest(self, form: str, name: Callable[[tuple[int, int, int]], str]) -> list[str]:
        """The eight cells with the greatest share, each beside its null."""
        known = np.isfinite(self.null).any()
        beside = f"; another {self.into} prompt's " if known else ""
        cells = self.ranking[:8]
        shares = [self.text("share", form, at) for at in cells]
        lines = []
        for at, share in zip(cells, shares, strict=True):
            null = self.text("null", form, at) if known else ""
            lines.append(f"  {share:>{max(map(len, shares))}}  {name(at)}{beside}{null}")
        return lines if known else [*lines, "  no null: it needs a second pair, whose state is patched in"]


# --- metrics ------------------------------------------------------------------------------------------------


def logit_difference(right: Tensor, wrong: Tensor) -> Metric:
    """The logit of each pair's `right` token less that of its `wrong` one [pair], after the last token."""
    right, wrong = _ids("right", right), _ids("wrong", wrong)
    return lambda logits: _picked(logits[:, -1], right) - _picked(logits[:, -1], wrong)


def log_probability(right: Tensor) -> Metric:
    """The log-probability in nats of each pair's token `right` [pair], after the last token."""
    right = _ids("right", right)
    return lambda logits: _picked(logits[:, -1].float().log_softmax(-1), right)


def kl_from(reference: Tensor) -> Metric:
    """KL in nats from the prediction of the logits `reference` [pair, token, V], after the last token."""
    log_p = reference[:, -1].detach().float().log_softmax(-1)
    return lambda logits: kl_divergence(log_p, logits[:, -1].float().log_softmax(-1))


def _ids(name: str, tokens: Tensor) -> Tensor:
    if not isinstance(tokens, Tensor) or tokens.ndim != 1 or tokens.is_floating_point():
        given = list(tokens.shape) if isinstance(tokens, Tensor) else repr(tokens)
        raise UserError(
            f"{name} = {given}: give ids [pair], such as torch.tensor([model.to_single_token(text)])"
        )
    return tokens


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
    """Prompts that are changed, [P, T], those whose states are put in, and what is measured of them."""

    model: LanguageModel
    metric: Metric
    changed: Tensor
    giving: Tensor
    real: Tensor  # [P, T] what is not padding

    @staticmethod
    def of(model: LanguageModel, clean: Prompts, corrupt: Prompts, into: Side, metric: Metric) -> Pairs:
        check_choice("into", into, get_args(Side))
        (tokens, real), (others, real_too) = (_with_mask(given, model.device) for given in (clean, corrupt))
        if tokens.shape != others.shape or not real.equal(real_too):
            raise UserError(
                f"clean {list(tokens.shape)} and corrupt {list(others.shape)}: the two prompts of a pair "
                "need equally many tokens"
            )
        model.check_tokens(tokens)
        if not bool(real[:, -1].all()):
            raise UserError("pad prompts on the left, as tokenizer(texts) does")
        return Pairs(model, metric, *((others, tokens) if into == "corrupt" else (tokens, others)), real)

    @property
    def count(self) -> int:
        return len(self.changed)

    @property
    def position_names(self) -> tuple[str, ...]:
        return tuple(f"−{back}" for back in range(self.changed.shape[1], 0, -1))

    @property
    def evidence(self) -> Evidence:
        text = evidence_of(place(tokens, torch.device("cpu")) for tokens in (self.changed, self.giving))
        return Evidence(int(self.real.sum()), self.count, text.fingerprint)

    def options(self, times: int = 1) -> dict[str, Any]:
        """What a pass over the pairs, so many times, needs besides tokens."""
        return {} if bool(self.real.all()) else {"attention_mask": self.real.repeat(times, 1)}

    def positions(self, real: Tensor, times: int = 1) -> Tensor:
        """[times · pair, positions, 1] Where states may be put in: at tokens that are `real` [P, T], and at
        what a board has before its cells."""
        before = self.model.config.puzzle_positions
        return torch.nn.functional.pad(real, (before, 0), value=True).repeat(times, 1)[..., None]

    def ends(self) -> tuple[Tensor, Tensor]:
        """[pair] The metric of the prompts that are changed, and of the others."""
        with self.model.evaluating():
            changed, giving = (
                measure(self.metric, self.model(tokens, **self.options()))
                for tokens in (self.changed, self.giving)
            )
        return changed.cpu(), giving.cpu()

    def states(self, tokens: Tensor, points: Sequence[Point]) -> list[Tensor]:
        """The state [P, T, S, D] of either prompts at some points."""
        with self.model.evaluating():
            sites = [site for point in points for site in point.sites]
            _, cache = self.model.run_with_cache(tokens, sites, **self.options())
        return [self.model.state_at(point, cache) for point in points]

    def batched(self, cells: Sequence[Cell]) -> Iterator[Sequence[Cell]]:
        """As many cells at a time as fit into one pass, which reads the pairs once for each."""
        logits = 4 * self.changed.numel() * self.model.config.vocab_size  # bytes
        size = max(1, min(ROWS // self.count, LOGIT_BYTES // logits))
        yield from (cells[i : i + size] for i in range(0, len(cells), size))

    def patched(self, hooks: Sequence[Hook], cells: int) -> Tensor:
        """[cell, pair] The metric of one pass over all pairs, once for each of `cells`, under hooks."""
        tokens = self.changed.repeat(cells, 1)
        with self.model.evaluating(), self.model.hooks(hooks):
            logits = self.model(tokens, **self.options(cells)).unflatten(0, (cells, self.count))
            return torch.stack([measure(self.metric, one) for one in logits]).cpu()

    def with_null(
        self, points: Sequence[Point], null: bool, measured: Callable[[list[Tensor], Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """[pair, …] What is measured with the other prompts' states put in at some points; and with those of
        another pair's prompt of the kind that is changed (NaN of one pair, or if not asked for). `measured`
        gets the states and where they are not padding [P, T]."""
        change = measured(self.states(self.giving, points), self.real)
        if not null or self.count == 1:
            return change, torch.full_like(change, torch.nan)
        others = [state.roll(1, 0) for state in self.states(self.changed, points)]
        return change, measured(others, self.real & self.real.roll(1, 0))

    def result(self, by_pair: Mapping[str, Tensor], make: Callable[..., Found], **known: Any) -> Found:
        """The result of means over pairs; standard errors of means from their spread, of what is derived from
        pairs drawn anew."""
        arrays, count = {name: values.numpy() for name, values in by_pair.items()}, self.count
        found = make(evidence=self.evidence, **known, **_means(arrays))
        if count < 2:
            return found
        generator = np.random.default_rng(0)

        def samples() -> Iterator[Found]:
            for _ in range(DRAWS):
                rows = generator.integers(count, size=count)
                drawn = _means({name: values[rows] for name, values in arrays.items()})
                yield dataclasses.replace(found, **drawn)

        errors = {name: error_of_known(values) for name, values in arrays.items()}
        return dataclasses.replace(found, errors=errors | bootstrapped(found, samples(), count))


def _with_mask(given: Prompts, device: torch.device) -> tuple[Tensor, Tensor]:
    if isinstance(given, Padded):
        return given.tokens.to(device), given.attention_mask.to(device).bool()
    if not isinstance(given, Tensor):
        raise UserError(f"prompts are ids [pair, token] or tokenizer(texts), not {type(given).__name__}")
    return given.to(device), torch.ones(given.shape, dtype=torch.bool, device=device)


def _means(by_pair: dict[str, Array]) -> dict[str, Any]:
    return {name: mean_of_known(values) for name, values in by_pair.items()}
