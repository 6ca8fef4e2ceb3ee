"""The report's findings are computed from results, and each is said beside its null."""

from __future__ import annotations

import shutil

import pytest
import torch

import srmlab
from srmlab import analysis
from srmlab.analysis.null import twins
from srmlab.explorer.story import FINDINGS, load_results, story
from subjects import SMALL

KINDS = ["ablation", "routing", "depth", "drift", "effective_sources", "stream_similarity"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Results of a model, and of two twins, as `srmlab analyze` leaves them."""
    where = tmp_path_factory.mktemp("run") / "analysis"
    model = srmlab.build(SMALL).eval()
    batches = [torch.arange(64).view(2, 32)]
    for place, subject in [
        (where, model),
        *((where / "null" / f"seed-{s}", twin.eval()) for s, twin in twins(model, 2)),
    ]:
        for kind, result in analysis.survey(subject, batches, only=KINDS).items():
            result.save(place / kind)
    return where


def test_there_are_five_findings_each_of_another_analysis_with_numbers_and_a_null(folder):
    found = story(*load_results(folder))
    assert len(found) == FINDINGS == len({finding.kind for finding in found})
    for finding in found:
        assert any(letter.isdigit() for letter in finding.text)
        assert finding.null is not None
        assert len(finding.null.twins) == 2


def test_what_an_untrained_model_shows_is_never_called_learned(folder):
    results, others = load_results(folder)
    same = {kind: [result, *others[kind]] for kind, result in results.items()}
    for finding in story(results, same):
        assert "so this need not be learned" in finding.sure, finding


def test_without_twins_a_finding_says_that_it_has_no_null(folder):
    results, _ = load_results(folder)
    for finding in story(results, {}):
        assert "--null 3" in finding.sure


def test_what_was_not_measured_is_not_told(folder):
    results, others = load_results(folder)
    only = {"routing": results["routing"]}
    (finding,) = story(only, others)
    top = int(results["routing"].outgoing.argmax())
    assert finding.text.startswith(f"S{top} is the stream")


def test_twins_measured_on_another_text_or_by_another_threshold_are_no_null(folder, tmp_path):
    """They are left from an earlier `srmlab analyze`."""
    shutil.copytree(folder, tmp_path / "analysis")
    model, here = srmlab.build(SMALL).eval(), tmp_path / "analysis"
    analysis.ablation(model, [torch.arange(96).view(3, 32)]).save(here / "ablation")
    analysis.routing(model, [torch.arange(64).view(2, 32)], threshold=0.3).save(here / "routing")
    _, others = load_results(here)
    assert {kind: len(found) for kind, found in others.items() if kind in KINDS} == {
        **dict.fromkeys(KINDS, 2),
        "ablation": 0,
        "routing": 0,
    }
