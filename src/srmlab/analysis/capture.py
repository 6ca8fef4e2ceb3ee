"""Streaming capture: one forward pass per batch feeds any number of accumulators, which keep sums rather than
caches.

An `Accumulator` names the sites it wants, sees their values during the pass, and reduces them to one number
per sequence and quantity (`sums`), which are added to its `Mean`s. Nothing that grows with the text is
kept, so memory is that of one batch.

    >>> import srmlab, torch
    >>> from srmlab.analysis.capture import Accumulator, Mean, capture
    >>> class Norms(Accumulator):
    ...     "The mean squared length of every layer's state."
    ...     def __init__(self, model):
    ...         self.sites = [f"layers.{l}.out" for l in range(model.config.depth)]
    ...         self.means = {"square": Mean(model.config.depth)}
    ...     def see(self, name, value):
    ...         self.sums["square"][:, self.sites.index(name)] = value.square().sum((1, 2, 3))      # [B]
    ...     def result(self, evidence):
    ...         return self.means["square"].mean
    >>> model = srmlab.build(srmlab.preset("srm-nano"))
    >>> (squares,) = capture(model, [torch.arange(64).view(2, 32)], Norms(model))
    >>> squares.round().tolist()                             # 8 streams × 32 dims of unit mean square
    [256.0, 256.0, 256.0, 256.0, 256.0, 256.0, 256.0, 256.0]

All state is sums, so two halves of a text merge by addition (`merge`), processes under torchrun share the
batches and add up their sums, and a stopped run resumes from its saved sums (`checkpoint=`).

Standard errors are over sequences: tokens within a window are dependent, windows nearly independent. For
per-sequence sums s_i of w_i tokens the mean is m = Σs/Σw and its standard error √(n/(n−1) · Σ(s_i −
m·w_i)²)/Σw, from Σs², Σsw and Σw². One sequence alone has no standard error (NaN).

Quantities that a result derives from its means (a hub score, a share, a rank) have bootstrap errors.
Sequences are assigned in turn to 32 folds with separate sums; the folds are resampled, with replacement, 100
times, and each time the result is recomputed. The standard deviation of its numbers, times √(k/(k−1)) for k
folds in use, is their error.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from srmlab.analysis.bootstrap import DRAWS, bootstrapped
from srmlab.analysis.result import Array, Evidence, Result, write_npz
from srmlab.data import Batch, as_batch
from srmlab.errors import UserError
from srmlab.models import LanguageModel
from srmlab.storage.identity import model_fingerprint

FOLDS = 32  # parts of the text whose sums are kept apart

Batches = Iterable[Any] | Callable[[], Iterable[Any]]
Done = Callable[..., None]  # (how many more are done, by default one)


@dataclass(frozen=True, eq=False)
class Placed(Batch):
    """A batch and its place in the text, whichever process reads it."""

    index: int = 0  # batches before it
    first: int = 0  # sequences before it

    @property
    def folds(self) -> Tensor:
        """[B] The fold each sequence belongs to."""
        return (self.first + torch.arange(len(self.tokens))) % FOLDS


class Mean:
    """A running mean of an array of quantities over tokens, or over those with a target, with its standard
    error over sequences."""

    def __init__(self, *shape: int, over: Literal["tokens", "targets"] = "tokens") -> None:
        self.shape, self.over = shape, over
        self.sums = torch.zeros(FOLDS, *shape, dtype=torch.float64)  # Σs of each fold
        self.spread = torch.zeros(2, *shape, dtype=torch.float64)  # Σs², Σsw
        self.weights = torch.zeros(FOLDS, dtype=torch.float64)  # Σw of each fold
        self.sequences = torch.zeros(2, dtype=torch.float64)  # n, Σw²

    def add(self, batch: Placed, sums: Tensor, tokens: Tensor | None = None) -> None:
        """Per-sequence sums [B, …], and how many tokens each is over [B]; by default all of them, or all with
        a target."""
        s = sums.detach().to("cpu", torch.float64)
        if tokens is None:
            tokens = torch.ones_like(batch.tokens) if self.over == "tokens" else batch.counted
            tokens = tokens.sum(1)
        w = tokens.cpu().double()
        self.sums.index_add_(0, batch.folds, s)
        self.weights.index_add_(0, batch.folds, w)
        self.spread[0] += s.square().sum(0)
        self.spread[1] += torch.tensordot(w, s, 1)
        self.sequences += torch.stack(((w > 0).sum().double(), w.square().sum()))

    @property
    def total(self) -> float:
        """How many tokens."""
        return float(self.weights.sum())

    @property
    def mean(self) -> Array:
        return (self.sums.sum(0) / self.weights.sum()).numpy()

    @property
    def standard_error(self) -> Array:
        n, squares = self.sequences.tolist()
        if n < 2:
            return np.full(self.sums.shape[1:], np.nan)
        m = self.sums.sum(0) / self.weights.sum()
        spread = self.spread[0] - 2 * m * self.spread[1] + m.square() * squares
        spread[spread < 1e-13 * self.spread[0]] = 0.0  # what rounding leaves of a constant
        return (spread.clamp(min=0) * (n / (n - 1))).sqrt().div(self.weights.sum()).numpy()

    def drawn(self, times: Tensor) -> Mean:
        """The mean if each fold had come so many times [FOLDS]; without a standard error."""
        other = Mean()
        other.sums = torch.tensordot(times, self.sums, 1)[None]
        other.weights = (times @ self.weights)[None]
        return other


class Accumulator:
    """One analysis at work: sites to listen at, sums to keep."""

    makes: ClassVar[type[Result]]  # what it comes to
    needed: ClassVar[str] = ""  # the mean that there must be targets for
    reads: ClassVar[bool] = True  # whether the model has to read the text for it
    sites: Sequence[str] = ()
    means: dict[str, Mean]
    settings: Mapping[str, Any] = MappingProxyType({})  # what its sums depend on besides model and text
    known: Mapping[str, Any] = MappingProxyType({})  # the fields of its result that are not measured
    sums: Mapping[str, Tensor] = MappingProxyType({})  # of this batch, [B, …] for each of the means
    tokens: Tensor | None = None  # [B] how many of them the sums are over, if not as the means say

    def begin(self, batch: Placed) -> None:
        """Before a pass: all sums are 0."""
        B, device = len(batch.tokens), batch.tokens.device
        self.sums = {name: torch.zeros(B, *mean.shape, device=device) for name, mean in self.means.items()}

    def see(self, name: str, value: Tensor) -> None:
        """The value at one of the sites, in the order of the computation."""

    def end(self, batch: Placed, embedding: Tensor) -> None:  # noqa: ARG002
        """After a pass: the sums join the means. `embedding` [B, T, E] is what the unembedding reads."""
        for name, sums in self.sums.items():
            self.means[name].add(batch, sums, self.tokens)

    def result(self, evidence: Evidence) -> Any:
        if self.needed and self.means[self.needed].total == 0:
            raise UserError("no position has a next token: give windows of at least two tokens, or targets")
        return self.makes(evidence=evidence, **self.known, **self.numbers())

    def numbers(self) -> dict[str, Any]:
        """Every mean by its name, and their standard errors: the measured fields of a result."""
        errors = {name: mean.standard_error for name, mean in self.means.items()}
        return {name: mean.mean for name, mean in self.means.items()} | {"errors": errors}

    def state(self) -> dict[str, Tensor]:
        """Every sum, by name."""
        return {
            f"{name}.{part}": getattr(mean, part)
            for name, mean in self.means.items()
            for part in ("sums", "spread", "weights", "sequences")
        }


class EvidenceSums(Accumulator):
    """Counts and fingerprints the text itself."""

    reads = False

    def __init__(self) -> None:
        self.means = {"counted": Mean()}
        # sums of the 16-bit pieces of 64-bit hashes: exact in fp64, and additive
        self.hashes = torch.zeros(4, dtype=torch.float64)  # of the tokens: the text's fingerprint
        self.pairs = torch.zeros(4, dtype=torch.float64)  # with targets and documents: what saved sums are of

    def begin(self, batch: Placed) -> None:
        given = [batch.tokens, batch.targets, *([] if batch.documents is None else [batch.documents])]
        rows = [ids.to("cpu", torch.int64) for ids in given]
        self.hashes += _hash_rows(rows[0])
        self.pairs += _hash_rows(torch.cat(rows, dim=1))
        self.means["counted"].add(batch, batch.counted.sum(1))

    def state(self) -> dict[str, Tensor]:
        return {**super().state(), "hashes": self.hashes, "pairs": self.pairs}

    def result(self, evidence: Evidence | None = None) -> Evidence:  # noqa: ARG002
        """The text, once it is read."""
        total = sum(int(piece) << (16 * i) for i, piece in enumerate(self.hashes.tolist()))
        counted = self.means["counted"]
        return Evidence(int(counted.total), int(counted.sequences[0]), f"{total % 2**64:016x}")


def evidence_of(batches: Iterable[Placed]) -> Evidence:
    """What text this is."""
    text = EvidenceSums()
    for batch in batches:
        text.begin(batch)
    return text.result()


def _hash_rows(ids: Tensor) -> Tensor:
    total = torch.zeros(4, dtype=torch.float64)
    for row in ids.numpy():
        digest = hashlib.blake2b(row.astype("<i8").tobytes(), digest_size=8).digest()
        total += torch.from_numpy(np.frombuffer(digest, dtype="<u2").astype(np.float64))
    return total


def capture(
    model: LanguageModel,
    batches: Batches,
    *accumulators: Accumulator,
    checkpoint: str | Path | None = None,
    every: int = 16,
    progress: Callable[[int], None] | None = None,
    bootstrap: bool = True,
) -> list[Any]:
    """Run the model over the batches once; the accumulators' results, in their order.

    A batch is tokens [B, T], a pair of tokens and targets, or a `srmlab.data.Batch`; if that has documents,
    attention stays within them, for a model that was trained so. With `checkpoint` the sums are saved there
    every `every` batches and taken up again when model, settings and text are the same. `progress` is called
    with the number of batches done. Without `bootstrap` derived numbers have no standard error.
    """
    all_sums = [EvidenceSums(), *accumulators]
    rank, world = _process()
    saved = None if checkpoint is None else Path(f"{checkpoint}.{rank}-of-{world}.npz")
    identity = "" if saved is None else _identity(model, accumulators)
    done = _resume(saved, identity, batches, all_sums) if saved is not None else 0
    read = 0
    with model.evaluating(), torch.inference_mode():
        for batch in placed(batches, model.device):
            read += 1
            if batch.index % world == rank and batch.index >= done:
                _pass(model, batch, all_sums)
                if saved is not None and (batch.index // world + 1) % every == 0:
                    _save(saved, identity, batch.index + 1, all_sums)
            if progress is not None:
                progress(read)
    if read == 0:
        raise UserError("no batches to analyse: give at least one [batch, token] tensor of token ids")
    if saved is not None:
        _save(saved, identity, read, all_sums)
    share_sums(all_sums)
    evidence = all_sums[0].result(Evidence(0, 0, ""))
    finish = finished if bootstrap else (lambda accumulator, evidence: accumulator.result(evidence))
    return [finish(accumulator, evidence) for accumulator in accumulators]


def finished(accumulator: Accumulator, evidence: Evidence) -> Any:
    """The accumulator's result, with the standard errors of the numbers it derives."""
    found = accumulator.result(evidence)
    if not isinstance(found, Result) or not found.derived() or not accumulator.means:
        return found
    weights = torch.stack([mean.weights for mean in accumulator.means.values()])
    if int((weights > 0).sum(1).min()) < 2:
        return found
    folds = weights.amax(0).nonzero().squeeze(1)
    generator = torch.Generator().manual_seed(0)
    drawn = copy.copy(accumulator)

    def samples() -> Iterator[Result]:
        for chosen in folds[torch.randint(len(folds), (DRAWS, len(folds)), generator=generator)]:
            times = torch.bincount(chosen, minlength=FOLDS).double()
            if bool((weights @ times > 0).all()):  # else there is nothing of what one of the means is over
                drawn.means = {name: mean.drawn(times) for name, mean in accumulator.means.items()}
                yield drawn.result(evidence)

    errors = bootstrapped(found, samples(), len(folds))
    return dataclasses.replace(found, errors={**found.errors, **errors})


def merge(into: Accumulator, other: Accumulator) -> None:
    """Add the sums of another part of the text."""
    theirs = other.state()
    for name, sums in into.state().items():
        sums += theirs[name]


def read_twice(batches: Batches) -> Batches:
    """The batches, once it is certain that they can be read a second time."""
    if not callable(batches) and iter(batches) is batches:
        raise UserError("batches can be read only once: pass a list, or a function that returns an iterator")
    return batches


def place(given: Any, device: torch.device, index: int = 0, first: int = 0) -> Placed:
    """Any form of a batch, on the device, with its place in the text."""
    batch = as_batch(given).to(device)
    return Placed(batch.tokens, batch.targets, batch.documents, index, first)


def placed(batches: Batches, device: torch.device) -> Iterator[Placed]:
    """The batches in their order, each with its place."""
    first = 0
    if isinstance(batches, Tensor):  # one batch: not to be read row by row
        batches = [batches]
    for index, given in enumerate(batches() if callable(batches) else batches):
        batch = place(given, device, index, first)
        first += len(batch.tokens)
        yield batch


def observe(model: LanguageModel, batch: Batch) -> tuple[Tensor, Tensor | None]:
    """One pass: the embedding [B, T, E], and the logits [B, T, V] if a hook listens there."""
    tap = model.tap()
    embedding = model.output_embedding(batch.tokens, documents=batch.documents, tap=tap)
    return embedding, tap("logits", embedding @ model.unembedding.T) if tap.wants("logits") else None


def counting(progress: Callable[..., None] | None, total: int, *name: str) -> Done:
    """To be called when more are done: tells `progress`, if there is one, the name, how many, and of how
    many."""
    done = 0

    def more(count: int = 1) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(*name, done, total)

    return more


def _pass(model: LanguageModel, batch: Placed, all_sums: Sequence[Accumulator]) -> None:
    model.check_tokens(batch.tokens, documents=batch.documents, targets=batch.targets)
    if not 0 <= int(batch.tokens.min()) <= int(batch.tokens.max()) < model.config.vocab_size:
        raise UserError(f"batch {batch.index} has token ids outside 0 to {model.config.vocab_size - 1}")
    hooks = []
    for accumulator in all_sums:
        accumulator.begin(batch)
        if accumulator.sites:
            hooks.append((accumulator.sites, _listener(accumulator, model)))
    embedding = torch.empty(0)  # which nobody looks at if nobody reads
    if any(accumulator.reads for accumulator in all_sums):
        with model.hooks(hooks):
            embedding, _ = observe(model, batch)
    for accumulator in all_sums:
        accumulator.end(batch, embedding)


def _listener(accumulator: Accumulator, model: LanguageModel):
    def listen(value: Tensor, hook) -> None:
        accumulator.see(hook.name, model.at_tokens(value))

    return listen


def _process() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def share_sums(all_sums: Sequence[Accumulator]) -> None:
    """Under torchrun: every process gets the sums of all."""
    if _process()[1] == 1:
        return
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    for accumulator in all_sums:
        for sums in accumulator.state().values():
            shared = sums.to(device)
            dist.all_reduce(shared)
            sums.copy_(shared)


def _identity(model: LanguageModel, accumulators: Sequence[Accumulator]) -> str:
    """What saved sums belong to: the model, the accumulators and their settings."""
    kinds = [[type(accumulator).__name__, dict(accumulator.settings)] for accumulator in accumulators]
    return json.dumps([model_fingerprint(model), kinds], default=str)


def _save(path: Path, identity: str, done: int, all_sums: Sequence[Accumulator]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {
        f"{i}.{name}": sums.numpy()
        for i, accumulator in enumerate(all_sums)
        for name, sums in accumulator.state().items()
    }
    write_npz(path, {**arrays, "identity": np.array(identity), "done": np.array(done)})


def _resume(path: Path, identity: str, batches: Batches, all_sums: Sequence[Accumulator]) -> int:
    """Fill the sums from a saved state if it is of the same model, settings and text; how many batches that
    covers."""
    if not path.exists():
        return 0
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    if str(arrays.pop("identity", "")) != identity:
        return 0
    done = int(arrays.pop("done"))
    read_twice(batches)
    rank, world = _process()
    text = EvidenceSums()
    for batch in placed(batches, torch.device("cpu")):
        if batch.index >= done:
            break
        if batch.index % world == rank:
            text.begin(batch)
    now = {f"0.{name}": sums.numpy() for name, sums in text.state().items()}
    if not all(np.array_equal(sums, arrays.get(name, ())) for name, sums in now.items()):
        return 0
    for i, accumulator in enumerate(all_sums):
        for name, sums in accumulator.state().items():
            sums.copy_(torch.from_numpy(arrays[f"{i}.{name}"]))
    return done
