"""The experiments themselves: what they compare is comparable, and can be built at every scale."""

import math
from dataclasses import replace

import pytest

from srmlab.errors import UserError
from srmlab.experiments import EXPERIMENTS, Cell, CellResult, SweepResult, experiment
from srmlab.experiments.catalogue import FLOP, GPT2, ORDERS, UPDATES
from srmlab.experiments.cells import sweep_model
from srmlab.experiments.jobs import make_jobs
from srmlab.experiments.results import Run
from srmlab.experiments.runs import Records
from srmlab.models import GPT2Config, SRMConfig, outline
from srmlab.training.config import TrainConfig
from srmlab.training.recipes import recipe

SCALES = ("mini", "small", "paper")
TEXT = {name: each for name, each in EXPERIMENTS.items() if not each.puzzles}  # the paper's is all of text


def parameters(cell) -> int:
    return outline(cell.model).num_parameters()


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
    training = TrainConfig(
        steps=600, batch_size=4, lr=4e-3, warmup=12, eval_every=600, eval_tokens=32_768, checkpoint_every=200,
        eval_windows="first",
    )  # fmt: skip
    text = {"vocab_size": 512, "context": 128}
    gpt2 = GPT2Config(**text, dim=48, blocks=4, heads=3, mlp_dim=192, dropout=0.0)
    srm = SRMConfig(
        **text, embedding_dim=64, streams=8, stream_dim=16, mlp_dim=64, token_heads=1, stream_heads=2,
        head_dim=16,
    )  # fmt: skip
    assert Cell(name="srm-med", model=srm, training=training).folder == "srm-924b841152"
    assert Cell(name="gpt2", model=gpt2, training=training).folder == "gpt2-c28ceacd58"
    spread = training.replace(eval_windows="spread")
    assert Cell(name="gpt2", model=gpt2, training=spread).folder != "gpt2-c28ceacd58"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_within_an_experiment_all_see_the_same_tokens_unless_they_are_to_cost_the_same(name):
    for scale in SCALES:
        cells = [cell for cell in experiment(name).cells(scale) if "equal FLOP" not in cell.series]
        seen = {c.training.steps * c.training.tokens_per_step(c.model.context) for c in cells}
        assert len(seen) == 1


@pytest.mark.parametrize("scale", ["mini", "small"])
@pytest.mark.parametrize("name", sorted(TEXT.keys() - {"stream-size", "training-depth"}))
def test_the_miniatures_keep_the_shape(name, scale):
    for cell in experiment(name).cells(scale):
        if isinstance(cell.model, SRMConfig):
            assert cell.model.depth == 8
            assert cell.model.streams >= 8 or cell.name.endswith(", 2 streams")
            assert cell.model.gradient_depth == (cell.x if cell.name.startswith("l = ") else 4)


@pytest.mark.parametrize("scale", ["mini", "small"])
def test_the_models_of_a_scale_have_the_same_parameters(scale):
    """But for SRM-base with half of them, as in the paper, and the transformer with SRM's FLOP."""
    cells = {cell.name: cell for cell in experiment("language-models").cells(scale)}
    sizes = {name: parameters(cell) / parameters(cells["srm-med"]) for name, cell in cells.items()}
    assert sizes.pop("srm-base") == pytest.approx(0.5, abs=0.005)
    if scale == "mini":
        assert 3 < sizes.pop("srm-large") < 3.5  # 3.4 in the paper
    large = cells[FLOP].model
    costs = [outline(m).flops_per_token(m.context).training for m in (large, cells["srm-med"].model)]
    assert costs[0] == pytest.approx(costs[1], rel=0.005)
    assert sizes.pop(FLOP) > 3
    assert list(sizes.values()) == pytest.approx([1] * len(sizes), abs=0.005)


@pytest.mark.parametrize("scale", ["mini", "small"])
@pytest.mark.parametrize("name", [one.name for one in EXPERIMENTS.values() if one.compares])
def test_every_cell_that_is_compared_on_a_cpu_searches_its_rate_and_validates_on_all_the_text(name, scale):
    for cell in experiment(name).cells(scale):
        assert cell.tuned
        assert cell.training.eval_windows == "spread"
        assert cell.training.warmup / cell.training.steps == pytest.approx(0.05, abs=0.001)


def test_the_small_scale_sees_ten_tokens_a_parameter():
    for cell in experiment("update-norms").cells("small"):
        tokens = cell.training.steps * cell.training.tokens_per_step(cell.model.context)
        assert 10 < tokens / parameters(cell) < 10.1


def test_only_the_models_meant_to_show_it_are_handicapped():
    for scale in ("mini", "small"):
        cells = {cell.name: cell.model.to_dict() for cell in experiment("language-models").cells(scale)}
        assert "init" not in cells["gpt2"]  # its default, 0.02
        assert cells[GPT2] == cells["gpt2"] | {"init": "width"}
        for name in ("hrm", "trm"):
            assert cells[f"{name}, x in both"] == cells[name] | {"x_enters": "both"}


@pytest.mark.parametrize("scale", SCALES)
def test_connections_are_compared_at_equal_parameters(scale):
    cells = experiment("connection").cells(scale)
    target = outline(
        sweep_model(scale)
    ).num_parameters()  # one unit more in every MLP of 16 streams is 0.8 % more at mini
    assert all(abs(parameters(cell) / target - 1) < 0.005 for cell in cells)
    kinds = [cell.model.connection for cell in cells]  # pyright: ignore
    assert set(kinds) == {"attention", "gate", "translation", "mixing", "addition", "none"}
    streams = {cell.model.streams for cell in cells}  # pyright: ignore
    assert streams == ({32} if scale == "paper" else {2, 8, 16})


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", sorted(EXPERIMENTS.keys() - TEXT.keys()))
def test_models_of_puzzles_are_compared_at_exactly_equal_parameters(name, scale):
    assert len({parameters(cell) for cell in experiment(name).cells(scale)}) == 1


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
    assert len({outline(model).num_parameters() for model in fixed}) == 1
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
        == folder("connection", "learned, 8 streams")
    )
    assert folder("language-models", "srm-med") == folder("learning-rates", "srm-med, 0.004")
    assert folder("language-models", "hrm, x in both") == folder("hrm-x", "hrm, x in both")
    assert folder("update-norms", UPDATES[0]) == folder("language-models", "srm-med")
    assert folder("backprop-depth", "l = 4") == folder("test-depth", "l = 4")
    assert folder("backprop-depth", "l = 4") != folder("backprop-depth", "l = 5")


def test_cells_that_are_the_same_are_run_once(tmp_path):
    """With 32 streams the paper's three sets meet in one model."""
    for scale, cells in (("mini", 18), ("paper", 21)):
        planned = [replace(cell, tuned=False) for cell in experiment("stream-size").cells(scale)]
        made = make_jobs(experiment("stream-size"), planned, 2, Records(tmp_path), tmp_path)
        assert len({job.run for job in made}) == len(made) == 2 * (cells - 2)


def test_a_seed_changes_weights_orders_and_data_and_not_the_folder():
    cell = experiment("step-ordering").cells("mini")[-1]
    one, two = cell.seeded(1), cell.seeded(2)
    assert (one.model.init_seed, one.model.order_seed, one.training.seed) == (1, 1, 1)  # pyright: ignore
    assert one.model != two.model
    assert one.folder == two.folder == cell.folder


def test_a_rehearsal_is_another_run_with_a_warm_up_of_its_size():
    whole = experiment("language-models").plan("mini")
    lengths = {cell.name: cell.training.steps for cell in experiment("training-depth").plan("mini", steps=60)}
    assert (lengths["n = 2"], lengths["n = 2, FLOP of n = 8"]) == (60, 145)  # longer by as much as before
    short = experiment("language-models").plan("mini", steps=10)
    for a, b in zip(whole, short, strict=True):
        assert b.training.steps == b.training.eval_every == 10
        assert b.training.warmup == round(10 * a.training.warmup / a.training.steps)
        assert a.folder != b.folder


CLAIMS = {
    "family": 13,
    "reasoning": 13,
    "reasoning-maze": 13,
    "reasoning-depth": 6,
    "training-depth": 11,
    "language-models": 7,
    "backprop-depth": 1,
    "pre-post-steps": 2,
    "step-ordering": 2,
    "stream-size": 2,
    "connection": 5,
    "hrm-x": 4,
    "update-norms": 1,
    "test-depth": 0,
    "optimizers": 2,
    "learning-rates": 0,
    "learned": 13,
    "transition": 8,
}


RATES = {2e-3: 9.0, 4e-3: 1.0, 8e-3: 9.0}


def outcome(
    name: str, losses: dict[str, tuple[float, ...]], rates=RATES, scale="mini", **training
) -> list[str]:
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
            training={"lr": 4e-3, "eval_windows": "spread"} | training,
            runs=[Run(seed, loss, loss, 1.0, []) for seed, loss in enumerate(losses[cell.name])],
            rates=rates,
        )
        for cell in made.cells(scale)
        if cell.name in losses
    ]
    return SweepResult(name, scale, 9, {}, {}, cells).verdict(made)


def around(loss: float, noise: float = 0.0005) -> tuple[float, ...]:
    """Three seeds that move all cells together, and a little noise."""
    return loss - 0.05, loss, loss + 0.05 + noise


def word(line: str) -> str:
    """The verdict of a claim's line."""
    return line.split("” ")[1].split(":")[0]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_each_claim_gets_a_word_even_of_one_run(name):
    first = experiment(name).cells("mini")[0].name
    said = outcome(name, {first: (3.0,)})
    undecided = [line for line in said if "” is undecided: " in line or line.startswith("Open, because")]
    assert sum(line.count("“") for line in undecided) == CLAIMS[name]


def test_the_papers_numbers_confirm_the_paper():
    table = {GPT2: 3.20, "hrm": 4.93, "srm-base": 3.18, "srm-med": 3.08, "srm-large": 2.96}
    said = outcome("language-models", {name: around(loss) for name, loss in table.items()})
    assert [word(line) for line in said[:4]] == ["holds"] * 4
    said = outcome("step-ordering", {name: around(loss) for name, loss in ORDERS.items()})
    assert [word(line) for line in said[:2]] == ["does not hold", "holds"]  # 0.02 apart, if without noise


def test_a_claim_may_fail_or_drown_in_noise():
    learned, addition = "learned, 8 streams", "addition, 8 streams"
    said = outcome("connection", {learned: around(3.5), addition: around(3.4)})
    assert word(said[0]) == "does not hold"
    said = outcome("connection", {learned: (3.4, 3.6), addition: (3.45, 3.5)})
    assert word(said[0]) == "is undecided"
    said = outcome("pre-post-steps", {"none": around(3.5), "pre": around(3.6), "post": around(3.501)})
    assert [word(line) for line in said[:2]] == ["holds", "holds"]


def test_no_effect_is_shown_or_not_claimed():
    close = {order: around(3.5 + 0.001 * i, 0.0001 * i) for i, order in enumerate(ORDERS)}
    assert word(outcome("step-ordering", close)[0]) == "holds"
    noisy = {order: around(3.5, 0.01 * i) for i, order in enumerate(ORDERS)}
    assert word(outcome("step-ordering", noisy)[0]) == "is undecided"
    alike = {update: around(3.5, 0.0001 * i) for i, update in enumerate(UPDATES)}
    assert word(outcome("update-norms", alike)[0]) == "does not hold"
    assert word(outcome("update-norms", alike | {"c + x": around(4.0)})[0]) == "holds"


@pytest.mark.parametrize(
    ("rates", "training", "reason"),
    [
        ({}, {}, "rates were not searched"),
        ({4e-3: 1.0, 8e-3: 9.0}, {}, "at the edge of its grid"),
        ({2e-3: math.inf, 4e-3: 1.0}, {}, "at the edge of its grid"),
        (RATES, {"eval_windows": "first"}, "validation read the head of the text"),
    ],
)
def test_runs_that_break_a_rule_decide_nothing(rates, training, reason):
    losses = {"learned, 8 streams": around(3.0), "addition, 8 streams": around(4.0)}
    said = outcome("connection", losses, rates, **training)
    assert word(said[0]) == "is undecided"
    assert reason in said[0]
    assert "-1.000 [-1.000, -1.000]" in said[0]  # what was found is still said


def test_returns_diminish_where_the_middle_is_below_the_mean_of_the_ends():
    bent = {"l = 1": around(4.0), "l = 4": around(3.1), "l = 8": around(3.0)}
    assert word(outcome("backprop-depth", bent)[0]) == "holds"
    straight = bent | {"l = 4": around(3.5)}
    assert word(outcome("backprop-depth", straight)[0]) == "does not hold"


def test_the_connection_is_judged_for_each_number_of_streams():
    losses = {f"{kind}, {s} streams": around(3.0) for kind in ("addition", "none") for s in (2, 8, 16)}
    losses |= {f"learned, {s} streams": around(2.9 if s == 8 else 3.1) for s in (2, 8, 16)}
    said = outcome("connection", losses)
    addition = [line for line in said if "better than addition" in line]
    assert [word(line) for line in addition] == ["does not hold", "holds", "does not hold"]
    assert all("(98.3 % interval)" in line for line in addition)  # three claims at once
    more = [line for line in said if "16 streams are better than 2" in line]
    assert [word(line) for line in more] == ["does not hold", "does not hold"]
    assert word(outcome("connection", losses | {"learned, 16 streams": around(2.8)})[3]) == "holds"


def test_the_share_of_hrms_gap_that_is_its_rate():
    losses = {"hrm, 0.0001": 5.0, "hrm, 0.001": 4.0, "srm-med, 0.001": 3.0}
    said = outcome("learning-rates", {name: (loss,) for name, loss in losses.items()}, scale="paper")
    assert "50% goes when HRM has the others' rate." in said[-1]


def test_a_misspelt_experiment_gets_the_nearest():
    with pytest.raises(UserError, match="did you mean 'step-ordering'"):
        experiment("step-order")


def test_a_depth_schedule_is_charged_for_the_depths_it_runs_and_a_longer_cell_costs_what_the_recipe_costs():
    cells = {cell.name: cell for cell in experiment("training-depth").cells("mini")}
    recipe = cells["n = 8"]
    assert cells["n = 4"].flops_per_token < cells["grow:2"].flops_per_token < recipe.flops_per_token
    for name in ("n = 2, FLOP of n = 8", "n = 4, FLOP of n = 8"):
        cost = cells[name].flops_per_token * cells[name].training.steps
        assert cost == pytest.approx(recipe.flops_per_token * recipe.training.steps, rel=1e-3)
