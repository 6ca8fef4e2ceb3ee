"""The KV cache: keys and values of the tokens read so far, for every attention call of a pass.

In a recurrent model one set of weights attends many times in a pass (SRM-base: 8 layers × 6 steps, and the
post-step). Each call has its own keys and values, so the cache is a list with one `KeyValues` per call, in
the order of the calls, holding all streams; the first pass makes it as long as it needs. Nothing else needs
remembering: the states z are rebuilt for the new tokens only.

With early exit (see `exit`) a token has keys and values for the levels that were computed for it, and deeper
levels use those of the last one computed. `Copied` gives every level a copy, as fast to read as without exit;
`Settled` stores them once, and gathers them for every call.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from srmlab.errors import UserError


class Past(Protocol):
    """What attention asks of a cache."""

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values [N, H, T, K] of new tokens; all keys and values so far."""
        ...


class KeyValues:
    """The keys and values of one attention call, [N, H, capacity, K], filled from the front."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values [N, H, T, K] of new tokens; all keys and values so far."""
        if self.keys is None or self.values is None:
            N, H, _, K = k.shape
            self.keys = k.new_empty(N, H, self.capacity, K)
            self.values = v.new_empty(N, H, self.capacity, K)
        end = self.length + k.shape[2]
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def filled(self) -> tuple[Tensor, ...]:
        """The keys and values [N, H, length, K] of the tokens read so far."""
        return tuple(all[:, :, : self.length] for all in (self.keys, self.values) if all is not None)

    @property
    def nbytes(self) -> int:
        """Of the tokens read so far."""
        return sum(all.nbytes for all in self.filled())


def slots(found: list[KeyValues], capacity: int) -> Iterator[KeyValues]:
    """A slot for every attention call, in their order; the first pass makes them."""
    for i in itertools.count():
        if i == len(found):
            found.append(KeyValues(capacity))
        yield found[i]


class Borrowed:
    """What another call has kept of earlier tokens, of all rows or some, read but not added to."""

    def __init__(self, kept: KeyValues, rows: Tensor | None = None) -> None:
        self.kept, self.rows = kept, rows

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if not self.kept.length:
            return k, v
        keys, values = self.kept.filled()
        if self.rows is not None:
            keys, values = keys[self.rows], values[self.rows]
        return torch.cat((keys, k), dim=2), torch.cat((values, v), dim=2)


class SomeRows:
    """The slot of a call that only some rows make; of the others it keeps zeros, which nobody looks at."""

    def __init__(self, kept: Past, rows: Tensor, of: int) -> None:
        self.kept, self.rows, self.of = kept, rows, of

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        whole = (x.new_zeros(self.of, *x.shape[1:]).index_copy(0, self.rows, x) for x in (k, v))
        keys, values = self.kept.append(*whole)
        return keys[self.rows], values[self.rows]


class Kept:
    """A call's keys and values, of all tokens so far, for later calls of the pass to look at."""

    def __init__(self, past: Past | None, values: tuple[Tensor, ...] = ()) -> None:
        self.past, self.values = past, values

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = (k, v) if self.past is None else self.past.append(k, v)
        self.values = keys, values
        return keys, values


class Copied:
    """The keys and values of a recursion with early exit: a level that was not computed for a token has a
    copy of those of the last one that was.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0  # tokens
        self.calls: list[list[tuple[Tensor, Tensor]]] = []  # by call and level, with all deeper levels:
        # keys and values [levels, S · B, H, capacity, K]

    def level(self, level: int, depth: int, rows: Tensor, T: int) -> Iterator[Past]:
        """A slot for every attention call of a level that is computed for T new tokens of `rows`."""
        if level == 0:
            self.length, self.depth, self.B = self.length + T, depth, len(rows)
        some = None if len(rows) == self.B else rows
        return (CopiedCall(self, call, level, some) for call in itertools.count())

    def settle(self, level: int) -> None:
        """Rows stop at this level: the deeper ones have their copies already."""

    def make(self, k: Tensor) -> None:
        """Room for another call's keys and values, at all levels."""
        N, H, _, K = k.shape
        keys, values = k.new_empty(2, self.depth, N, H, self.capacity, K)
        self.calls.append([(keys[t:], values[t:]) for t in range(self.depth)])

    @property
    def nbytes(self) -> int:
        """Of the tokens read so far."""
        return sum(all[..., : self.length, :].nbytes for levels in self.calls for all in levels[0])


class CopiedCall:
    """One attention call of one level, for the rows that compute it; None is all."""

    def __init__(self, copied: Copied, call: int, level: int, rows: Tensor | None) -> None:
        self.copied, self.call, self.level, self.rows = copied, call, level, rows

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """As `KeyValues.append`, with N = streams × rows."""
        copied, T = self.copied, k.shape[2]
        if self.call == len(copied.calls):  # at the first level, which all rows compute
            copied.make(k)
        keys, values = copied.calls[self.call][self.level]
        which: Tensor | slice = slice(None)
        if self.rows is not None:
            streams = torch.arange(0, keys.shape[1], copied.B, device=k.device)
            which = (streams[:, None] + self.rows).flatten()
        end = copied.length
        for all, new in ((keys, k), (values, v)):
            all[:, which, :, end - T : end] = new  # the deeper levels' too, until they are computed
        return keys[0, which, :, :end], values[0, which, :, :end]


class Settled:
    """The keys and values of a recursion with early exit: those of the levels that were computed.

    The first levels, which no token has stopped at, are `complete`: each call has a `KeyValues`. From the
    earliest exit on, all levels share one store for every attention call of a level. A place in it belongs to
    a row, a token and a level; `places` says where each level finds each token. A level that was not computed
    finds it at the place of the last one that was.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0  # tokens
        self.new = 0  # of them, those of this pass
        self.complete: list[list[KeyValues]] = []  # by level and call
        self.stores: list[Tensor] = []  # by call: [places, S, 2 (key and value), H, K]
        self.used = 0  # places
        self.places: Tensor | None = None  # [level, B, capacity]
        self.gathered: Tensor | None = None

    def level(self, level: int, depth: int, rows: Tensor, T: int) -> Iterator[Past]:
        """A slot for every attention call of a level that is computed for T new tokens of `rows`."""
        if self.places is None:
            self.places = torch.zeros(depth, len(rows), self.capacity, dtype=torch.int32, device=rows.device)
            self.complete = [[] for _ in range(depth)]
        if level == 0:
            self.length, self.new = self.length + T, T
        if level < len(self.complete):
            return slots(self.complete[level], self.capacity)
        new = self.take(len(rows) * T, rows.device).view(-1, T)
        whose = slice(None) if len(rows) == self.places.shape[1] else rows  # a view where there can be one
        self.places[level:, whose, self.length - T : self.length] = new  # the deeper ones, until computed
        read = self.places[level, whose, : self.length].flatten() if self.length > T else None
        return (SettledCall(self, call, len(rows), read) for call in itertools.count())

    def settle(self, level: int) -> None:
        """Rows stop at this level, so from here on levels share keys and values."""
        assert self.places is not None
        B, end = self.places.shape[1], len(self.complete)
        for t in range(level, end):
            length = self.complete[t][0].length if self.complete[t] else 0
            new = self.take(B * length, self.places.device).view(B, length)
            self.places[t:end, :, :length] = new
            if t == level:  # the tokens of this pass are not in any deeper level yet
                self.places[end:, :, length - self.new : length] = new[:, length - self.new :]
            for call, slot in enumerate(self.complete[t]):
                SettledCall(self, call, B, None).append(*slot.filled())
        del self.complete[level:]

    def take(self, places: int, device: torch.device) -> Tensor:
        self.used += places
        return torch.arange(self.used - places, self.used, dtype=torch.int32, device=device)

    def scratch(self, like: Tensor, places: int) -> Tensor:
        """Where the keys and values for one call are put together: memory that is not taken from the system
        and given back every time.
        """
        if self.gathered is None or len(self.gathered) < places:
            self.gathered = like.new_empty(places * 5 // 4, *like.shape[1:])
        return self.gathered[:places]

    @property
    def nbytes(self) -> int:
        """Of the tokens read so far."""
        if self.places is None:
            return 0
        complete = sum(slot.nbytes for level in self.complete for slot in level)
        shared = sum(store.nbytes // len(store) for store in self.stores) * self.used
        return complete + shared + self.places.nbytes // self.capacity * self.length


class SettledCall:
    """One attention call of one level, for the rows that compute it."""

    def __init__(self, settled: Settled, call: int, rows: int, read: Tensor | None) -> None:
        self.settled, self.call, self.rows = settled, call, rows
        self.read = read  # the places of all tokens of the rows, if there are more than the new ones

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """As `KeyValues.append`, with N = streams × rows."""
        N, H, T, K = k.shape
        S, R = N // self.rows, self.rows
        new = torch.stack((k, v)).view(2, S, R, H, T, K).permute(2, 4, 1, 0, 3, 5)  # [R, T, S, 2, H, K]
        store = self.store(k.new_empty(0, S, 2, H, K))
        store[self.settled.used - R * T : self.settled.used].view(R, T, S, 2, H, K).copy_(new)
        if self.read is None:
            return k, v
        found = torch.index_select(store, 0, self.read, out=self.settled.scratch(store, len(self.read)))
        keys, values = found.view(R, -1, S, 2, H, K).permute(3, 2, 0, 4, 1, 5).flatten(1, 2)
        return keys, values  # [N, H, tokens, K]

    def store(self, empty: Tensor) -> Tensor:
        """The call's store, with room for all places in use; it grows by a quarter at a time."""
        stores, used = self.settled.stores, self.settled.used
        if self.call == len(stores):
            stores.append(empty)
        store = stores[self.call]
        if len(store) < used:
            store = store.new_empty(max(used, len(store) * 5 // 4, 64), *store.shape[1:])
            store[: len(stores[self.call])] = stores[self.call]
            stores[self.call] = store
        return store


class DecodingCache:
    """The KV cache of the tokens read so far: one `KeyValues` per attention call of a pass. With
    early exit those are of the calls outside the recursion, and `settled` has the rest. With `reuse` nothing
    is kept twice: with early exit what levels share is stored once, and without it only the keys and values
    of the last level are kept, which all levels then read.
    """

    def __init__(self, capacity: int, reuse: bool = False) -> None:
        self.capacity, self.reuse = capacity, reuse
        self.rows = 0  # B, from the first pass on
        self.depth: int | None = None  # and of how many levels that was
        self.slots: list[KeyValues] = []
        self.settled: Copied | Settled | None = None
        self.kept: dict[int, Tensor] = {}  # by level, [B, length]: the tokens that were routed through it
        self.real: Tensor | None = None  # [B, length] which tokens are not padding; None if all are

    @property
    def length(self) -> int:
        """How many tokens have been read."""
        if self.settled is not None:
            return self.settled.length
        return self.slots[0].length if self.slots else 0

    @property
    def nbytes(self) -> int:
        """The size of what is cached for the tokens read so far, in bytes."""
        settled = 0 if self.settled is None else self.settled.nbytes
        return settled + sum(slot.nbytes for slot in self.slots)

    def begin(self, rows: int, exit: bool, depth: int) -> None:
        """Before a pass: a cache is read with early exit from its first token to its last, or never; and at
        one depth, as another has other calls.
        """
        self.rows = rows
        if self.length == 0:
            self.depth = depth
        elif depth != self.depth:
            raise UserError(
                f"depth has changed from {self.depth} to {depth} since this cache was created; "
                "create another: model.new_cache()"
            )
        if self.length == 0 and exit:
            self.settled = self.settled or (Settled if self.reuse else Copied)(self.capacity)
        elif exit != (self.settled is not None):
            raise UserError(
                "exit has changed since this cache was created; create another: model.new_cache()"
            )

    def __iter__(self) -> Iterator[KeyValues]:
        return iter(self.slots)

    def calls(self) -> Iterator[KeyValues]:
        """A slot for every attention call of one pass, in their order."""
        return slots(self.slots, self.capacity)

    def calls_of_level(self, last: bool) -> Iterator[Past]:
        """With `reuse`: a slot for every attention call of one level."""
        own = self.calls()
        return own if last else map(Borrowed, own)

    def with_padding(self, tokens: Tensor, real: Tensor | None) -> Tensor | None:
        """Remember which of these `tokens` [B, T] are real; which of all are, [B, length + T]."""
        if real is None and self.real is None:
            return None
        before = (
            tokens.new_ones(len(tokens), self.length, dtype=torch.bool) if self.real is None else self.real
        )
        now = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
        self.real = torch.cat((before, now), dim=1)
        return self.real

    def select(self, rows: Tensor) -> None:
        """Continue from these `rows` of those that were read; a row may occur several times."""
        if self.settled is not None:
            raise UserError("rows read with early exit cannot be put in another order; leave out exit")
        for slot in self:
            if slot.keys is not None and slot.values is not None:
                slot.keys, slot.values = (
                    kept.unflatten(0, (-1, self.rows)).index_select(1, rows.to(kept.device)).flatten(0, 1)
                    for kept in (slot.keys, slot.values)  # [streams × rows, H, capacity, K]
                )
        self.rows = len(rows)
        self.kept = {level: kept[rows.to(kept.device)] for level, kept in self.kept.items()}
        if self.real is not None:
            self.real = self.real[rows.to(self.real.device)]

    def room_for(self, rows: int, tokens: int) -> None:
        """Refuse what cannot be added: [rows, tokens] ids."""
        if self.length and rows != self.rows:
            raise UserError(
                f"{rows} rows after {self.rows} in this cache: give as many, or create another: "
                "model.new_cache()"
            )
        if self.length + tokens > self.capacity:
            raise UserError(
                f"{self.length} cached + {tokens} new tokens exceed the context of {self.capacity}; "
                'shorten the prompt, or generate with overflow="slide"'
            )
