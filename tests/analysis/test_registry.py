"""An analysis of one's own registers from outside, and is then surveyed, saved and drawn like any other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import pytest
import torch

import srmlab
import srmlab.analysis
from srmlab.analysis import ANALYSES, Accumulator, Analysis, Mean, Measured, Request, Result, register
from srmlab.errors import UserError
from srmlab.figures import figures_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Lengths(Result):
    kind: ClassVar[str] = "lengths"

    square: Annotated[np.ndarray, Measured("layer stream", "mean square of a state")]
    output: Annotated[np.ndarray, Measured("", "mean square of the embedding")]


class LengthSums(Accumulator):
    def __init__(self, request: Request) -> None:
        config = request.model.config
        self.sites = [f"layers.{l}.out" for l in range(config.depth)]
        self.means = {"square": Mean(config.depth, config.streams), "output": Mean()}

    def begin(self, batch) -> None:  # noqa: ARG002
        self.rows: list[torch.Tensor] = []

    def see(self, name, value) -> None:  # noqa: ARG002
        self.rows.append(value.square().mean(-1).sum(1))  # [B, S]

    def end(self, batch, embedding) -> None:
        self.means["square"].add(batch, torch.stack(self.rows, 1))
        self.means["output"].add(batch, embedding.square().mean(-1).sum(1))

    def result(self, evidence) -> Lengths:
        return Lengths(evidence=evidence, **self.numbers())


def has_layers(model) -> bool:
    return "layers.0.out" in model.sites


@pytest.fixture
def lengths() -> Iterator[Analysis]:
    analysis = Analysis(Lengths, LengthSums, has_layers)
    register(analysis)
    yield analysis
    del ANALYSES["lengths"]


@pytest.mark.usefixtures("lengths")
def test_an_analysis_of_ones_own_is_surveyed_with_the_others(model, batches):
    found = srmlab.analysis.survey(model, batches, only=["lengths", "routing"])
    assert list(found) == ["routing", "lengths"]
    np.testing.assert_allclose(found["lengths"].square, 1, atol=1e-3)  # states are normed
    assert (found["lengths"].standard_error("output") > 0).all()


@pytest.mark.usefixtures("lengths")
def test_it_is_read_drawn_and_written_without_words_or_figures_of_its_own(model, batches, tmp_path):
    result = srmlab.analysis.survey(model, batches, only=["lengths"])["lengths"]
    again = srmlab.analysis.load(result.save(tmp_path / "lengths"))
    assert again.headline() == result.headline()
    assert "output" in result.headline()
    assert "±" in result.summary()
    assert "over layer, stream" in result.summary()
    assert len(result.figure().axes) == 3  # two panels and a colour bar
    assert list(figures_of("lengths")) == ["lengths"]
    (table,) = result.to_pgfplots(tmp_path, "x")
    assert table.read_text().splitlines()[0] == "layer stream square"


@pytest.mark.usefixtures("lengths")
def test_it_is_refused_where_it_is_not_defined(batches):
    model = srmlab.build(srmlab.preset("gpt2-nano"))
    assert "lengths" not in srmlab.analysis.survey(model, [batch % 64 for batch in batches])
    with pytest.raises(UserError, match="lengths needs a model that has layers; GPT2 has drift"):
        srmlab.analysis.survey(model, batches, only=["lengths"])


class Widths(Result):
    kind = "widths"


def test_two_analyses_of_one_name_are_refused(lengths, monkeypatch):
    monkeypatch.setattr(Widths, "kind", "lengths")
    with pytest.raises(UserError, match="there is an analysis called 'lengths'"):
        register(Analysis(Widths, LengthSums))
    assert ANALYSES["lengths"] is lengths


@pytest.mark.usefixtures("lengths")
def test_an_analysis_may_be_written_anew_as_in_a_notebook():
    again = Analysis(Lengths, LengthSums)
    register(again)
    assert ANALYSES["lengths"] is again


def test_an_unknown_need_is_refused():
    with pytest.raises(UserError, match="choose one of states, outputs, means, depth"):
        register(Analysis(Lengths, LengthSums, needs="gradients"))  # pyright: ignore[reportArgumentType]
