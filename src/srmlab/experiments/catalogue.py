"""The experiments: the paper's tables and sweeps, and the questions it leaves open.

    >>> [cell.name for cell in experiment("step-ordering").cells("mini")][:3]
    ['ABC', 'ABCA', 'ABCABC']

Each has three scales. "paper" is the paper's own setting, for GPUs and OpenWebText, at the paper's rates.
"mini" and "small" (miniatures.py) are for a CPU; there every cell searches its own best rate.
"""

from __future__ import annotations

from dataclasses import replace

from srmlab.errors import unknown
from srmlab.experiments import miniatures, reasoning, training_depth
from srmlab.experiments.cells import Findings, cells_of, changed, sweep_model, sweep_training
from srmlab.experiments.evidence import MARGIN, Claim, alike, below, every, not_above, paired, some
from srmlab.experiments.experiment import Cell, Experiment, Scale
from srmlab.experiments.family import FAMILY
from srmlab.experiments.learned import LEARNED
from srmlab.experiments.miniatures import count, sized
from srmlab.experiments.results import SweepResult
from srmlab.experiments.transition import TRANSITION
from srmlab.models import ModelConfig, preset
from srmlab.training.recipes import recipe

GPT2, FLOP = "gpt2, init by width", "transformer, SRM's FLOP"


# --- the paper's ------------------------------------------------------------------------------------------

PRINTED = {"gpt2": 3.20, "hrm": 4.93, "srm-base": 3.18, "srm-med": 3.08, "srm-large": 2.96}


def language_models(scale: Scale) -> list[Cell]:
    if scale == "paper":
        return [
            Cell(name=name, model=preset(name), training=recipe(name), paper=loss)
            for name, loss in PRINTED.items()
        ]
    gpt2, hrm, trm = miniatures.gpt2(scale), miniatures.hrm(scale), miniatures.trm(scale)
    models: dict[str, ModelConfig] = {
        "transformer": miniatures.transformer(scale),
        FLOP: miniatures.large_transformer(scale),
        "gpt2": gpt2.replace(init="0.02"),
        GPT2: gpt2,
        "hrm": hrm,
        "hrm, x in both": hrm.replace(x_enters="both"),
        "trm": trm,
        "trm, x in both": trm.replace(x_enters="both"),
        "srm-base": miniatures.srm_base(scale),
        "srm-med": miniatures.srm_med(scale),
    }
    if scale == "mini":
        models["srm-large"] = miniatures.srm_large(scale)
    return cells_of(scale, models, PRINTED)


def judge_language_models(result: SweepResult) -> Findings:
    gpt2 = "gpt2" if result.scale == "paper" else GPT2
    larger = [("srm-med", "srm-base")]
    if result.scale != "small":  # where it is too large
        larger.append(("srm-large", "srm-med"))
    claims = [
        ("SRM is on par with GPT-2 or better", not_above, "srm-med", gpt2),
        ("SRM with half the parameters is on par with GPT-2 or better", not_above, "srm-base", gpt2),
        ("SRM is better than HRM", below, "srm-med", "hrm"),
    ]
    if result.scale != "paper":
        claims += [
            ("SRM is better than HRM whose H sees x", below, "srm-med", "hrm, x in both"),
            ("SRM is on par with a modern transformer", not_above, "srm-med", "transformer"),
            ("SRM is on par with a transformer that has its FLOP", not_above, "srm-med", FLOP),
        ]
    lines: Findings = [result.claim(*claim, of=len(claims)) for claim in claims]
    lines.append(
        every("larger SRMs are better", [result.claim("", below, a, b, of=len(larger)) for a, b in larger])
    )
    pairs = [(GPT2, "gpt2"), ("hrm, x in both", "hrm"), ("trm, x in both", "trm"), ("transformer", GPT2)]
    return lines + [result.compare(a, b) for a, b in pairs] + [result.ranking()]


def backprop_depth(scale: Scale) -> list[Cell]:
    depths = range(1, sweep_model(scale).depth + 1)
    cells = changed(scale, **{f"l = {l}": {"gradient_depth": l} for l in depths})
    return [replace(cell, x=l) for cell, l in zip(cells, depths, strict=True)]


def judge_backprop_depth(result: SweepResult) -> Findings:
    return [
        diminishing(result, "returns diminish past four layers", "l = 1", "l = 4", "l = 8"),
        result.compare("l = 4", "l = 1"),
        result.compare("l = 8", "l = 4"),
        result.share("l = 1", "l = 4", "l = 8"),
    ]


def diminishing(result: SweepResult, text: str, first: str, middle: str, last: str) -> Claim:
    """Whether more is gained up to the middle than after it: its loss is below the mean of the ends'."""
    cells, found = (first, middle, last), None
    if all(name in result for name in cells):
        a, b, c = (result[name].by_seed for name in cells)
        ends = {seed: (a[seed] + c[seed]) / 2 for seed in a.keys() & c.keys()}
        found = paired(b, ends)
    numbers = f"{middle} against the mean of {first} and {last}: {found or 'no two seeds in common'}"
    return result.decide(text, below(found, MARGIN), cells, f"{numbers}; margin {MARGIN:g}")


def pre_post_steps(scale: Scale) -> list[Cell]:
    pairs = {"none": (0, 0), "pre": (1, 0), "post": (0, 1), "both": (1, 1)}
    return changed(scale, **{name: {"pre_steps": a, "post_steps": b} for name, (a, b) in pairs.items()})


def judge_pre_post_steps(result: SweepResult) -> Findings:
    return [
        result.claim("pre-steps harm", below, "none", "pre", of=2),
        result.claim("post-steps do no harm", not_above, "post", "none", of=2),
        result.compare("both", "none"),
    ]


ORDERS = {
    "ABC": 3.84, "ABCA": 3.84, "ABCABC": 3.83, "ABCABCABC": 3.82, "ABBC": 3.83, "ABBBBC": 3.82,
    "random:6": 3.87,
}  # fmt: skip


def step_ordering(scale: Scale) -> list[Cell]:
    cells = changed(scale, **{order: {"order": order} for order in ORDERS})
    return [replace(cell, paper=ORDERS[cell.name]) for cell in cells]


def judge_step_ordering(result: SweepResult) -> Findings:
    fixed = [order for order in ORDERS if order not in ("ABC", "random:6")]
    claims = [result.claim("", alike, order, "ABC", of=len(fixed)) for order in fixed]
    return [
        every("the order has no noticeable effect", claims),
        result.claim("random orders are slightly worse", below, "ABCABC", "random:6"),
        result.spread("ABC", *fixed),
        result.compare("ABCABC", "ABC"),
    ]


STREAM_SETS = {"parameter": "fixed parameter", "width": "fixed width", "stream": "fixed stream size"}


def stream_size(scale: Scale) -> list[Cell]:
    counts = (1, 2, 4, 8, 16, 32, 64) if scale == "paper" else (1, 2, 4, 8, 16, 32)
    return [
        Cell(
            name=f"{label}, {s}",
            model=preset(f"srm-sweep-{kind}-{s}")
            if scale == "paper"
            else miniatures.of_streams(scale, kind, s),
            training=sweep_training(scale),
            x=s,
            series=label,
            tuned=scale != "paper",
        )
        for kind, label in STREAM_SETS.items()
        for s in counts
    ]


def judge_stream_size(result: SweepResult) -> Findings:
    lines: Findings = [
        result.claim(
            f"eight streams are better than four, {label}", below, f"{label}, 8", f"{label}, 4", of=2
        )
        for label in ("fixed parameter", "fixed width")
    ]
    lines += [result.best_of(label) for label in STREAM_SETS.values()]
    asked = [("fixed parameter", 2), ("fixed width", 2), ("fixed stream size", 32)]
    return lines + [result.compare(f"{label}, 8", f"{label}, {other}") for label, other in asked]


# --- beyond the paper -------------------------------------------------------------------------------------

CONNECTIONS = {"attention": "learned"} | {
    kind: kind for kind in ("gate", "translation", "mixing", "addition", "none")
}
STREAMS = (2, 8, 16)


def connection(scale: Scale) -> list[Cell]:
    """The learned connection taken apart, with several numbers of streams (at paper scale the paper's own);
    MLPs are as wide as give all the same parameters.
    """
    whole = sweep_model(scale)
    models: dict[str, ModelConfig] = {}
    for s in (whole.streams,) if scale == "paper" else STREAMS:
        model = whole if s == whole.streams else miniatures.streams_as(whole, s)
        for kind, name in CONNECTIONS.items():
            other = model if kind == "attention" else sized(model.replace(connection=kind), count(model))
            models[f"{name}, {s} streams"] = other
    return cells_of(scale, models)


def judge_connection(result: SweepResult) -> Findings:
    """The paper's two claims, each at all numbers of streams at once; then the parts of the connection."""
    lines: Findings = []
    counts = (32,) if result.scale == "paper" else STREAMS
    for s in counts:
        text = f"a learned connection is better than addition, {s} streams"
        lines.append(
            result.claim(text, below, f"learned, {s} streams", f"addition, {s} streams", len(counts))
        )
    if len(counts) > 1:
        few, many = counts[0], counts[-1]
        for name in ("learned", "addition"):
            text = f"{many} streams are better than {few}, {name}"
            lines.append(result.claim(text, below, f"{name}, {many} streams", f"{name}, {few} streams", of=2))
    parts = {
        "gate": "the gate alone",
        "translation": "translation alone",
        "mixing": "a mixing matrix",
        "none": "no connection",
    }
    for s in counts:
        for kind, words in parts.items():
            if f"{kind}, {s} streams" in result:
                text = f"a learned connection is better than {words}, {s} streams"
                lines.append(
                    result.claim(text, below, f"learned, {s} streams", f"{kind}, {s} streams", len(parts))
                )
        lines.append(result.compare(f"addition, {s} streams", f"none, {s} streams"))
    return lines


def hrm_x(scale: Scale) -> list[Cell]:
    """HRM and TRM where x enters L alone or both nets, HRM without H, and SRM next to them."""
    if scale == "paper":
        hrm, trm, single, srm = (preset(name) for name in ("hrm", "trm", "hrm-single", "srm-med"))
    else:
        hrm, trm = miniatures.hrm(scale), miniatures.trm(scale)
        single, srm = miniatures.single_hrm(scale), miniatures.srm_med(scale)
    return cells_of(
        scale,
        {
            "hrm": hrm,
            "hrm, x in both": hrm.replace(x_enters="both"),
            "hrm without H": single,
            "trm": trm,
            "trm, x in both": trm.replace(x_enters="both"),
            "srm-med": srm,
        },
    )


def judge_hrm_x(result: SweepResult) -> Findings:
    return [
        result.claim("HRM is better if H sees x", below, "hrm, x in both", "hrm"),
        result.claim("TRM is better if H sees x", below, "trm, x in both", "trm"),
        result.claim("HRM is better with H than without", below, "hrm, x in both", "hrm without H"),
        result.claim("SRM is better than HRM whose H sees x", below, "srm-med", "hrm, x in both"),
        result.compare("srm-med", "hrm"),
    ]


UPDATES = ("norm(c + x)", "norm(c) + x", "c + norm(x)", "norm(c) + norm(x)", "c + x")


def update_norms(scale: Scale) -> list[Cell]:
    return changed(scale, **{update: {"update": update} for update in UPDATES})


def judge_update_norms(result: SweepResult) -> Findings:
    first, *others = UPDATES
    claims = [result.claim("", alike, other, first, of=len(others)) for other in others]
    compared = [result.compare(other, first) for other in others]
    return [some("the model is sensitive to the norms of its update", claims), *compared]


def judge_test_depth(result: SweepResult) -> Findings:
    return [line for cell in result.cells if (line := result.depth_line(cell.name))]


def optimizers(scale: Scale) -> list[Cell]:
    (cell,) = cells_of(scale, {"adam-atan2, HRM's form": sweep_model(scale)})
    published = cell.training.replace(optimizer="adam-atan2-published")
    return [
        cell,
        replace(cell, name="adam-atan2, published form", training=published),
        replace(cell, name="adamw", training=cell.training.replace(optimizer="adamw")),
    ]


def judge_optimizers(result: SweepResult) -> Findings:
    first = "adam-atan2, HRM's form"
    return [
        result.claim("Adam-atan2 is better than AdamW", below, first, "adamw"),
        result.claim("its two forms are alike", alike, "adam-atan2, published form", first),
    ]


def learning_rates(scale: Scale) -> list[Cell]:
    """The whole grid for every model. Its runs are shared with the searches of the other experiments."""
    if scale == "paper":
        models = {name: (preset(name), recipe(name)) for name in ("gpt2", "hrm", "trm", "srm-med")}
        rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    else:
        wanted = ("transformer", GPT2, "hrm", "hrm, x in both", "trm", "trm, x in both", "srm-med")
        models = {c.name: (c.model, c.training) for c in language_models(scale) if c.name in wanted}
        rates = tuple(miniatures.RATE * 2**power for power in range(-3, 3))  # 5e-4 … 1.6e-2
    return [
        Cell(name=f"{name}, {lr:g}", model=model, training=training.replace(lr=lr), x=lr, series=name)
        for name, (model, training) in models.items()
        for lr in rates
    ]


def judge_learning_rates(result: SweepResult) -> Findings:
    """What the grid shows; models at their best rates are compared in language-models."""
    lines: Findings = [result.best_of(series) for series in dict.fromkeys(c.series for c in result.cells)]
    low, raised, srm = "hrm, 0.0001", "hrm, 0.001", "srm-med, 0.001"
    if all(name in result for name in (low, raised, srm)):
        gap, rate = result[low].mean - result[srm].mean, result[low].mean - result[raised].mean
        lines.append(
            f"Of the {gap:.3f} between {low} and {srm}, the rates of the paper, {rate / gap:.0%} goes when "
            "HRM has the others' rate."
        )
    return lines


EXPERIMENTS = {
    made.name: made
    for made in (
        Experiment(
            name="language-models",
            question="How does SRM compare with transformers and HRM?",
            claim="SRM is on par with GPT-2, also at half the parameters, and far better than HRM; larger "
            "SRMs are better.",
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
            question="Do more streams help, and what of their learned connection is needed?",
            claim="Addition under-uses the streams: a learned translation is what HRM lacks.",
            cells=connection,
            verdict=judge_connection,
        ),
        Experiment(
            name="hrm-x",
            question="Is HRM behind because of its connection, or because H never sees the tokens?",
            cells=hrm_x,
            verdict=judge_hrm_x,
        ),
        Experiment(
            name="update-norms",
            question="Where should the norm of the update be?",
            claim="The model is sensitive to the norms of its update.",
            cells=update_norms,
            verdict=judge_update_norms,
        ),
        Experiment(
            name="test-depth",
            question="Can a trained model be run for more or fewer layers than in training?",
            cells=backprop_depth,
            verdict=judge_test_depth,
            axis="layers in the gradient (l)",
            measures=("depths",),
            compares=False,
        ),
        training_depth.EXPERIMENT,
        *reasoning.EXPERIMENTS,
        Experiment(
            name="optimizers",
            question="Does the form of Adam-atan2 matter, and is it better than AdamW?",
            cells=optimizers,
            verdict=judge_optimizers,
        ),
        Experiment(
            name="learning-rates",
            question="How does each model depend on its learning rate?",
            claim="HRM was trained at 1e-4 where every other model had 1e-3, and came out far behind.",
            cells=learning_rates,
            verdict=judge_learning_rates,
            axis="learning rate",
            compares=False,
        ),
        FAMILY,
        LEARNED,
        TRANSITION,
    )
}


def experiment(name: str) -> Experiment:
    """An experiment by its name."""
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS, "`srmlab sweep list` lists them")
    return EXPERIMENTS[name]
