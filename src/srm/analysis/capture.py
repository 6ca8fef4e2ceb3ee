"""Streaming capture: one forward pass per batch feeds any number of accumulators, which keep sums and no
caches.

An `Accumulator` names the sites it wants, sees their values as the pass goes by, reduces them to one number
per sequence and quantity, and adds those to its `Mean`s. Nothing that grows with the text is kept, so memory
is that of one batch.

    >>> import srm, torch
    >>> from srm.analysis.capture import Accumulator, Mean, capture
    >>> class Norms(Accumulator):
    ...     "The mean squared length of every layer's state."
    ...     def __init__(self, model):
    ...         self.sites = [f"layers.{l}.out" for l in range(model.config.depth)]
    ...         self.means = {"square": Mean(model.config.depth)}
    ...     def begin(self, batch):
    ...         self.rows = []
    ...     def see(self, name, value):
    ...         self.rows.append(value.square().sum((1, 2, 3)))      # [B]
    ...     def end(self, batch, embedding):
    ...         self.means["square"].add(torch.stack(self.rows, 1), batch.tokens.shape[1])
    ...     def result(self, evidence):
    ...         return self.means["square"].mean
    >>> model = srm.build(srm.preset("srm-nano"))
    >>> (squares,) = capture(model, [torch.arange(64).view(2, 32)], Norms(model))
    >>> squares.round().tolist()                             # 8 streams × 32 dims of unit mean square
    [256.0, 256.0, 256.0, 256.0, 256.0, 256.0, 256.0, 256.0]

All state is sums, so two halves of a text merge by addition (`merge`), processes under torchrun share the
batches and add up their sums, and a run that is stopped picks up its saved sums (`checkpoint=`).

Standard errors are over sequences: tokens of one window depend on each other, windows hardly do. For
per-sequence sums s_i of w_i tokens the mean is m = Σs/Σw and its standard error √(n/(n−1) · Σ(s_i −
m·w_i)²)/Σw, from Σs², Σsw and Σw². One sequence alone has no standard error (NaN).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from srm.analysis.result import Array, Evidence, write_npz
from srm.errors import UserError
from srm.models import LanguageModel

IGNORE = -100  # a target that does not count
SINGLE_PASS = "batches that can be read only once: pass a list, or a function that returns an iterator"

Batches = Iterable[Any] | Callable[[], Iterable[Any]]


@dataclass(frozen=True)
class Batch:
    tokens: Tensor  # [B, T]
    targets: Tensor  # [B, T], the next token; −100 where there is none
    index: int  # its place among all batches, whichever process reads it

    @property
    def counted(self) -> Tensor:
        """[B, T], True where there is a target."""
        return self.targets != IGNORE


class Mean:
    """A running mean over tokens of an array of quantities, with its standard error over sequences."""

    def __init__(self, *shape: int, spread: bool = True) -> None:
        self.sums = torch.zeros(3 if spread else 1, *shape, dtype=torch.float64)  # Σs, Σs², Σsw
        self.weights = torch.zeros(3, dtype=torch.float64)  # Σw, Σw², n

    def add(self, sums: Tensor, tokens: int | Tensor) -> None:
        """Per-sequence sums [B, …], and how many tokens each is over: a number, or [B]."""
        s = sums.detach().to("cpu", torch.float64)
        w = torch.as_tensor(tokens, dtype=torch.float64, device="cpu").expand(s.shape[0])
        self.sums[0] += s.sum(0)
        if len(self.sums) == 3:
            self.sums[1] += s.square().sum(0)
            self.sums[2] += torch.tensordot(w, s, 1)
        self.weights += torch.stack((w.sum(), w.square().sum(), (w > 0).sum().double()))

    @property
    def mean(self) -> Array:
        return (self.sums[0] / self.weights[0]).numpy()

    @property
    def standard_error(self) -> Array:
        total, squares, n = self.weights.tolist()
        if n < 2:
            return np.full(self.sums.shape[1:], np.nan)
        m = self.sums[0] / total
        spread = self.sums[1] - 2 * m * self.sums[2] + m.square() * squares
        spread[spread < 1e-13 * self.sums[1]] = 0.0  # what rounding leaves of a constant
        return (spread.clamp(min=0) * (n / (n - 1))).sqrt().div(total).numpy()


class Accumulator:
    """One analysis at work: sites to listen at, sums to keep."""

    sites: Sequence[str] = ()
    means: dict[str, Mean]
    settings: Mapping[str, Any] = MappingProxyType({})  # what its sums depend on besides model and text

    def begin(self, batch: Batch) -> None:
        """Before a pass."""

    def see(self, name: str, value: Tensor) -> None:
        """The value at one of the sites, in the order of the computation."""

    def end(self, batch: Batch, embedding: Tensor) -> None:
        """After a pass; `embedding` [B, T, E] is what the unembedding reads."""

    def result(self, evidence: Evidence) -> Any:
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """Every sum, by name."""
        named = {}
        for name, mean in self.means.items():
            named[f"{name}.sums"], named[f"{name}.weights"] = mean.sums, mean.weights
        return named


class EvidenceSums(Accumulator):
    """Counts and fingerprints the text itself."""

    def __init__(self) -> None:
        self.means = {"counted": Mean()}
        # sums of the 16-bit pieces of 64-bit hashes: exact in fp64, and additive
        self.hashes = torch.zeros(4, dtype=torch.float64)  # of the tokens: the text's fingerprint
        self.pairs = torch.zeros(4, dtype=torch.float64)  # of tokens and targets: what saved sums are of

    def begin(self, batch: Batch) -> None:
        tokens, targets = (ids.to("cpu", torch.int64) for ids in (batch.tokens, batch.targets))
        self.hashes += _hash_rows(tokens)
        self.pairs += _hash_rows(torch.cat((tokens, targets), dim=1))
        self.means["counted"].add(batch.counted.sum(1), batch.tokens.shape[1])

    def state(self) -> dict[str, Tensor]:
        return {**super().state(), "hashes": self.hashes, "pairs": self.pairs}

    def result(self, evidence: Evidence | None = None) -> Evidence:  # noqa: ARG002
        total = sum(int(piece) << (16 * i) for i, piece in enumerate(self.hashes.tolist()))
        tokens, _, sequences = self.means["counted"].weights.tolist()
        return Evidence(int(tokens), int(sequences), f"{total % 2**64:016x}")


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
) -> list[Any]:
    """Run the model over the batches once; the accumulators' results, in their order.

    A batch is tokens [B, T], or a pair of tokens and targets. With `checkpoint` the sums are saved there
    every `every` batches and taken up again when model, settings and text are the same. `progress` is told
    how many batches are done.
    """
    books = [EvidenceSums(), *accumulators]
    rank, world = _process()
    saved = None if checkpoint is None else Path(f"{checkpoint}.{rank}-of-{world}.npz")
    identity = "" if saved is None else _identity(model, accumulators)
    done = _resume(saved, identity, batches, books) if saved is not None else 0
    read = 0
    with evaluating(model), torch.inference_mode():
        for batch in numbered(batches, model.device):
            read += 1
            if batch.index % world == rank and batch.index >= done:
                _pass(model, batch, books)
                if saved is not None and (batch.index // world + 1) % every == 0:
                    _save(saved, identity, batch.index + 1, books)
            if progress is not None:
                progress(read)
    if read == 0:
        raise UserError("no batches to analyse: give at least one [batch, token] tensor of token ids")
    if saved is not None:
        _save(saved, identity, read, books)
    share_sums(books)
    evidence = books[0].result(Evidence(0, 0, ""))
    return [accumulator.result(evidence) for accumulator in accumulators]


def merge(into: Accumulator, other: Accumulator) -> None:
    """Add the sums of another part of the text."""
    theirs = other.state()
    for name, sums in into.state().items():
        sums += theirs[name]


def stream_major(value: Tensor) -> Tensor:
    """A site's value [B, T, S, D] as the model holds it, [S, B, T, D]: each stream's tokens side by side, and
    quick to read."""
    return value.permute(2, 0, 1, 3).float()


def read_twice(batches: Batches) -> Batches:
    """The batches, once it is certain that they can be read a second time."""
    if not callable(batches) and iter(batches) is batches:
        raise UserError(SINGLE_PASS)
    return batches


@contextmanager
def evaluating(model: LanguageModel) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def as_batch(given: Any, index: int, device: torch.device) -> Batch:
    tokens, targets = given if isinstance(given, tuple | list) else (given, None)
    tokens = tokens.to(device)
    if tokens.ndim != 2:
        raise UserError(f"a batch of shape {tuple(tokens.shape)}: need [batch, token] token ids")
    if targets is None:
        last = torch.full_like(tokens[:, :1], IGNORE)
        targets = torch.cat((tokens[:, 1:], last), dim=1)
    return Batch(tokens, targets.to(device), index)


def numbered(batches: Batches, device: torch.device) -> Iterator[Batch]:
    for index, given in enumerate(batches() if callable(batches) else batches):
        yield as_batch(given, index, device)


def observe(model: LanguageModel, batch: Batch) -> tuple[Tensor, Tensor | None]:
    """One pass: the embedding [B, T, E], and the logits [B, T, V] if somebody listens there."""
    tap = model.tap()
    embedding = model.hidden(batch.tokens, tap=tap)
    return embedding, tap("logits", embedding @ model.unembedding.T) if tap.wants("logits") else None


def need_targets(mean: Mean) -> None:
    """Refuse a mean over targets of a text without any."""
    if mean.weights[0] == 0:
        raise UserError("no position has a next token: give windows of at least two tokens, or targets")


def _pass(model: LanguageModel, batch: Batch, books: Sequence[Accumulator]) -> None:
    model.check_tokens(batch.tokens, targets=batch.targets)
    hooks = []
    for book in books:
        book.begin(batch)
        if book.sites:
            hooks.append((book.sites, _listener(book)))
    with model.hooks(hooks):
        embedding, _ = observe(model, batch)
    for book in books:
        book.end(batch, embedding)


def _listener(book: Accumulator):
    def listen(value: Tensor, hook) -> None:
        book.see(hook.name, value)

    return listen


def _process() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def on_any_process(flag: bool) -> bool:
    """Whether `flag` holds in this process or, under torchrun, in any other."""
    if _process()[1] == 1:
        return flag
    shared = torch.tensor(int(flag), device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return bool(shared)


def share_sums(books: Sequence[Accumulator]) -> None:
    """Under torchrun: every process gets the sums of all."""
    if _process()[1] == 1:
        return
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    for book in books:
        for sums in book.state().values():
            shared = sums.to(device)
            dist.all_reduce(shared)
            sums.copy_(shared)


def model_fingerprint(model: LanguageModel) -> str:
    """A hash of the config and of all weights."""
    digest = hashlib.blake2b(json.dumps(model.config.to_dict()).encode(), digest_size=16)
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _identity(model: LanguageModel, accumulators: Sequence[Accumulator]) -> str:
    """What saved sums belong to: the model, the accumulators and their settings."""
    kinds = [[type(book).__name__, dict(book.settings)] for book in accumulators]
    return json.dumps([model_fingerprint(model), kinds], default=str)


def _save(path: Path, identity: str, done: int, books: Sequence[Accumulator]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {
        f"{i}.{name}": sums.numpy() for i, book in enumerate(books) for name, sums in book.state().items()
    }
    write_npz(path, {**arrays, "identity": np.array(identity), "done": np.array(done)})


def _resume(path: Path, identity: str, batches: Batches, books: Sequence[Accumulator]) -> int:
    """Fill the books from a saved state if it is of the same model, settings and text; how many batches that
    covers."""
    if not path.exists():
        return 0
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    if str(arrays.pop("identity", "")) != identity:
        return 0
    done = int(arrays.pop("done"))
    if not callable(batches) and iter(batches) is batches:
        raise UserError(SINGLE_PASS)
    rank, world = _process()
    text = EvidenceSums()
    for batch in numbered(batches, torch.device("cpu")):
        if batch.index >= done:
            break
        if batch.index % world == rank:
            text.begin(batch)
    if not all(
        np.array_equal(sums.numpy(), arrays.get(f"0.{name}", ())) for name, sums in text.state().items()
    ):
        return 0
    for i, book in enumerate(books):
        for name, sums in book.state().items():
            sums.copy_(torch.from_numpy(arrays[f"{i}.{name}"]))
    return done
