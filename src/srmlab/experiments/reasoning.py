"""Puzzles, trained in segments: do more streams pay, and does it matter how they meet?

TRM lost by going from two latents to seven, which it simply adds. Here the streams of an SRM, two, four or
eight of them, meet by a learned connection or by addition, beside HRM, TRM, HRM with one net, SR2 and a
looped transformer. All models of a scale have exactly the same parameters; their FLOP is printed. The losses
are those of the test puzzles' cells after the last segment; `srmlab solve` counts whole boards of any run.

    >>> from srmlab.experiments.miniatures import count
    >>> sorted({count(cell.model) for cell in EXPERIMENTS[0].cells("mini")})
    [69058]
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from srmlab.experiments.cells import Findings
from srmlab.experiments.evidence import LEVEL, below
from srmlab.experiments.experiment import Cell, Experiment, Scale
from srmlab.experiments.results import SweepResult
from srmlab.models import ModelConfig, preset
from srmlab.training.config import TrainConfig

STREAMS = (2, 4, 8)
WIDTH: dict[Scale, int] = {"mini": 64, "small": 128, "paper": 512}
CELLS = {"sudoku:6x6": (36, 8), "maze:5": (25, 6), "maze:9": (81, 6)}  # and values
SUDOKU: dict[Scale, str] = {"mini": "sudoku:6x6", "small": "sudoku:6x6", "paper": "sudoku:6x6"}
# At mini larger ones are not learned. Chosen on the looped transformer alone: it solves 64 % of 5 x 5 after
# 4,000 steps, and of 9 x 9 after 1,500 no more than in the beginning.
MAZE: dict[Scale, str] = {"mini": "maze:5", "small": "maze:9", "paper": "maze:9"}
MANY = "SRM, 4 streams, learned"
ONE, SIXTEEN = f"{MANY}, one segment", f"{MANY}, 16 segments"


def models(kind: str, width: int) -> dict[str, ModelConfig]:
    """The nano presets at this width, of the same parameters: what addition saves goes into the MLPs."""
    cells, values = CELLS[kind]
    board = {"vocab_size": values, "context": cells + 1, "head_dim": width // 4}
    found: dict[str, ModelConfig] = {}
    for name, connection, mlp in (("learned", "attention", width), ("addition", "addition", 2 * width)):
        for streams in STREAMS:
            found[f"SRM, {streams} streams, {name}"] = preset(
                "srm-sudoku-nano",
                **board,
                embedding_dim=width,
                streams=streams,
                stream_dim=2 * width // streams,
                mlp_dim=mlp,
                connection=connection,
            )
    sizes = board | {"dim": width, "mlp_dim": 2 * width}
    return found | {
        "HRM": preset("hrm-sudoku-nano", **sizes),
        "HRM, x in H": preset("hrm-sudoku-nano", **sizes, x_enters="both"),
        "TRM": preset("trm-sudoku-nano", **sizes),
        "one net": preset("hrm1-sudoku-nano", **sizes),
        "SR2": preset("sr2-sudoku-nano", **sizes | {"mlp_dim": 6 * width}),
        "looped transformer": preset("loop-sudoku-nano", **sizes),
    }


def training(kind: str, scale: Scale) -> TrainConfig:
    """Alike for all, each at its own best rate."""
    steps = {"mini": 4000 if kind == "maze:5" else 1500, "small": 10_000, "paper": 50_000}[scale]
    return TrainConfig(
        steps=steps,
        batch_size={"mini": 32, "small": 64, "paper": 768}[scale],
        lr=1e-4 if scale == "paper" else 3e-3,
        warmup=steps // 20,
        segments=4 if scale == "mini" else 16,  # a puzzle is as many steps: with 16, few are seen in 1500
        halting="trm",
        ema=0.99 if scale == "mini" else 0.999,
        puzzle_lr=1e-3,
        eval_every=steps,
        eval_tokens=20_000,
        eval_windows="spread",  # test puzzles are in no order
        checkpoint_every=500,
        keep_checkpoints=1,
        device="auto" if scale == "paper" else "cpu",
    )


def cells(kinds: dict[Scale, str], scale: Scale) -> list[Cell]:
    kind = kinds[scale]
    made = [
        Cell(name=name, model=model, training=training(kind, scale), tuned=scale != "paper")
        for name, model in models(kind, WIDTH[scale]).items()
    ]
    many = next(cell for cell in made if cell.name == MANY)
    others = {ONE: 1} | ({SIXTEEN: 16} if scale == "mini" else {})  # elsewhere all have 16
    for name, segments in others.items():
        made.append(replace(many, name=name, training=many.training.replace(segments=segments)))
    return made


def judge(result: SweepResult) -> Findings:
    learned, added = ({s: f"SRM, {s} streams, {name}" for s in STREAMS} for name in ("learned", "addition"))
    rivals = ("HRM", "TRM", "one net", "SR2", "looped transformer")
    together = (
        [
            (f"a learned connection is better than addition, {s} streams", learned[s], added[s])
            for s in STREAMS
        ],
        [
            ("eight streams are better than two, learned", learned[8], learned[2]),
            ("eight streams are better than two, addition", added[8], added[2]),
        ],
        [(f"SRM is better than {other}", MANY, other) for other in rivals],
        [
            ("several segments are better than one", MANY, ONE),
            *([("16 segments are better than one", SIXTEEN, ONE)] if result.scale == "mini" else []),
        ],
        [("HRM is better with x in H", "HRM, x in H", "HRM")],
    )
    others = [
        (srm, other)
        for s in STREAMS
        for srm in (learned[s], added[s])
        for other in ("TRM", "looped transformer")
        if srm != MANY
    ]
    level = 1 - (1 - LEVEL) / len(others)
    return [
        *(result.claim(text, below, a, b, len(claims)) for claims in together for text, a, b in claims),
        *(result.compare(a, b, level) for a, b in others),
    ]


DEPTHS = ((1, 1), (2, 2), (4, 1), (4, 2), (4, 4), (8, 2), (8, 8))  # n layers, gradient through the last l


def depth_cells(scale: Scale) -> list[Cell]:
    """One segment only, so that n is all the depth there is."""
    whole = next(cell for cell in cells(SUDOKU, scale) if cell.name == ONE)
    return [
        replace(whole, name=f"n = {n}, l = {l}", model=whole.model.replace(depth=n, gradient_depth=l))
        for n, l in DEPTHS
    ]


def judge_depth(result: SweepResult) -> Findings:
    layers = [
        ("two layers are better than one", "n = 2, l = 2", "n = 1, l = 1"),
        ("four layers are better than two", "n = 4, l = 2", "n = 2, l = 2"),
        ("eight layers are better than four", "n = 8, l = 2", "n = 4, l = 2"),
    ]
    gradient = [
        ("of four layers, gradient through two is better than through one", "n = 4, l = 2", "n = 4, l = 1"),
        ("of four layers, gradient through four is better than through two", "n = 4, l = 4", "n = 4, l = 2"),
        (
            "of eight layers, gradient through eight is better than through two",
            "n = 8, l = 8",
            "n = 8, l = 2",
        ),
    ]
    return [result.claim(text, below, a, b, of=3) for text, a, b in (*layers, *gradient)]


EXPERIMENTS = [
    *(
        Experiment(
            name=name,
            question="On puzzles, do more streams help if their connection is learned?",
            claim="",
            cells=partial(cells, kinds),
            verdict=judge,
            puzzles=kinds,
        )
        for name, kinds in (("reasoning", SUDOKU), ("reasoning-maze", MAZE))
    ),
    Experiment(
        name="reasoning-depth",
        question="On puzzles, how many layers does it take, and how many of them in the gradient?",
        claim="Returns diminish past four layers in the gradient.",
        cells=depth_cells,
        verdict=judge_depth,
        puzzles=SUDOKU,
    ),
]
