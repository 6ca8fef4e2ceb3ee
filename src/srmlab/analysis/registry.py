"""The registry of analyses: each declares what it needs and what it is defined on, and `survey` runs them.

    >>> from srmlab.analysis import ANALYSES
    >>> [name for name, analysis in ANALYSES.items() if analysis.needs == "means"]
    ['ablation', 'ablation_everywhere', 'logit_lens', 'interaction']

An analysis registers itself, at the end of its file; your own can do so from anywhere, and is then known to
`survey` and to `srmlab analyze --only NAME` (tests/analysis/test_registry.py has a complete one):

    class Sizes(Result):
        kind: ClassVar[str] = "sizes"
        square: Annotated[np.ndarray, Measured("layer", "mean square of the state")]

    class SizeSums(Accumulator): ...

    srmlab.analysis.register(Analysis(Sizes, lambda request: SizeSums(request.model)))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from srmlab.analysis.capture import Accumulator, Batches
from srmlab.analysis.result import Result
from srmlab.errors import UserError, written_anew
from srmlab.models import LanguageModel

Need = Literal["states", "outputs", "means", "depth"]
PASSES: dict[Need, str] = {  # what an analysis needs → the pass that gives it, in the order of the passes
    "states": "states",  # whatever a pass computes
    "outputs": "outputs",  # the last state, in a pass that records no attention, so as fast as it gets
    "means": "outputs",  # that, and the mean states
    "depth": "depth",  # a pass of a deeper model
}
LENS_TOKENS = 4096


@dataclass(frozen=True)
class Request:
    """What an analysis is made from."""

    model: LanguageModel  # the one that runs; deeper than `trained` if that is what the analysis needs
    trained: LanguageModel
    batches: Batches
    results: Mapping[str, Result]  # of earlier passes, by name
    threshold: float = 0.10
    lens_tokens: int | None = LENS_TOKENS
    segment_depth: int | None = None  # of an unrolled puzzle model: the levels of a segment


def any_model(model: LanguageModel) -> bool:  # noqa: ARG001
    return True


def has_streams(model: LanguageModel) -> bool:
    """Whether each stream adds its own part to the output."""
    return model.stream_readout is not None


def has_exchanges(model: LanguageModel) -> bool:
    """Whether its streams exchange something at every level, and see the tokens again."""
    return bool(model.exchanges and model.calls) and model.input_site is not None


def has_patterns(model: LanguageModel) -> bool:
    """Whether its streams exchange by a pattern that can be looked at."""
    return bool(model.exchanges) and all(exchange.pattern for exchange in model.exchanges)


def has_stream_attention(model: LanguageModel) -> bool:
    """Whether the weights of that pattern are shares, which can be counted and add up to 1."""
    return has_patterns(model) and all(exchange.shares for exchange in model.exchanges)


def has_contributions(model: LanguageModel) -> bool:
    """Whether it says which calls move its state, and every token takes part in each of them."""
    return bool(model.calls) and not model.route_sites


@dataclass(frozen=True)
class Analysis:
    """An analysis, by the kind of its result."""

    result: type[Result]
    accumulator: Callable[[Request], Accumulator]
    defined_on: Callable[[LanguageModel], bool] = any_model
    needs: Need = "states"

    @property
    def name(self) -> str:
        return self.result.kind


ANALYSES: dict[str, Analysis] = {}


def register(analysis: Analysis) -> None:
    """Make an analysis known by the kind of its result, to `survey` and `srmlab analyze`, in place of an
    earlier version of itself.
    """
    if analysis.needs not in PASSES:
        raise UserError(f"{analysis.name} needs {analysis.needs!r}: choose one of {', '.join(PASSES)}")
    known = ANALYSES.get(analysis.name)
    if known is not None and not written_anew(known.result, analysis.result):
        raise UserError(f"there is an analysis called {analysis.name!r}: give its result another kind")
    ANALYSES[analysis.name] = analysis


def pattern_sites(model: LanguageModel, analysis: str) -> list[str]:
    """Where the patterns are by which streams read one another, if the model has them."""
    if not has_patterns(model):
        raise UserError(f"{analysis} needs a connection with a pattern, such as attention")
    return [exchange.pattern for exchange in model.exchanges if exchange.pattern]


def streams_of(model: LanguageModel, analysis: str) -> LanguageModel:
    """The model, if it has streams that add up to its output."""
    if not has_streams(model):
        raise UserError(f"{analysis} needs streams; {type(model).__name__} has none")
    return model
