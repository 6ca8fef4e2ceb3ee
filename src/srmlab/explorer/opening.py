"""Opening a session: from a trained run, a checkpoint, an export, or an untrained preset.

>>> session = open_preset("srm-nano")
>>> session.name
'srm-nano (untrained)'
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import srmlab
from srmlab.analysis.dynamics import Dynamics
from srmlab.analysis.null import saved_twins
from srmlab.analysis.null import summary as null_summary
from srmlab.analysis.registry import has_streams
from srmlab.analysis.result import Result
from srmlab.analysis.states import state_means
from srmlab.data import DataError, EvaluationBatches, Tokenizer, byte_tokenizer, open_tokens
from srmlab.dictionaries import Lexicon, lexicons_of
from srmlab.dictionaries.switches import Switches
from srmlab.errors import Notice, UserError
from srmlab.explorer.feature_cards import Notes
from srmlab.explorer.session import Session
from srmlab.explorer.tracing import heads_of
from srmlab.files import sealed
from srmlab.models import LanguageModel
from srmlab.storage import load, saved_tokenizer
from srmlab.training.run_puzzles import reads_puzzles
from srmlab.training.run_text import TEXT, place_for, read_text

REFERENCE_WINDOWS = 16  # windows of evaluation text the mean states are taken over
SMALL = 20_000_000  # parameters up to which one thread is quicker than two
EXAMPLE = "The stream recursion model reads, and the streams begin to talk."
EXCERPT = 48  # tokens of an example prompt from the run's own evaluation text


def open_preset(name: str) -> Session:
    """An untrained preset, reading bytes: enough to try the explorer."""
    config = srmlab.preset(name)
    if not config.causal:
        raise UserError(
            f"{name} reads puzzles, and an untrained preset has none: train it with srmlab train {name} "
            "--data PUZZLES, or take --pretrained sudoku"
        )
    lines = (
        f'model = srmlab.build(srmlab.preset("{name}", vocab_size=257)).eval()\ntokenizer = '
        f"srmlab.data.byte_tokenizer()"
    )
    model = srmlab.build(config.replace(vocab_size=257))
    return Session(
        model,
        byte_tokenizer(),
        name=f"{name} (untrained)",
        python=f"import srmlab.data\n{lines}",
        prompts=(EXAMPLE,),
    )


def open_run(path: str | Path, dictionary: str | Path | None = None, segments: int | None = None) -> Session:
    """A run (its last checkpoint, and the others to compare with), a checkpoint, or an export. `dictionary`
    is a folder of `srmlab dictionary`; by default the newest one of these weights. `segments` is how many of
    a puzzle run are looked at, by default as many as in training."""
    path = Path(path)
    if reads_puzzles(path):
        from srmlab.explorer.boards import open_board_run

        if dictionary is not None:
            raise UserError(f"{path} reads puzzles, and dictionaries are for text: leave --dictionary out")
        return open_board_run(path, segments)
    if segments is not None:
        raise UserError(f"--segments is for a puzzle run, and {path} reads text: leave it out")
    model = load(path)
    tokenizer = _tokenizer(path)
    evaluation = evaluation_text(path, model)
    checkpoints = {folder.name: partial(load, folder) for folder in checkpoint_folders(path)}
    lines = [
        "from srmlab.storage import load_tokenizer",
        f"run = {str(path)!r}",
        "model = srmlab.load(run)",
        "tokenizer = load_tokenizer(run)",
    ]
    with_means = bool(evaluation) and has_streams(model)
    if with_means:
        lines.insert(1, "from srmlab.explorer.opening import evaluation_text")
        lines.append("reference = srmlab.analysis.state_means(model, evaluation_text(run, model))")
    folder = Path(dictionary) if dictionary is not None else find_dictionary(path, model)
    if folder is not None:
        lines += [
            "import srmlab.dictionaries",
            f"lexicon = srmlab.dictionaries.Lexicon.load({str(folder)!r})",
        ]
    texts = [tokenizer.decode(row.tolist()) for batch in evaluation for row in batch]
    prompts = whole_sentences(texts, tokenizer) or [EXAMPLE]
    return Session(
        model,
        tokenizer,
        name=path.resolve().name,
        reference=state_means(model, evaluation) if with_means else None,
        lexicon=Lexicon.load(folder, model) if folder is not None else None,
        notes=Notes() if folder is None else Notes.read(notes_of(path, folder)),
        evaluation=evaluation,
        checkpoints=checkpoints,
        twin=True,
        saved=saved_results(path),
        switches=saved_switches(path, model),
        python="\n".join(lines),
        prompts=prompts,
    )


def whole_sentences(texts: Sequence[str], tokenizer: Tokenizer, count: int = 3) -> list[str]:
    """Example prompts: from each text the first sentences that are whole, enough of them to be worth tracing;
    of a text without any, its beginning."""
    found, cut = [], []
    for text in texts:
        parts = re.split(r"(?<=[.!?;:])\s+", text)[1:-1]  # the first and the last may be cut
        for first in range(len(parts)):
            taken = ""
            for part in parts[first:]:
                if len(tokenizer.encode(f"{taken} {part}")) > 2 * EXCERPT:
                    break
                taken = f"{taken} {part}".strip()
            if len(tokenizer.encode(taken)) >= EXCERPT // 2 and taken[0].isupper() and taken[-1] in ".!?":
                found.append(" ".join(taken.split()))
                break
        else:
            cut.append(tokenizer.decode(tokenizer.encode(text)[:EXCERPT]))
        if len(found) == count:
            break
    return [*found, *cut][:count]


def find_dictionary(path: Path, model: LanguageModel) -> Path | None:
    """The newest dictionary of a run that was learned on these weights. Those of other checkpoints are passed
    over, without a word if it is a checkpoint that is looked at."""
    for folder in lexicons_of(path):
        try:
            Lexicon.load(folder, model)
        except UserError as error:
            if path.parent.name != "checkpoints":
                warnings.warn(f"{folder} is not shown: {error}", Notice, stacklevel=2)
        else:
            return folder
    return None


def notes_of(path: Path, dictionary: Path) -> Path:
    """Where notes on features are kept: beside the dictionary, unless nothing may be added there."""
    if any(sealed(folder) for folder in (path, dictionary.parent)):
        return place_for(path, f"{dictionary.name}.notes.json")
    return dictionary.parent / f"{dictionary.name}.notes.json"


def saved_results(path: Path) -> dict[str, Any]:
    """The analyses beside a run: what each found in a line, on how much text, and its summary."""
    from srmlab import analysis

    found: dict[str, Any] = {}
    for file in sorted((path / "analysis").glob("*.json")):
        if file.name == "index.json":  # of `srmlab analyze`: which result came from what
            continue
        try:
            result = analysis.load(file.with_suffix(""))
            found[file.stem] = {
                "kind": result.kind,
                "headline": result.headline(),
                "summary": f"{result.summary()}\n{beside_twins(file, result)}".rstrip(),
                "evidence": str(result.evidence),
            }
            if isinstance(result, Dynamics):
                found[file.stem]["over_training"] = over_training(result)
        except (UserError, NotImplementedError, KeyError, ValueError, OSError) as error:
            warnings.warn(f"{file.with_suffix('')} is not shown: {error}", Notice, stacklevel=2)
    return found


def saved_switches(path: Path, model: LanguageModel) -> Switches | None:
    """Which features open which edge, if `srmlab analyze --only switches` asked that of a model of this
    shape. What cannot be read, `saved_results` speaks of."""
    try:
        found = Switches.load(path / "analysis" / Switches.kind)
    except UserError:
        return None
    return found if found.weight.shape == (model.depth, heads_of(model), *2 * (len(model.streams),)) else None


def over_training(result: Dynamics) -> dict[str, Any]:
    """Its numbers that there is one of at each checkpoint, as plain data; None is an error nobody knows."""

    def plain(values: np.ndarray) -> list[float | None]:
        return [float(value) if np.isfinite(value) else None for value in values]

    curves = {
        name: {
            "values": plain(getattr(result, name)),
            "errors": plain(result.standard_error(name)),
            "unit": about.unit,
        }
        for name, about in Dynamics.uncertain().items()
        if about.names == "checkpoint" and np.isfinite(getattr(result, name)).all()
    }
    return {"steps": result.steps.tolist(), "curves": curves, "tokens": result.evidence.tokens}


def beside_twins(file: Path, result: Result) -> str:
    """The same numbers of the run's untrained twins, where `srmlab analyze` measured them."""
    others = saved_twins(file.parent, result)
    return null_summary(result, others) if others else ""


def use_threads(model: LanguageModel) -> None:
    """A small model answers quickest on one thread: its matrices are too small to share out."""
    if model.num_parameters() < SMALL:
        torch.set_num_threads(1)


def checkpoint_folders(path: Path) -> list[Path]:
    folders = [
        folder for folder in (path / "checkpoints").glob("step-*") if (folder / "config.json").is_file()
    ]
    return sorted(folders, key=lambda folder: (len(folder.name), folder.name))


def _tokenizer(path: Path) -> Tokenizer:
    tokenizer = saved_tokenizer(path)
    if tokenizer is None:
        raise UserError(f"{path} has no tokenizer beside it: export the model with one, or give the run")
    return tokenizer


def evaluation_text(path: str | Path, model: LanguageModel) -> list[Tensor]:
    """Some of the run's validation text, beside it or where the run found it: what means are taken over."""
    from srmlab.training.run import RunConfig

    path = Path(path)
    context = min(model.config.context, 256)
    if (path / TEXT).is_file():
        tokens = read_text(path / TEXT, _tokenizer(path))
        rows = torch.from_numpy(tokens.read(0, len(tokens) // context * context)).view(-1, context)
        return list(rows[:REFERENCE_WINDOWS].split(4))
    if not (path / "run.json").is_file():
        return []
    try:
        data = open_tokens(RunConfig.read(path).data, verify=False)
    except (DataError, OSError):
        return []
    batches = EvaluationBatches(data.val, context, batch_size=4)
    return [batch.tokens for batch in islice(batches, REFERENCE_WINDOWS // 4)]
