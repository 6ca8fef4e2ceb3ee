"""Which statistics training moves: each run next to the weights it began from, judged over seeds."""

import pytest
from measured_runs import measured

import srmlab
from srmlab.analysis import survey
from srmlab.experiments import CellResult, SweepResult, experiment
from srmlab.experiments.learned import STATISTICS, judge, nano, table
from srmlab.experiments.measures import measure
from srmlab.experiments.results import Run
from srmlab.models import SRMConfig, outline
from srmlab.training.config import TrainConfig

MODEL = SRMConfig(
    vocab_size=257, context=16, embedding_dim=8, streams=3, stream_dim=8, mlp_dim=16,
    token_heads=2, head_dim=4, stream_heads=2, depth=3, gradient_depth=2, init_seed=5,
)  # fmt: skip
NAME = "cos(c, x)"


def cell(streams: int, *pairs: tuple[float, float]) -> CellResult:
    """Runs in which every statistic has these values, trained and untrained."""
    runs = [
        Run(seed, 2.0, 2.0, 60.0, [(1, 2.0)], learned=dict.fromkeys(STATISTICS, pair))
        for seed, pair in enumerate(pairs)
    ]
    training = TrainConfig().to_dict()
    return CellResult(f"{streams} streams", "", streams, None, 1, 1, 1, MODEL.to_dict(), training, runs)


def result(*cells: CellResult) -> SweepResult:
    about = {"source": "words", "vocab_size": 257, "fingerprint": "f"}
    return SweepResult("learned", "mini", 9, about, {"srmlab": "0"}, list(cells))


def everywhere(
    pairs: list[tuple[float, float]], last: list[tuple[float, float]] | None = None
) -> SweepResult:
    """The same at every number of streams, but for the last."""
    return result(cell(8, *pairs), cell(16, *pairs), cell(32, *(last or pairs)))


def verdicts(found: SweepResult) -> dict[str, str]:
    return {name: claim.verdict for name, claim in zip(STATISTICS, judge(found), strict=True)}


UP = [(0.5, 0.1), (0.51, 0.1), (0.49, 0.1)]
DOWN = [(untrained, trained) for trained, untrained in UP]


def test_a_claim_holds_if_every_number_of_streams_moves_its_way():
    found = verdicts(everywhere(UP))
    for name, statistic in STATISTICS.items():
        assert found[name] == ("holds" if statistic.up else "does not hold")
    assert verdicts(everywhere(UP, last=DOWN))[NAME] == "does not hold"
    assert verdicts(everywhere(UP, last=[(0.5, 0.1), (0.1, 0.5)]))[NAME] == "undecided"
    assert verdicts(everywhere(UP, last=[(0.5, 0.1)]))[NAME] == "undecided"  # one seed


def test_a_claim_waits_for_every_number_of_streams():
    part = result(cell(8, *UP), cell(16, *UP))
    assert verdicts(part)[NAME] == "undecided"
    assert all(claim.missing == "32 streams" for claim in judge(part) if claim.verdict == "undecided")
    assert verdicts(result(cell(8, *DOWN)))[NAME] == "does not hold"  # whatever the others will be


def test_a_clear_difference_counts_however_small_and_one_around_zero_does_not():
    tiny = [(0.101, 0.1), (0.102, 0.1), (0.1015, 0.1)]
    assert verdicts(everywhere(tiny))[NAME] == "holds"  # small, but beyond its interval
    none = [(0.101, 0.1), (0.099, 0.1), (0.1, 0.1)]
    assert verdicts(everywhere(none))[NAME] == "does not hold"


def test_the_number_that_decides_is_legible_however_small():
    claims = judge(everywhere([(1.0e-4, 5.2e-4), (1.1e-4, 5.3e-4), (1.0e-4, 5.2e-4)]))
    assert "-0.000420 [-0.000420, -0.000420] over 3 seeds" in claims[0].because


def test_a_claim_that_must_hold_everywhere_has_the_usual_interval_anywhere():
    assert verdicts(everywhere([(0.5, 0.1), (0.3, 0.1), (0.4, 0.1)]))[NAME] == "holds"  # not at 98.3 %


def test_the_second_table_has_a_row_for_every_statistic():
    found = result(cell(8, *UP), cell(16, *DOWN))
    heads, *rows = table(found)
    assert heads[1:] == ["8 streams", "16 streams"]
    assert [row[0] for row in rows] == list(STATISTICS)
    assert rows[0][1] == "0.500, 0.100: +0.400 [+0.375, +0.425]"
    assert "| 8 streams | 16 streams |" in found.markdown(experiment("learned"))


def test_a_run_is_measured_next_to_the_weights_it_began_from(tmp_path):
    model, batches, found = measured(tmp_path, MODEL, "learned")
    assert list(found) == list(STATISTICS)
    for position, one in enumerate((model, srmlab.build(MODEL))):
        whole = survey(one, batches, only=["routing", "alignment"])
        assert found[NAME][position] == pytest.approx(whole["alignment"].mean, abs=1e-12)  # pyright: ignore
        hub = found["the most-read stream: share of edges over 0.10"][position]
        assert hub == pytest.approx(whole["routing"].outgoing.max(), abs=1e-12)  # pyright: ignore
    assert len({pair[0] == pair[1] for pair in found.values()}) > 1  # training is seen

    (tmp_path / "run" / "learned.json").write_text("{}")
    measure(tmp_path / "run", str(tmp_path / "data"), ["learned"])
    assert (tmp_path / "run" / "learned.json").read_text() == "{}"  # what is there is kept


def test_eight_streams_are_the_demo_s_model_and_the_paper_s_are_its_three():
    first, *_ = experiment("learned").cells("mini")
    assert first.model == srmlab.preset("srm-nano")
    assert {outline(nano(s)).config.streams * nano(s).stream_dim for s in (8, 16, 32)} == {256}  # pyright: ignore
    paper = {int(one.x or 0): one.model for one in experiment("learned").cells("paper")}
    assert {s: model.streams for s, model in paper.items()} == {8: 8, 16: 16, 32: 32}  # pyright: ignore
    assert all(not one.tuned for one in experiment("learned").cells("mini"))
