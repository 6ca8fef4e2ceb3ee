"""The experiments: the paper's tables and sweeps, and the questions it leaves open.

    >>> [cell.name for cell in experiment("step-ordering").cells("mini")][:3]
    ['ABC', 'ABCA', 'ABCABC']

Each has two scales. "paper" is the paper's own setting, for GPUs and OpenWebText. "mini" keeps the shape
(eight layers, gradient through the last four, at least eight streams) and shrinks every dimension until a
run takes a few minutes on one core.
"""

from __future__ import annotations

from typing import Any

from srmlab.errors import UserError, nearest
from srmlab.experiments.experiment import Cell, Experiment, Scale
from srmlab.experiments.results import SweepResult, holds
from srmlab.models import GPT2Config, HRMConfig, ModelConfig, SRMConfig, build, preset
from srmlab.models.srm import srm_base
from srmlab.training.config import TrainConfig
from srmlab.training.recipes import recipe

MINI: dict[str, Any] = {"vocab_size": 512, "context": 128}
MINI_RATE = 4e-3  # the best of RATES for HRM and SRM-med, as the experiment learning-rates found
RATES = (1e-4, 1e-3, 4e-3, 1.6e-2)


# --- the models in miniature ------------------------------------------------------------------------------


def mini_med() -> SRMConfig:
    """SRM-med in miniature: eight streams, ABC."""
    return SRMConfig(
        **MINI,
        embedding_dim=64,
        streams=8,
        stream_dim=16,
        mlp_dim=64,
        token_heads=1,
        stream_heads=2,
        head_dim=16,
    )


def mini_base() -> SRMConfig:
    """SRM-base in miniature: as wide in all, twice as many narrow streams, six steps and a post-step."""
    return mini_med().replace(streams=16, stream_dim=8, mlp_dim=48, head_dim=8, order="ABCABC", post_steps=1)


def mini_large() -> SRMConfig:
    """SRM-large in miniature: three times the parameters, six step functions."""
    return mini_med().replace(streams=16, stream_heads=4, step_functions=6, order="ABCDEF")


def mini_hrm() -> HRMConfig:
    """HRM with SRM-med's parameters."""
    return HRMConfig(**MINI, dim=48, heads=3, head_dim=16, mlp_dim=192, low_blocks=2, high_blocks=2)


def mini_trm() -> HRMConfig:
    """TRM, wider: its one net has half of HRM's blocks."""
    return mini_hrm().replace(
        dim=64, heads=4, mlp_dim=256, low_cycles=6, shared_net=True, gradient="last-cycle"
    )


def mini_gpt2() -> GPT2Config:
    """GPT-2 with SRM-med's parameters."""
    return GPT2Config(**MINI, dim=48, blocks=4, heads=3, mlp_dim=192, dropout=0.0)


def mini_training(lr: float = MINI_RATE, warmup: float = 0.02, steps: int = 600) -> TrainConfig:
    """600 steps of 512 tokens, at a constant rate after a warm-up, as in the paper."""
    return TrainConfig(
        steps=steps,
        batch_size=4,
        lr=lr,
        warmup=round(warmup * steps),
        eval_every=steps,
        eval_tokens=32_768,
        checkpoint_every=200,
        keep_checkpoints=1,
        device="cpu",
    )


def sweep_model(scale: Scale) -> SRMConfig:
    """The SRM that one thing is changed in."""
    if scale == "mini":
        return mini_med()
    return srm_base().replace(post_steps=0)


def sweep_training(scale: Scale) -> TrainConfig:
    return mini_training() if scale == "mini" else recipe("srm-sweep")


def changed(scale: Scale, **cells: dict) -> list[Cell]:
    """The sweep's model with some fields changed, by cell."""
    model, training = sweep_model(scale), sweep_training(scale)
    return [
        Cell(name=name, model=model.replace(**fields), training=training) for name, fields in cells.items()
    ]


def below(result: SweepResult, a: str, b: str) -> bool | None:
    """Whether a's loss is clearly below b's; None if the noise hides it."""
    order = result.order(a, b)
    return None if order in (None, "within the noise") else order == "lower"


# --- the paper's ------------------------------------------------------------------------------------------


def language_models(scale: Scale) -> list[Cell]:
    if scale == "paper":
        printed = {"gpt2": 3.20, "hrm": 4.93, "srm-base": 3.18, "srm-med": 3.08, "srm-large": 2.96}
        return [
            Cell(name=name, model=preset(name), training=recipe(name), paper=loss)
            for name, loss in printed.items()
        ]
    hrm = mini_hrm()
    return [
        Cell(name="gpt2", model=mini_gpt2(), training=mini_training(), paper=3.20),
        Cell(name="hrm", model=hrm, training=mini_training(MINI_RATE / 10, 0.1), paper=4.93),
        Cell(name="hrm, same rate", model=hrm, training=mini_training(warmup=0.1)),
        Cell(name="srm-base", model=mini_base(), training=mini_training(), paper=3.18),
        Cell(name="srm-med", model=mini_med(), training=mini_training(), paper=3.08),
        Cell(name="srm-large", model=mini_large(), training=mini_training(warmup=0.1), paper=2.96),
    ]


def judge_language_models(result: SweepResult) -> list[str]:
    beside_gpt2 = result.order("srm-med", "gpt2")
    lines = [
        holds("SRM is on par with GPT-2 or better", beside_gpt2 and beside_gpt2 != "higher"),
        holds("SRM is far better than HRM", below(result, "srm-med", "hrm")),
        holds("larger SRMs are better", below(result, "srm-large", "srm-med")),
        result.compare("srm-med", "gpt2"),
        result.compare("srm-med", "hrm"),
    ]
    if "hrm, same rate" in result:
        lines.append(result.compare("srm-med", "hrm, same rate"))
        lines.append(result.compare("hrm", "hrm, same rate"))
    lines.append(result.compare("srm-large", "srm-med"))
    lines.append(result.ranking("srm-base", "srm-med", "srm-large"))
    return lines


def backprop_depth(scale: Scale) -> list[Cell]:
    model, training = sweep_model(scale), sweep_training(scale)
    return [
        Cell(name=f"l = {l}", model=model.replace(gradient_depth=l), training=training, x=l)
        for l in range(1, model.depth + 1)
    ]


def judge_backprop_depth(result: SweepResult) -> list[str]:
    past_four = None
    if below(result, "l = 4", "l = 1"):
        past_four = result["l = 4"].mean - result["l = 8"].mean < result["l = 1"].mean - result["l = 4"].mean
    return [
        holds("returns diminish past four layers", past_four),
        result.compare("l = 4", "l = 1"),
        result.compare("l = 8", "l = 4"),
        result.share("l = 1", "l = 4", "l = 8"),
    ]


def pre_post_steps(scale: Scale) -> list[Cell]:
    pairs = {"none": (0, 0), "pre": (1, 0), "post": (0, 1), "both": (1, 1)}
    return changed(scale, **{name: {"pre_steps": a, "post_steps": b} for name, (a, b) in pairs.items()})


def judge_pre_post_steps(result: SweepResult) -> list[str]:
    after = result.order("post", "none")
    return [
        holds("pre-steps harm", below(result, "none", "pre")),
        holds("post-steps do no harm", after and after != "higher"),
        result.compare("pre", "none"),
        result.compare("post", "none"),
        result.compare("both", "none"),
    ]


ORDERS = {
    "ABC": 3.84, "ABCA": 3.84, "ABCABC": 3.83, "ABCABCABC": 3.82, "ABBC": 3.83, "ABBBBC": 3.82,
    "random:6": 3.87,
}  # fmt: skip


def step_ordering(scale: Scale) -> list[Cell]:
    model, training = sweep_model(scale), sweep_training(scale)
    return [
        Cell(name=order, model=model.replace(order=order), training=training, paper=loss)
        for order, loss in ORDERS.items()
    ]


def judge_step_ordering(result: SweepResult) -> list[str]:
    fixed = [order for order in ORDERS if order != "random:6" and order in result]
    found = {result.order(order, "ABC") for order in fixed if order != "ABC"}
    return [
        holds(
            "the order has no noticeable effect",
            None if None in found or not found else found == {"within the noise"},
        ),
        holds("random orders are slightly worse", below(result, "ABCABC", "random:6")),
        result.spread(*fixed),
        result.compare("ABCABC", "ABC"),
        result.compare("random:6", "ABCABC"),
    ]


STREAM_SETS = {"parameter": "fixed parameter", "width": "fixed width", "stream": "fixed stream size"}


def stream_size(scale: Scale) -> list[Cell]:
    if scale == "paper":
        counts, training = (1, 2, 4, 8, 16, 32, 64), recipe("srm-sweep")
    else:
        counts, training = (1, 2, 4, 8, 16, 32), mini_training(steps=300)
    return [
        Cell(
            name=f"{label}, {s}",
            model=preset(f"srm-sweep-{kind}-{s}") if scale == "paper" else mini_stream_size(kind, s),
            training=training,
            x=s,
            series=label,
        )
        for kind, label in STREAM_SETS.items()
        for s in counts
    ]


def mini_stream_size(kind: str, s: int) -> ModelConfig:
    """The paper's sweep with every width divided by 16: 4096, MLP, heads, embedding and stream."""
    width = kind == "width"
    return SRMConfig(
        **MINI,
        embedding_dim=32,
        streams=s,
        stream_dim=8 if kind == "stream" else 256 // s,
        mlp_dim=1536 // s if width else 48,
        token_heads=64 // s if width else 2,
        stream_heads=4,
        head_dim=4,
        tied=False,
    )


def judge_stream_size(result: SweepResult) -> list[str]:
    lines = []
    for label in ("fixed parameter", "fixed width"):
        jump = below(result, f"{label}, 8", f"{label}, 4")
        lines.append(holds(f"eight streams are far better than four, {label}", jump))
        lines.append(result.compare(f"{label}, 8", f"{label}, 4"))
    for label in STREAM_SETS.values():
        lines.append(result.trend(label, [cell.name for cell in result.cells if cell.series == label]))
    return lines


# --- beyond the paper -------------------------------------------------------------------------------------


def connection(scale: Scale) -> list[Cell]:
    """The learned connection against HRM's addition and against none, whose MLPs are widened until the
    parameters are the same.
    """
    model, training = sweep_model(scale), sweep_training(scale)
    kinds = {"attention": "learned", "addition": "addition", "none": "none"}
    return [
        Cell(name=name, model=model if kind == "attention" else as_large(model, kind), training=training)
        for kind, name in kinds.items()
    ]


def as_large(model: SRMConfig, connection: str) -> SRMConfig:
    """The model with another connection, and its parameters in the MLPs."""
    bare = model.replace(connection=connection)
    missing = build(model, device="meta").num_parameters() - build(bare, device="meta").num_parameters()
    steps = model.step_functions + model.pre_steps + model.post_steps
    return bare.replace(mlp_dim=model.mlp_dim + round(missing / (2 * model.width * steps)))


def judge_connection(result: SweepResult) -> list[str]:
    return [
        holds("a learned connection is better than addition", below(result, "learned", "addition")),
        result.compare("learned", "addition"),
        result.compare("addition", "none"),
        result.compare("learned", "none"),
    ]


def judge_test_depth(result: SweepResult) -> list[str]:
    return [line for cell in result.cells if (line := result.depth_line(cell.name))]


def optimizers(scale: Scale) -> list[Cell]:
    model, training = sweep_model(scale), sweep_training(scale)
    forms = {
        "adam-atan2, HRM's form": training,
        "adam-atan2, published form": training.replace(optimizer="adam-atan2-published"),
        "published form, rate ÷ 1.27": training.replace(
            optimizer="adam-atan2-published", lr=training.lr / 1.27
        ),
        "adamw": training.replace(optimizer="adamw"),
    }
    return [Cell(name=name, model=model, training=form) for name, form in forms.items()]


def judge_optimizers(result: SweepResult) -> list[str]:
    first, *others = [cell.name for cell in result.cells]
    return [result.compare(first, other) for other in others]


def learning_rates(scale: Scale) -> list[Cell]:
    if scale == "paper":
        models = {name: (preset(name), recipe(name)) for name in ("gpt2", "hrm", "trm", "srm-med")}
        rates = (1e-4, 3e-4, 1e-3)
    else:
        models = {
            "gpt2": (mini_gpt2(), mini_training()),
            "hrm": (mini_hrm(), mini_training(warmup=0.1)),
            "trm": (mini_trm(), mini_training(warmup=0.1)),
            "srm-med": (mini_med(), mini_training()),
        }
        rates = RATES
    return [
        Cell(name=f"{name}, {lr:g}", model=model, training=training.replace(lr=lr), x=lr, series=name)
        for name, (model, training) in models.items()
        for lr in rates
    ]


def judge_learning_rates(result: SweepResult) -> list[str]:
    best_hrm, best_srm = result.best("hrm"), result.best("srm-med")
    lines = [holds("HRM is behind SRM, each at its best rate", below(result, best_srm, best_hrm))]
    low, raised, srm = "hrm, 0.0001", "hrm, 0.001", "srm-med, 0.001"
    if all(name in result for name in (low, raised, srm)):
        gap, rate = result[low].mean - result[srm].mean, result[low].mean - result[raised].mean
        lines.append(
            f"Of the {gap:.3f} between {low} and {srm}, the rates of the paper, {rate / gap:.0%} goes when "
            "HRM has the others' rate."
        )
    lines += [result.best_of(series) for series in dict.fromkeys(cell.series for cell in result.cells)]
    lines.append(result.compare(best_hrm, low))
    return lines + [result.compare(best_srm, result.best(other)) for other in ("hrm", "gpt2")]


EXPERIMENTS = {
    made.name: made
    for made in (
        Experiment(
            name="language-models",
            question="How good is SRM beside GPT-2 and HRM?",
            claim="SRM is on par with GPT-2 and far better than HRM; larger SRMs are better.",
            cells=language_models,
            verdict=judge_language_models,
        ),
        Experiment(
            name="backprop-depth",
            question="Through how many of the eight layers must the gradient flow?",
            claim="Returns diminish severely past four.",
            cells=backprop_depth,
            verdict=judge_backprop_depth,
            axis="layers in the gradient (l)",
        ),
        Experiment(
            name="pre-post-steps",
            question="Do extra step functions before or after the layers help?",
            claim="Pre-steps harm; post-steps do no harm or help.",
            cells=pre_post_steps,
            verdict=judge_pre_post_steps,
        ),
        Experiment(
            name="step-ordering",
            question="Does the order of the step functions matter?",
            claim="The order has no noticeable effect; random orders are slightly worse.",
            cells=step_ordering,
            verdict=judge_step_ordering,
        ),
        Experiment(
            name="stream-size",
            question="Many narrow streams or few wide ones?",
            claim="A large jump between four and eight streams, where a stream becomes as narrow as the "
            "embedding.",
            cells=stream_size,
            verdict=judge_stream_size,
            axis="streams",
        ),
        Experiment(
            name="connection",
            question="Is the learned connection better than HRM's addition, at equal parameters?",
            claim="Addition under-uses the streams: a learned translation is what HRM lacks.",
            cells=connection,
            verdict=judge_connection,
        ),
        Experiment(
            name="test-depth",
            question="Can a trained model be run for more or fewer layers than it was trained for?",
            claim="",
            cells=backprop_depth,
            verdict=judge_test_depth,
            axis="layers in the gradient (l)",
            test_depth=16,
        ),
        Experiment(
            name="optimizers",
            question="Does the form of Adam-atan2 matter, and is it better than AdamW?",
            claim="",
            cells=optimizers,
            verdict=judge_optimizers,
        ),
        Experiment(
            name="learning-rates",
            question="Is HRM's gap real, or is it its learning rate?",
            claim="HRM was trained at 1e-4 where every other model had 1e-3, and came out far behind.",
            cells=learning_rates,
            verdict=judge_learning_rates,
            axis="learning rate",
        ),
    )
}


def experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        hint = nearest(name, list(EXPERIMENTS)) or "; `srmlab sweep list` lists them"
        raise UserError(f"no experiment is called {name!r}{hint}")
    return EXPERIMENTS[name]
