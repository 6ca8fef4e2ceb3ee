"""`srmlab compare RUN RUN …`: runs of any architectures side by side, on the same tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from srmlab.cli.shared import REQUIRED, Answers, aligned, at_least
from srmlab.errors import UserError
from srmlab.files import short_names
from srmlab.pretrained import folder as shipped

if TYPE_CHECKING:
    from srmlab.analysis.comparison import Compared
    from srmlab.analysis.null import Beside
    from srmlab.training.run_text import RunText


@dataclass
class Command(Answers):
    """Compare two or more runs: parameters, FLOP, depth, loss on the same tokens with its interval, and the
    paired difference from the first run. Then, next to untrained twins: token collapse, stream similarity,
    drift, whether the state settles, the loss when stopped after each level, and what an exit gate knows.

    Example:
        srmlab compare runs/srm runs/ouro runs/huginn
        srmlab compare runs/sweeps/family-mini
        srmlab compare runs/srm runs/hrm --null 10 --json
        srmlab compare runs/nano --pretrained
    """

    runs: tyro.conf.Positional[
        Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN RUN …", help_behavior_hint=REQUIRED)]
    ]
    """Runs, checkpoints, exports, or result folders of sweeps; all are compared with the first."""
    pretrained: bool = False
    """Also compare the model that ships with the package."""
    data: Path | None = None
    """Output folder of `srmlab prepare`; by default the first run's."""
    text: Path | None = None
    """Read this text file, as one document, instead of the validation tokens."""
    tokens: int = 65_536
    """Read this many tokens, in windows spread evenly over the text."""
    batch_size: int = 8
    """Windows per batch."""
    context: int | None = None
    """Tokens per window; by default the shortest of the runs' training contexts."""
    null: int | None = None
    """Number of untrained twins of every run; by default 3, or 0 above 5M parameters."""
    device: str = "auto"
    """cpu, cuda, cuda:1; auto uses a GPU if there is one."""

    def result(self) -> dict[str, Any]:
        from srmlab.analysis.comparison import LOOK, compare

        at_least(self, null=0)
        texts = self.open()
        first = next(iter(texts.values()))
        batches = list(first.batches(self.batch_size, self.tokens))
        if not batches:
            raise UserError(f"{first.source} is shorter than one window of {first.context}: lower --context")
        with self.display() as display:
            task = display.task("comparing", len(texts) * (len(batches) + 1), "passes")
            done = count(1)
            models = {name: text.model for name, text in texts.items()}
            flops = {name: training_flops(text) for name, text in texts.items()}
            self.rows = compare(models, batches, flops, lambda: task.update(next(done)), self.null)
        windows, looked = (sum(len(batch.tokens) for batch in some) for some in (batches, batches[:LOOK]))
        answers = ", answers only" if first.marks is not None else ""
        read = f"{windows} windows of {first.context} tokens of {first.source}{answers}"
        return {"read": read, "inside": looked, "models": [asdict(row) for row in self.rows]}

    def lines(self, result: dict[str, Any]) -> Iterator[str]:
        names = shown_names([row.name for row in self.rows])
        rows = [replace(row, name=names[row.name]) for row in self.rows]
        yield table(rows)
        yield ""
        yield f"{result['read']}"
        yield "In brackets, the 95 % interval over windows; it does not cover training seeds."
        yield "difference: from the first run, on the same windows."
        yield ""
        yield f"Inside, on the first {result['inside']} windows:"
        yield inside_tables(rows)

    def open(self) -> dict[str, RunText]:
        """Every run by its name, at a context that all of them have; the first one's text is read by all."""
        from srmlab.training.run_text import open_text

        asked = (*self.runs, *([str(shipped())] if self.pretrained else []))
        runs = named_runs(asked)
        if len(runs) < 2 and len(set(asked)) == len(asked):
            raise UserError("give at least two runs: srmlab compare runs/srm runs/ouro")
        if len(set(runs.values())) < len(runs) or len(set(asked)) < len(asked):
            raise UserError("a run is given twice: give each only once")
        options: dict[str, Any] = {"data": self.data, "text": self.text, "device": self.device}
        (first, path), *others = runs.items()
        text = open_text(fixed(path), context=self.context, spread=True, **options)
        found = {first: text}
        for run, path in others:
            found[run] = text.read_by(fixed(path), context=self.context, device=self.device)
            if found[run].tokenizer.fingerprint != text.tokenizer.fingerprint:
                raise UserError(
                    f"{run} and {first} have different tokenizers: compare runs trained on the same data"
                )
        context = min(text.context for text in found.values())
        return {run: replace(text, context=context) for run, text in found.items()}


def named_runs(asked: Sequence[str]) -> dict[str, str]:
    """All runs that are asked for, by name. Where one name stands for several runs, as in two sweeps with
    equal cells, the sweeps' runs have the folder in front; a run that sweeps share is there once.
    """
    found: dict[tuple[str, str], str] = {}  # name and path → what it was asked for with
    for given in asked:
        for run in runs_of(given).items():
            found.setdefault(run, given)
    clash = len({name for name, _ in found}) < len(found)
    return {
        str(Path(given, name)) if clash and name != given else name: path
        for (name, path), given in found.items()
    }


def shown_names(names: Sequence[str]) -> dict[str, str]:
    """As much of the paths as tells them apart; the cells of a sweep as they are called, such as grow:2/1."""
    paths = [name for name in names if Path(name).exists() or ("/" in name and Path(name).parent.is_dir())]
    return {name: name for name in names} | dict(zip(paths, short_names(paths), strict=True))


def runs_of(given: str) -> dict[str, str]:
    """A run by its own name; those of a sweep by cell and seed."""
    from srmlab.experiments import SweepResult

    folder = Path(given)
    if not (folder / "result.json").is_file():
        return {given: given}
    result, runs = SweepResult.load(folder), {}
    for cell in result.cells:
        for run in cell.runs:
            name = cell.name if len(cell.runs) == 1 else f"{cell.name}, seed {run.seed}"
            path = cell.cell.run_folder(folder.parent, run.seed)
            if not path.is_dir():
                raise UserError(f"{given} is not next to its runs (no {path}): give the runs themselves")
            runs[name] = str(path)
    return runs


def fixed(run: str) -> Path:
    """The checkpoint that a run stands for now: one that is being trained may have another in a minute."""
    from srmlab.storage.weights import weights_folder

    return weights_folder(run) if (Path(run) / "run.json").is_file() else Path(run)


def training_flops(text: RunText) -> float | None:
    """Of the training up to these weights, each step at its own depth; None for an export."""
    from srmlab.storage.weights import read_json
    from srmlab.training.depth import TrainingDepth

    if text.run is None:
        return None
    config, model = text.run.training, text.run.model
    about = text.path / "training.json"  # of a checkpoint; the shipped models are of whole runs
    steps = read_json(about)["step"] if about.is_file() else config.steps
    depth = TrainingDepth(config, model)
    per_token = sum(depth.flops(*depth.at(step)) for step in range(1, steps + 1))
    return float(per_token * config.tokens_per_step(model.context))


def table(rows: list[Compared]) -> str:
    """One line a model, of 100 columns or fewer where the names are short."""
    lines = [["", "parameters", "FLOP/token", "training FLOP", "depth", "S", "loss", "difference"]]
    for row in rows:
        difference = "" if row.difference is None else f"{row.difference:+.4f}"
        lines.append(
            [
                row.name,
                f"{row.parameters:,}",
                f"{row.forward_flops:.3g}",
                "–" if row.training_flops is None else f"{row.training_flops:.3g}",
                f"{row.depth} {row.unit}",
                str(row.streams),
                f"{row.loss:.4f}",
                difference,
            ]
        )
    return aligned(lines)


def inside_tables(rows: list[Compared]) -> str:
    """What is inside: numbers next to twins, losses by level, gates."""
    lines = [["", "collapse", "streams alike", "drift", "change", "at twice the depth: change", "loss"]]
    for row in rows:
        found = row.inside
        twice = ["–", "–"]
        if len(found.losses) > found.depth:
            twice = [f"{found.changes[-1]:.3f}", f"{found.losses[-1] - found.losses[found.depth - 1]:+.3f}"]
        numbers = [beside(one) for one in (found.collapse, found.streams, found.drift, found.change)]
        lines.append([row.name, *numbers, *twice])
    twins = any(row.inside.collapse.twins for row in rows)
    note = "In parentheses, the mean of untrained twins; *: outside the range of one more twin."
    parts = [
        aligned(lines),
        *([note] if twins else []),
        "collapse: cosine similarity between the output states of different tokens.",
        "streams alike: cosine similarity between the streams of a token.",
        "drift: cosine distance between what the last two levels contribute.",
        "change: of the state by the last level, relative to its norm.",
        "loss: at twice the depth, minus that at the trained depth.",
        "",
        "Loss when stopped after each level:",
        aligned([[row.name, *losses(row)] for row in rows]),
    ]
    gates = [
        [row.name, f"{row.unit} {gate.level}", f"{gate.gain.mean:+.3f}"]
        + [f"{one:+.2f}" for one in (gate.knows, gate.shuffled, gate.entropy)]
        for row in rows
        for gate in row.inside.gates
    ]
    if gates:
        parts += [
            "",
            "What exit gates know: does a gate continue where later levels gain more? Rank correlation",
            "over the tokens of a window; with the gates shuffled; with the prediction's entropy instead.",
            aligned([["", "after", "nats to gain", "gate", "shuffled", "entropy"], *gates]),
        ]
    return "\n".join(parts)


def beside(one: Beside | None) -> str:
    if one is None:
        return "–"
    if not one.twins:
        return f"{one.value:.3f}"
    return f"{one.value:.3f}{'*' if one.beyond else ''} ({sum(one.twins) / len(one.twins):.3f})"


def losses(row: Compared) -> list[str]:
    """At most eight of those up to the trained depth."""
    depth = row.inside.depth
    shown = sorted({round(1 + i * (depth - 1) / 7) for i in range(8)})
    return [f"{level}: {row.inside.losses[level - 1]:.3f}" for level in shown] + [""] * (8 - len(shown))
