"""The experiments themselves: what they compare is comparable, and can be built at both scales."""

import pytest

from srmlab.errors import UserError
from srmlab.experiments import EXPERIMENTS, CellResult, SweepResult, experiment
from srmlab.experiments.catalogue import ORDERS
from srmlab.experiments.jobs import make_jobs
from srmlab.experiments.results import Run
from srmlab.models import SRMConfig, build
from srmlab.training.recipes import recipe

SCALES = ("mini", "paper")


def parameters(cell) -> int:
    return build(cell.model, device="meta").num_parameters()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_cell_can_be_built(name, scale):
    cells = experiment(name).cells(scale)
    assert len({cell.name for cell in cells}) == len(cells) > 1
    for cell in cells:
        assert parameters(cell) > 0
        assert cell.training.warmup <= cell.training.steps


def test_runs_made_before_are_found_again():
    """A cell's folder is a hash of its config: an option that is added must not rename what is off."""
    cells = {cell.name: cell.folder for cell in experiment("language-models").cells("mini")}
    assert cells["srm-med"] == "srm-924b841152"
    assert cells["gpt2"] == "gpt2-c28ceacd58"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_within_an_experiment_all_see_the_same_tokens(name):
    for scale in SCALES:
        cells = experiment(name).cells(scale)
        seen = {c.training.steps * c.training.tokens_per_step(c.model.context) for c in cells}
        assert len(seen) == 1


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "stream-size"])
def test_the_miniatures_keep_the_shape(name):
    for cell in experiment(name).cells("mini"):
        if isinstance(cell.model, SRMConfig):
            assert cell.model.depth == 8
            assert cell.model.streams >= 8
            assert cell.model.gradient_depth == (cell.x if cell.name.startswith("l = ") else 4)


def test_the_miniature_models_are_of_one_size():
    cells = {cell.name: parameters(cell) for cell in experiment("language-models").cells("mini")}
    for name in ("gpt2", "hrm", "srm-base"):
        assert abs(cells[name] / cells["srm-med"] - 1) < 0.13
    assert 3 < cells["srm-large"] / cells["srm-med"] < 3.5  # 3.4 in the paper


@pytest.mark.parametrize("scale", SCALES)
def test_connections_are_compared_at_equal_parameters(scale):
    sizes = [parameters(cell) for cell in experiment("connection").cells(scale)]
    assert max(sizes) / min(sizes) < 1.005


def test_the_papers_numbers_stand_beside_its_own_cells():
    printed = {cell.name: cell.paper for cell in experiment("language-models").cells("paper")}
    assert printed == {"gpt2": 3.20, "hrm": 4.93, "srm-base": 3.18, "srm-med": 3.08, "srm-large": 2.96}
    for cell in experiment("language-models").cells("paper"):
        assert cell.training == recipe(cell.name)
    orders = {cell.name: cell.paper for cell in experiment("step-ordering").cells("paper")}
    assert orders["ABCABC"] == 3.83
    assert orders["random:6"] == 3.87


def test_stream_sizes_hold_what_they_say():
    cells = {cell.name: cell.model for cell in experiment("stream-size").cells("mini")}
    fixed = [model for name, model in cells.items() if name.startswith("fixed parameter")]
    assert len({build(model, device="meta").num_parameters() for model in fixed}) == 1
    for name, model in cells.items():
        assert isinstance(model, SRMConfig)
        if name.startswith("fixed width"):
            assert (model.streams * model.stream_dim, model.streams * model.token_heads) == (256, 64)
        if name.startswith("fixed stream size"):
            assert (model.stream_dim, model.mlp_dim) == (8, 48)
    narrow = cells["fixed parameter, 8"]
    assert isinstance(narrow, SRMConfig)
    assert narrow.stream_dim == narrow.embedding_dim  # where the paper sees its jump


def test_a_shared_cell_is_one_run():
    def folder(name, cell):
        return next(c.folder for c in experiment(name).cells("mini") if c.name == cell)

    assert (
        folder("language-models", "srm-med")
        == folder("step-ordering", "ABC")
        == folder("connection", "learned")
    )
    assert folder("backprop-depth", "l = 4") == folder("test-depth", "l = 4")
    assert folder("backprop-depth", "l = 4") != folder("backprop-depth", "l = 5")


def test_cells_that_are_the_same_are_run_once(tmp_path):
    """With 32 streams the paper's three sets meet in one model."""
    for scale, cells in (("mini", 18), ("paper", 21)):
        made = make_jobs(
            experiment("stream-size"), experiment("stream-size").cells(scale), 2, tmp_path, tmp_path
        )
        assert len({job.run for job in made}) == len(made) == 2 * (cells - 2)


def test_a_seed_changes_weights_orders_and_data_and_not_the_folder():
    cell = experiment("step-ordering").cells("mini")[-1]
    one, two = cell.seeded(1), cell.seeded(2)
    assert (one.model.init_seed, one.model.order_seed, one.training.seed) == (1, 1, 1)  # pyright: ignore
    assert one.model != two.model
    assert one.folder == two.folder == cell.folder


def test_a_rehearsal_is_another_run_with_a_warm_up_of_its_size():
    whole = experiment("language-models").plan("mini")
    short = experiment("language-models").plan("mini", steps=10)
    for a, b in zip(whole, short, strict=True):
        assert b.training.steps == b.training.eval_every == 10
        assert b.training.warmup == round(10 * a.training.warmup / a.training.steps)
        assert a.folder != b.folder


CLAIMS = {
    "language-models": 3,
    "backprop-depth": 1,
    "pre-post-steps": 2,
    "step-ordering": 2,
    "stream-size": 2,
    "connection": 1,
    "test-depth": 0,
    "optimizers": 0,
    "learning-rates": 1,
}


def outcome(name: str, losses: dict[str, tuple[float, ...]]) -> list[str]:
    """The sentences an experiment says of such losses, by cell and seed; other cells have not been run."""
    made = experiment(name)
    cells = [
        CellResult(
            name=cell.name,
            series=cell.series,
            x=cell.x,
            paper=None,
            parameters=1,
            training_flops_per_token=1,
            tokens=1,
            model=cell.model.to_dict(),
            training={},
            runs=[Run(seed, loss, loss, 1.0, []) for seed, loss in enumerate(losses[cell.name])],
        )
        for cell in made.cells("mini")
        if cell.name in losses
    ]
    return SweepResult(name, "mini", 9, {}, {}, cells).verdict(made)


def around(loss: float) -> tuple[float, ...]:
    return loss - 0.005, loss, loss + 0.005


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_each_claim_gets_a_word_even_of_one_run(name):
    first = experiment(name).cells("mini")[0].name
    said = outcome(name, {first: (3.0,)})
    assert sum("cannot be told" in line for line in said) == CLAIMS[name]


def test_the_papers_numbers_confirm_the_paper():
    table = {"gpt2": 3.20, "hrm": 4.93, "srm-base": 3.18, "srm-med": 3.08, "srm-large": 2.96}
    said = outcome("language-models", {name: around(loss) for name, loss in table.items()})
    assert [line.split("” ")[1] for line in said[:3]] == ["holds here."] * 3
    said = outcome("step-ordering", {name: around(loss) for name, loss in ORDERS.items()})
    assert said[1] == "“random orders are slightly worse” holds here."


def test_a_claim_may_fail_or_drown_in_noise():
    said = outcome("connection", {"learned": around(3.5), "addition": around(3.4)})
    assert said[0] == "“a learned connection is better than addition” does not hold here."
    said = outcome("connection", {"learned": (3.4, 3.6), "addition": (3.45, 3.5)})
    assert said[0].endswith("cannot be told from these runs.")
    said = outcome("pre-post-steps", {"none": around(3.5), "pre": around(3.6), "post": around(3.501)})
    assert [line.split("” ")[1] for line in said[:2]] == ["holds here."] * 2


def test_the_share_of_hrms_gap_that_is_its_rate():
    losses = {"hrm, 0.0001": around(5.0), "hrm, 0.001": around(4.0), "srm-med, 0.001": around(3.0)}
    said = outcome("learning-rates", losses)
    assert said[0] == "“HRM is behind SRM, each at its best rate” holds here."
    assert "50% goes when HRM has the others' rate." in said[1]


def test_a_misspelt_experiment_gets_the_nearest():
    with pytest.raises(UserError, match="did you mean 'step-ordering'"):
        experiment("step-order")
