"""`srmlab solve RUN`: how many problems, or puzzles, a model solves, by difficulty and by depth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from srmlab.cli.shared import EMPTY, RunsModel, aligned, at_least, refuse
from srmlab.errors import OWN, UserError

if TYPE_CHECKING:
    from srmlab.data import Manifest
    from srmlab.models import LanguageModel
    from srmlab.training.run_text import RunText


@dataclass(kw_only=True)
class Command(RunsModel):
    """Measure accuracy on a task or on puzzles: a problem counts if the whole answer is right.

    The problems are held out: they come from the validation split. Recurrent models are also run at depths
    other than in training, with the same weights. Brackets are 95 % intervals.

    A puzzle model is run on the test puzzles of its data, or on your own file, and scored after every
    segment; --show prints boards with what each segment changed.

    Example:
        srmlab prepare task:hops --out data/hops
        srmlab train srm-nano --data data/hops --out runs/hops --answers-only
        srmlab solve runs/hops
        srmlab solve runs/hops --difficulty 1 2 3 --depth 4 8 16 --problems 1000 --json
        srmlab solve --pretrained sudoku --show
        srmlab solve runs/sudoku4 --segments 32 --votes 16
        srmlab solve runs/sudoku4 --file mine.txt --show
    """

    task: str | None = None
    """A task by name; by default the one the model was trained on."""
    difficulty: Annotated[tuple[int, ...], EMPTY] = ()
    """Difficulties to test; by default those of the data, or the task's own."""
    depth: Annotated[tuple[int, ...], EMPTY] = ()
    """Layers (HRM: high cycles); default: as trained for puzzles, powers of two to twice that for text."""
    problems: int = 200
    """How many per difficulty; for puzzles, how many in all."""
    segments: int | None = None
    """Puzzles: segments to run; by default as many as in training."""
    votes: int = 1
    """Puzzles: majority vote over this many symmetries of each puzzle (for ARC, the top two answers)."""
    file: Path | None = None
    """Puzzles: your own file, one per line, or .csv with question and answer."""
    show: bool = False
    """Puzzles: print the first boards, and what each segment changes."""
    data: Path | None = None
    """Output folder of `srmlab prepare` that the model was trained on; by default the run's."""
    document_mask: bool = False
    """The model was trained with attention within documents only (known for a run)."""
    seed: int = 1
    """Seed for drawing the problems."""
    batch_size: int = 64
    """Problems per batch."""

    def result(self) -> dict[str, Any]:
        from srmlab.training.initial import model_of

        at_least(self, problems=1, batch_size=1, votes=1, segments=1, depth=1)
        path = self.subject()
        if not model_of(path).causal:
            from srmlab.cli.solve_puzzles import measure

            text_only = ("task", "difficulty", "document_mask", "seed")
            refuse(self, *text_only, why=f"is for text, and {path} solves puzzles")
            if self.show and self.json:
                raise UserError("--show and --json cannot be combined: give one of them")
            if self.file is not None and self.data is not None:
                raise UserError("--file and --data cannot be combined: give one of them")
            return measure(path, self)
        if self.pretrained and self.data is None:
            fix = "give --data DIR, or --pretrained sudoku for a model of puzzles"
            raise UserError(f"{path} does not come with its training data: {fix}")
        why = f"is for puzzles, and {path} was trained on text"
        refuse(self, "segments", "votes", "file", "show", why=why)
        return self.solve(path)

    def lines(self, result: dict[str, Any]) -> Iterable[str]:
        if "task" in result:
            return task_lines(result)
        from srmlab.cli.solve_puzzles import lines

        return lines(result)

    def solve(self, path: Path) -> dict[str, Any]:
        from srmlab.tasks.accuracy import Accuracy, solved
        from srmlab.training.run_text import open_text

        text = open_text(
            path, data=self.data, document_mask=self.document_mask, device=self.device, verify=False
        )
        manifest = self.manifest(text)
        task, difficulties = self.what(manifest)
        drawn = {difficulty: self.draw(task, difficulty, manifest) for difficulty in difficulties}
        models = self.models(text.model)
        found = []
        with self.display() as display:
            solving = display.task("solving", len(models) * sum(map(len, drawn.values())), "problems")
            count = 0
            for (depth, deep), (difficulty, problems) in product(models.items(), drawn.items()):
                right = solved(
                    deep,
                    text.tokenizer,
                    problems,
                    batch_size=self.batch_size,
                    first=not text.document_mask,
                )
                accuracy = Accuracy(int(right.sum()), len(problems))
                low, high = accuracy.interval
                found.append(
                    {"depth": depth, "difficulty": difficulty}
                    | {"right": accuracy.right, "problems": accuracy.problems, "accuracy": accuracy.share}
                    | {"low": low, "high": high}
                )
                count += len(problems)
                solving.update(count)
        return {
            "model": str(path),
            "data": str(text.training_data().path),
            "task": task,
            "seed": self.seed,
            "trained_depth": text.model.depth,
            "results": found,
        }

    def manifest(self, text: RunText) -> Manifest:
        """How the training text was split: that decides which problems are held out."""
        data = text.training_data()
        if text.run is not None and data.fingerprint != text.run.data_fingerprint:
            raise UserError(
                f"{data.path} is not the data that {text.path} was trained on: give that as --data, "
                "or the problems may have been trained on"
            )
        return data.manifest

    def what(self, manifest: Manifest) -> tuple[str, list[int]]:
        from srmlab.tasks import TASKS, TaskCorpus, find_task
        from srmlab.tasks.corpus import PREFIX

        name = manifest.source.removeprefix(PREFIX).partition(":")[0]
        if name != manifest.source and name not in TASKS:
            raise UserError(f"the model was trained on {manifest.source}, a task that is not known: {OWN}")
        corpus = TaskCorpus.parse(manifest.source) if manifest.source.startswith(PREFIX) else None
        task = self.task or (corpus.task if corpus else None)
        if task is None:
            raise UserError(f"the model was trained on {manifest.source}, which is not a task: give --task")
        low, high = find_task(task).usual
        usual = corpus.difficulties if corpus and corpus.task == task else range(low, high + 1)
        return task, sorted(set(self.difficulty or usual))

    def draw(self, task: str, difficulty: int, manifest: Manifest) -> list[Any]:
        from srmlab.tasks import held_out

        problems = held_out(
            task, difficulty, count=self.problems, val_fraction=manifest.val_fraction, seed=self.seed
        )
        if not problems:
            raise UserError(
                f"{task} of difficulty {difficulty} has no held-out problems: choose another --difficulty"
            )
        return problems

    def models(self, model: LanguageModel) -> dict[int, LanguageModel]:
        """The model at every depth asked for, all on the same weights."""
        trained = model.depth
        usual = (trained,) if not model.recurrent else (*powers_of_two(2 * trained), trained, 2 * trained)
        depths = sorted(set(self.depth or usual))
        return {depth: model if depth == trained else model.at_depth(depth) for depth in depths}


def powers_of_two(most: int) -> list[int]:
    """
    >>> powers_of_two(6)
    [1, 2, 4]
    """
    return [2**n for n in range(most.bit_length()) if 2**n <= most]


def task_lines(answer: dict[str, Any]) -> list[str]:
    """A table: one row a difficulty, one column a depth."""
    from srmlab.tasks import find_task
    from srmlab.tasks.accuracy import Accuracy

    cells = {
        (row["difficulty"], row["depth"]): Accuracy(row["right"], row["problems"])
        for row in answer["results"]
    }
    difficulties = sorted({difficulty for difficulty, _ in cells})
    depths = sorted({depth for _, depth in cells})
    trained = answer["trained_depth"]
    titles = [f"depth {depth}{' (trained)' if depth == trained else ''}" for depth in depths]
    table = [[find_task(answer["task"]).counts, "problems", *titles]]
    for difficulty in difficulties:
        row = [cells[difficulty, depth] for depth in depths]
        table.append([str(difficulty), str(row[0].problems), *map(str, row)])
    note = f"{answer['task']}: new problems whose whole answer is right [95 % interval]"
    return [aligned(table), f"{note}; seed {answer['seed']}"]
