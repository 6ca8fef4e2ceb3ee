"""A run with its text: a model, and its evaluation text, read the way the run did in training.

    text = open_text("runs/nano")
    for batch in text.batches(batch_size=8, limit_tokens=16_384):
        loss = text.model(batch.tokens, batch.targets, documents=batch.documents)

The text is a file, if one is given, or the validation tokens of the run's data. A model that comes with a
`validation.txt`, as the shipped one does, is evaluated on that unless other data is given.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from srmlab.data import (
    Batches,
    EvaluationBatches,
    TokenData,
    Tokenizer,
    Tokens,
    open_tokens,
)
from srmlab.errors import UserError, nearest, reason
from srmlab.files import sealed
from srmlab.models import LanguageModel
from srmlab.pretrained import NAMES
from srmlab.pretrained import folder as shipped
from srmlab.puzzles import is_puzzles
from srmlab.storage import load, saved_tokenizer
from srmlab.storage.run_directory import homes
from srmlab.training.config import TrainConfig
from srmlab.training.distributed import device_of
from srmlab.training.evaluation import check_tokenizer, check_vocabulary
from srmlab.training.memory import keep_buffers
from srmlab.training.run import RunConfig, run_config

TEXT = "validation.txt"  # a piece of the validation text, beside a model


@dataclass(frozen=True)
class RunText:
    path: Path
    run: RunConfig | None  # None for an export
    model: LanguageModel
    tokenizer: Tokenizer
    data: TokenData | None  # None if the text is a file
    tokens: Tokens  # what is evaluated
    source: str  # which text that is
    context: int  # tokens of a window
    document_mask: bool = False
    marks: tuple[int, ...] | None = None  # only answers are targets: what follows one of these
    spread: bool = False  # of a part of the text, windows lie evenly over all of it, not at its beginning

    def batches(self, batch_size: int, limit_tokens: int | None = None) -> EvaluationBatches:
        """The evaluation text, or `limit_tokens` of it."""
        return EvaluationBatches(
            self.tokens, self.context, batch_size, limit_tokens, self.marks, self.document_mask, self.spread
        )

    def training_batches(self, batch_size: int, seed: int) -> Batches:
        """The training text, in the order of a seed."""
        data = self.training_data()
        return Batches(data.train, self.context, batch_size, seed, document_mask=self.document_mask)

    def training_data(self) -> TokenData:
        if self.data is None:
            raise UserError(f"{self.path} does not come with its training data: give --data DIR")
        return self.data

    def read_by(self, path: str | Path, *, context: int | None = None, device: str = "auto") -> RunText:
        """The same text for another model, whose own data need not be there; without a tokenizer of its own
        it is taken to have this one."""
        path = Path(path)
        model, run = load(path, device=device_of(device)), run_config(path)
        check_reads_text(path, model, context)
        tokenizer = saved_tokenizer(path) or self.tokenizer
        check_vocabulary(model.config.vocab_size, tokenizer.vocab_size, self.source, trained=True)
        context = min(self.context, context or window_of(model, run))
        return replace(self, path=path, run=run, model=model, tokenizer=tokenizer, context=context)

    def name(self, batches: EvaluationBatches) -> str:
        """What was read, and how. A result is known by it."""
        within = ", attention within documents" if self.document_mask else ""
        answers = ", answers only" if self.marks is not None else ""
        spread = ", spread over the text" if self.spread else ""
        return f"{self.source}, {batches.windows} windows of {self.context}{within}{answers}{spread}"


def open_text(
    path: str | Path,
    *,
    data: Path | None = None,
    text: Path | None = None,
    context: int | None = None,
    longest: int | None = None,
    document_mask: bool = False,
    answers_only: bool = False,
    spread: bool = False,
    device: str = "auto",
    verify: bool = True,
) -> RunText:
    """The model of a run, a checkpoint or an export, and its text.

    `data` is a folder of `srmlab prepare`, by default the run's; `text` a file to read instead, as one
    document. Windows are as long as in training, or `context`, and no longer than `longest`. Attention stays
    within documents, and only answers count, if it was so in training or is asked for here. With `spread`, a
    part of the text is windows from all of it. `verify=False` skips the checksums of the data.
    """
    keep_buffers()
    path = Path(path)
    model = load(path, device=device_of(device))
    check_reads_text(path, model, context)
    run = run_config(path)
    trained = run.training if run else TrainConfig()
    context = min(context or window_of(model, run), longest or model.config.context)
    file = text or (None if data else text_of(path))
    folder = data or (run.data if run else None)
    if file is not None:
        refuse_of_text(answers_only=answers_only, document_mask=document_mask)
        own = saved_tokenizer(path)
        if own is not None and data is not None:
            raise UserError("--data and --text: only one of them can be read; leave out the other")
        tokenizer = own or _tokenizer_of_data(path, folder, file)
        tokens = read_text(file, tokenizer)
        digest = hashlib.sha256(tokens.read(0, len(tokens)).tobytes()).hexdigest()
        check_vocabulary(model.config.vocab_size, tokens.vocab_size, file, trained=True)
        context = min(context, max(1, len(tokens) - 1))
        source = f"{file.name} {digest[:12]}"
        return RunText(path, run, model, tokenizer, None, tokens, source, context, spread=spread)
    if folder is None:
        raise UserError(f"{path} does not say what it was trained on: give --data DIR")
    if is_puzzles(folder):
        raise UserError(f"{folder} holds puzzles, but {path} reads text: give another --data DIR")
    opened = open_tokens(folder, verify=verify)
    check_vocabulary(model.config.vocab_size, opened.vocab_size, opened.path, trained=True)
    check_tokenizer(path, opened)
    return RunText(
        path=path,
        run=run,
        model=model,
        tokenizer=opened.tokenizer,
        data=opened,
        tokens=opened.val,
        source=f"validation tokens {opened.fingerprint[:12]}",
        context=context,
        document_mask=document_mask or trained.document_mask,
        marks=opened.tokenizer.answer_marks if answers_only or trained.answers_only else None,
        spread=spread,
    )


def refuse_of_text(*, answers_only: bool, document_mask: bool) -> None:
    """What a file of text, which is one document, cannot be read with."""
    fix = "give --data DIR instead of --text"
    if answers_only:
        raise UserError(f"--answers-only: no document ends in a text file; {fix}")
    if document_mask:
        raise UserError(f"--document-mask: a text file is one document; {fix}")


def window_of(model: LanguageModel, run: RunConfig | None) -> int:
    """Tokens of a window in training."""
    return (run and run.training.context) or model.config.context


def check_reads_text(path: Path, model: LanguageModel, context: int | None = None) -> None:
    """That the model reads text, and windows of this length if one is given."""
    if not model.config.causal:
        raise UserError(f"{path} is a puzzle model and reads no text: use `srmlab solve` or `srmlab explore`")
    most = model.config.context
    if context is not None and not 1 <= context <= most:
        raise UserError(f"--context {context}: {path} has a context of {most}, give 1 to {most}")


def read_text(file: Path, tokenizer: Tokenizer) -> Tokens:
    """The tokens of a text file, as one document, with its own line ends: those that `srmlab prepare`
    makes of it.
    """
    try:
        content = file.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file} as UTF-8 text ({reason(error)}): give a text file") from None
    ids = np.asarray(tokenizer.encode(content), dtype=np.uint32)
    if len(ids) < 3:
        raise UserError(f"{file} has {len(ids)} tokens: give a longer text")
    return Tokens([ids], vocab_size=tokenizer.vocab_size, end_of_text=tokenizer.end_of_text)


def text_of(path: str | Path) -> Path | None:
    """The piece of validation text that a model comes with, if it does."""
    return next((home / TEXT for home in homes(path) if (home / TEXT).is_file()), None)


def chosen(path: str | Path | None, pretrained: bool) -> Path:
    """The model a command is about: the path it was given, or the shipped one. (`--pretrained NAME` has
    become the path of that one.)
    """
    if (path is not None) == pretrained:
        meant = "" if path is None or str(path) in NAMES else nearest(str(path), list(NAMES))
        raise UserError(
            f"give either a run, such as runs/nano, or --pretrained ({' or '.join(NAMES)}){meant}"
        )
    return shipped() if path is None else Path(path)


def place_for(path: Path, name: str, inside: str | None = None) -> Path:
    """Where something about a model is written: into its run, as `name` or `inside`; next to it, if nothing
    may be added to it; into the current folder, if it is a shipped model."""
    if (path / "run.json").is_file() and not sealed(path):
        return path / (name if inside is None else inside)
    return (Path() if path.parent == shipped().parent else path.parent) / f"{path.name}-{name}"


def _tokenizer_of_data(path: Path, data: Path | None, file: Path) -> Tokenizer:
    if data is None:
        raise UserError(f"{path} has no tokenizer for {file}: give the --data DIR of its training")
    return open_tokens(data).tokenizer
