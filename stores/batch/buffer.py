"""The indexed batch: writes of the open transaction in memory, readable by key and in key order before the commit.

It is a stack of layers. Writes go to the active layer at the top. A scan freezes the stack: later writes go to a new
layer, so that a scan copies nothing and never changes. Layers that no scan holds are merged. If scans follow each other
so closely that one always holds some layers, these are compacted, like the levels of an LSM tree.

Within a layer the ranges lie below the writes: a range delete first drops the writes that it covers, and a later
write goes on top. Source: KIP-892, "RocksDB Transactions" (WriteBatchWithIndex), and "Transactional support under
READ_UNCOMMITTED" there for the chain of frozen batches.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from threading import Lock
from typing import Final, Protocol

from stores.batch.memory import PAIR_MEMORY_BYTES, RANGE_MEMORY_BYTES
from stores.batch.merge import MappedWrites
from stores.batch.recent import RecentWrites
from stores.engines.engine import Writes
from stores.ordered import SORTED_AT_ONCE, KeyRanges, ScanRange, SortedMap


class Missing:
    """The type of ``MISSING``: the batch has no write of this key, so look below it."""


MISSING: Final = Missing()


_FROZEN_MAX = 8
"""The most layers below the active one; with more, they are compacted. A scan and a lookup take a step for each."""
_MERGED_AT_ONCE = 4096
"""The most writes of a layer that is merged while readers wait."""
_ORDERED_AT_ONCE = 512
"""The number of keys that are sorted into a layer's single order while readers wait."""
_CUT_FROM = 32_768
"""The number of writes in a layer from which new keys are sorted before the commit, which then need not sort them.

After a scan of staged writes, keys are sorted from the first one on.
"""
_ROOM_MAX = 1 << 18
"""The most that a writer may take from ``room_bytes`` before it must make room, which also sorts keys."""


class Spilled(Protocol):
    """The place of drained writes."""

    def get(self, key: bytes) -> bytes | Missing | None:
        """Return the value of ``key``: None for a delete, MISSING if there is no write."""

    def pairs_between(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, int]]:
        """Yield the keys of ``start <= key < end`` that have a write, with the number of bytes of the pair."""


class Layer:
    """Staged writes (None deletes) over staged range deletes."""

    __slots__ = ("pins", "ranges", "staged")

    def __init__(self, writes: dict[bytes, bytes | None] | None = None) -> None:
        self.staged: SortedMap[bytes | None] = SortedMap(writes)
        self.ranges = KeyRanges()
        self.pins = 0

    def is_empty(self) -> bool:
        """Return True if the layer changes nothing."""
        return not self.staged.writes and not self.ranges

    def size(self) -> int:
        """Return the number of writes and ranges."""
        return len(self.staged.writes) + len(self.ranges)

    def as_writes(self) -> Writes:
        """Return the layer in the form that an engine takes."""
        layer = _LayerWrites(self.ranges, self.staged.writes)
        layer.staged = self.staged
        return layer

    def scan(self, bounds: ScanRange, *, reverse: bool) -> MappedWrites:
        """Return the staged writes in order, without a copy. The layer is frozen."""
        start, end, end_open, _ = bounds
        keys = self.staged.merge(start, end, end_open=end_open, reverse=reverse)
        return MappedWrites(keys, self.staged.writes, reverse=reverse)

    def absorb(self, newer: Layer) -> None:
        """Merge ``newer`` over this layer, and keep the result here."""
        for start, end in newer.ranges:
            self.staged.discard_range(start, end)
        self.ranges.update(newer.ranges)
        self.staged.writes.update(newer.staged.writes)

    def slip_under(self, older: Layer) -> None:
        """Merge this layer over ``older``, and keep the result here."""
        writes = self.staged.writes
        for key, value in older.staged.writes.items():
            if key not in writes and key not in self.ranges:
                writes[key] = value
        self.ranges.update(older.ranges)


class _LayerWrites(Writes):
    """Writes whose keys are partly sorted already."""

    staged: SortedMap[bytes | None]

    def keys_in_order(self) -> Iterator[list[bytes]]:
        return self.staged.merge(None, None)


def _laid_over(older: Layer, newer: Layer) -> Layer:
    """Return a new layer with ``newer`` merged over ``older``, made in short steps. Neither may change meanwhile."""
    below, above = older.staged.writes, newer.staged.writes
    if len(below) + len(above) <= _MERGED_AT_ONCE and not older.ranges and not newer.ranges:
        # The usual case while scans overlap writes. The first scan of the layer sorts its few keys.
        return Layer({**below, **above})
    merged = Layer()
    merged.ranges.update(older.ranges)
    merged.ranges.update(newer.ranges)
    for layer in (older, newer):
        items = iter(layer.staged.writes.items())
        while some := list(islice(items, _MERGED_AT_ONCE)):
            if layer is older and newer.ranges:
                some = [item for item in some if item[0] not in newer.ranges]
            merged.staged.writes.update(some)
    merged.staged.cut()
    return merged


class IndexedBatch:
    """The staged writes of one writer. Other threads may read ``writes``; with ``lock`` held, ``get`` and ``freeze``.

    ``capacity_bytes`` is the limit on its memory (``memory_bytes``). The writer keeps to it with ``room_bytes``.
    """

    def __init__(self, capacity_bytes: int = sys.maxsize) -> None:
        self.lock: Final = Lock()
        """The lock to hold while layers are frozen, merged or drained."""
        self._frozen: tuple[Layer, ...] = ()
        self._active = Layer()
        self.writes = self._active.staged.writes
        """The active layer's writes. Unless ``deep``, a writer may itself assign to ``batch.writes[key]`` and subtract
        from ``room_bytes``. The assignment must be this one expression: between two the interpreter may switch threads,
        and a reader may freeze the layer."""
        self.deep = False
        """True if there are staged writes below those of the active layer, so that ``put`` must look there."""
        self.recent: Mapping[bytes, bytes | None] = {}
        """Some writes of the last commits (``RecentWrites``), for the writer's thread."""
        self._recent_writes = RecentWrites(capacity_bytes)
        self._released: deque[tuple[Layer, ...]] = deque()
        self._capacity_bytes = capacity_bytes
        self.room_bytes = 0
        """The bytes of keys and values that a writer may stage before it must call ``make_room``.

        It is below 0 if the batch holds more than the capacity. One comparison per write thus serves both the capacity
        and the sorting of keys. No write increases it. So it also limits the number of new pairs, and ``make_room`` can
        account for the memory of each entry.
        """
        self.granted_bytes = 0
        """The room that was granted since the batch was empty: the batch holds this minus ``room_bytes``. A writer
        subtracts the bytes that a write has replaced."""
        self._pair_bytes = 64
        """The average bytes of a pair's key and value, as far as is known."""
        self._first_room_bytes = self._room_in(capacity_bytes)
        """The room of an empty batch."""
        self._scanned = False
        """True if a scan has read staged writes."""
        self._drained_bytes = 0
        self._drained: Spilled | None = None
        self.make_room(0)

    @property
    def num_bytes(self) -> int:
        """The bytes of staged keys, values and range bounds, drained ones too. Overwritten values do not count."""
        return self.granted_bytes - self.room_bytes + self._drained_bytes

    def num_bytes_held(self) -> int:
        """Return ``num_bytes`` without the drained writes: the bytes that the batch keeps in memory."""
        return self.granted_bytes - self.room_bytes

    def memory_bytes(self) -> int:
        """Return an estimate of the batch's memory. May be called on any thread."""
        layers = (*self._frozen, self._active)
        writes = sum([len(layer.staged.writes) for layer in layers])
        ranges = sum([len(layer.ranges) for layer in layers])
        return self.num_bytes_held() + PAIR_MEMORY_BYTES * writes + RANGE_MEMORY_BYTES * ranges

    def make_room(self, num_bytes: int, entry_bytes: int = PAIR_MEMORY_BYTES) -> bool:
        """Raise ``room_bytes`` to at least ``num_bytes``; return False if that would exceed the capacity.

        It also sorts keys. ``entry_bytes`` is the memory of the entries in addition to ``num_bytes``. For the writer's
        thread, right before it stages these bytes.
        """
        staged = self._active.staged
        count = len(staged.writes)
        if staged.num_fresh() >= SORTED_AT_ONCE and (count >= _CUT_FROM or self._scanned):
            staged.cut()
        bytes_held = self.num_bytes_held()
        if count:
            self._pair_bytes = bytes_held // count + 1
            self._first_room_bytes = self._room_in(self._capacity_bytes)
        room = self._capacity_bytes - self.memory_bytes()
        if num_bytes + entry_bytes > room:
            return False
        room_bytes = max(num_bytes, self._room_in(room))
        self.granted_bytes = bytes_held + room_bytes
        self.room_bytes = room_bytes
        return True

    def _room_in(self, memory_bytes: int) -> int:
        """Return the bytes of keys and values to grant at once: even if all are in pairs of one byte, they must fit."""
        return min(memory_bytes // (1 + PAIR_MEMORY_BYTES), _ROOM_MAX, SORTED_AT_ONCE * self._pair_bytes)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Stage ``value``; None deletes."""
        old = self.writes.get(key, MISSING)
        if old is MISSING and self.deep:
            old = self._get_older(key)
        self.room_bytes -= len(key) + len(value or b"")
        self._discount(key, old)
        # A single expression: a reader may freeze the layer between two expressions.
        self.writes[key] = value

    def put_all(self, writes: dict[bytes, bytes | None], num_bytes: int) -> None:
        """Stage all of ``writes``, of ``num_bytes``, atomically for readers. The batch takes ownership of the dict."""
        if self.deep:
            for key in writes:
                old = self.writes.get(key, MISSING)
                self._discount(key, self._get_older(key) if old is MISSING else old)
        else:
            own = self.writes
            if not own.keys().isdisjoint(writes):
                for key in own.keys() & writes.keys():
                    self._discount(key, own[key])
        self.room_bytes -= num_bytes
        if len(writes) <= _MERGED_AT_ONCE:
            with self.lock:
                # This is atomic for readers without the lock as well: comparing bytes runs no Python code.
                self.writes.update(writes)
            return
        layer = Layer(writes)
        layer.staged.cut()
        with self.lock:
            if not self._active.is_empty():
                self._frozen = (*self._frozen, self._active)
            self._start_layer(layer)
            self._merge()

    def _discount(self, key: bytes, old: bytes | Missing | None) -> None:
        """Subtract the bytes of a staged pair that is replaced, unless ``old`` is MISSING."""
        if not isinstance(old, Missing):
            self.granted_bytes -= len(key) + len(old or b"")

    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        """Stage the removal of all keys from ``start`` to ``end``, both included."""
        self._tidy()
        self._order_active()
        with self.lock:
            self._merge()
            active = self._active
            before = active.ranges.num_bytes()
            pairs = active.staged.discard_range(start, end)
            self.granted_bytes -= sum([len(key) + len(value or b"") for key, value in pairs])
            if self._frozen or self._drained is not None:
                self._discount_older({key for key, _ in pairs}, start, end)
            active.ranges.add(start, end)
            added_bytes = active.ranges.num_bytes() - before
            self.room_bytes -= max(added_bytes, 0)
            self.granted_bytes += min(added_bytes, 0)
            self.deep = True

    def _order_active(self) -> None:
        """Sort most of the keys for a range delete, before readers have to wait for it."""
        staged = self._active.staged
        if staged.num_unordered() <= _ORDERED_AT_ONCE:
            return
        if staged.is_mostly_unordered():
            staged.reorder()
        while staged.num_unordered() > _ORDERED_AT_ONCE:
            with self.lock:
                if self._active.staged is not staged:
                    return
                staged.order_some(_ORDERED_AT_ONCE)

    def _discount_older(self, newer: set[bytes], start: bytes | None, end: bytes | None) -> None:
        """Subtract the writes below the active layer from ``start`` to ``end``, except for the keys in ``newer``.

        Only gaps between ranges that are hidden already are searched: each write is visited once, however often its key
        is deleted.
        """
        stretches = self._active.ranges.gaps([(start, None if end is None else end + b"\x00")])
        for layer in reversed(self._frozen):
            writes = layer.staged.writes
            for low, high in stretches:
                for key in layer.staged.keys_between(low, high, end_open=True):
                    if key not in newer:
                        newer.add(key)
                        self.granted_bytes -= len(key) + len(writes[key] or b"")
            stretches = layer.ranges.gaps(stretches)
        if self._drained is not None:
            for low, high in stretches:
                for key, num_bytes in self._drained.pairs_between(low, high):
                    if key not in newer:
                        self._drained_bytes -= num_bytes

    def get(self, key: bytes) -> bytes | Missing | None:
        """Return the staged value: None for a staged delete, MISSING if nothing is staged."""
        value = self.writes.get(key, MISSING)
        if value is MISSING and self.deep:
            return self._get_below(key)
        return value

    def _get_below(self, key: bytes) -> bytes | Missing | None:
        # Read the active layer first: if a reader freezes it in between, it is among the frozen ones as well.
        active = self._active
        return lookup((*self._frozen, active), key)

    def _get_older(self, key: bytes) -> bytes | Missing | None:
        """Return the staged value of ``key`` below the active writes; MISSING also if a range delete covers it."""
        if self._released or self._frozen:
            self._tidy()
        for layer in (self._active, *reversed(self._frozen)):
            if key in layer.staged.writes:
                return layer.staged.writes[key]
            if key in layer.ranges:
                return MISSING
        old = MISSING if self._drained is None else self._drained.get(key)
        if not isinstance(old, Missing):
            # The key is counted among the drained bytes: move it to the bytes held here.
            num_bytes = len(key) + len(old or b"")
            self._drained_bytes -= num_bytes
            self.granted_bytes += num_bytes
        return old

    def is_empty(self) -> bool:
        """Return True if nothing is staged."""
        active = self._active
        return active.is_empty() and not self._frozen

    def drain(self, drained: Spilled) -> None:
        """Drop the layers, which are in ``drained`` from now on. They still count as staged.

        The caller holds ``lock``.
        """
        self._frozen = ()
        self._drained, self._drained_bytes = drained, self.num_bytes
        self._start_layer(Layer())
        self.granted_bytes = self.room_bytes = self._first_room_bytes

    def layers(self) -> list[Layer]:
        """Return the stack, oldest first, for a write to an engine. The caller holds ``lock``."""
        return [layer for layer in (*self._frozen, self._active) if not layer.is_empty()]

    def freeze(self, pins: int = 1) -> tuple[Layer, ...]:
        """Freeze and return the stack. It is pinned until ``pins`` calls of ``release``. The caller holds ``lock``."""
        self._scanned = True
        if not self._active.is_empty():
            self._frozen = (*self._frozen, self._active)
            self._start_layer(Layer())
        # Settle here as well: if there are only reads, released stacks must not pile up.
        self._settle()
        for layer in self._frozen:
            layer.pins += pins
        return self._frozen

    def release(self, layers: tuple[Layer, ...]) -> None:
        """Release a frozen stack. May be called on any thread and by a finalizer: it takes no lock."""
        self._released.append(layers)

    def _settle(self) -> None:
        """Unpin the released stacks. The caller holds ``lock``."""
        while self._released:
            for layer in self._released.popleft():
                layer.pins -= 1

    def as_writes(self) -> list[Writes]:
        """Return the stack in the form that an engine takes. For the writer's thread, without ``lock``."""
        # In this order: a reader that freezes the layer sets ``deep`` before it replaces the layer. So if ``deep`` is
        # False here, these are all of the writes, and nobody has to wait.
        writes = self.writes
        if not self.deep and len(writes) < SORTED_AT_ONCE:
            return [Writes((), writes)] if writes else []
        with self.lock:
            self._merge()
            return [layer.as_writes() for layer in self.layers()]

    def _tidy(self) -> None:
        """Keep the stack small. For the writer's thread, which does not hold ``lock``."""
        frozen = self._frozen
        if self._released or (frozen and not frozen[-1].pins):
            with self.lock:
                self._merge()
            if self._frozen and not self._frozen[-1].pins and not self._active.ranges:
                self._merge_large(self._frozen[-1], self._active)
        if len(self._frozen) > _FROZEN_MAX:
            self._compact()

    def _merge(self) -> None:
        """Merge the top layers that no scan holds into the active one, as long as few writes have to be moved."""
        self._settle()
        while self._frozen and not self._frozen[-1].pins:
            older, newer = self._frozen[-1], self._active
            if min(older.size(), newer.size()) > _MERGED_AT_ONCE:
                break
            if newer.ranges and older.staged.num_unordered() > _MERGED_AT_ONCE:
                # A range delete needs the sorted keys of the older layer.
                break
            self._frozen = self._frozen[:-1]
            if older.size() >= newer.size():
                older.absorb(newer)
                self._start_layer(older)
            else:
                newer.slip_under(older)
                self._start_layer(newer)

    def _merge_large(self, older: Layer, newer: Layer) -> None:
        """Merge the active layer over the one below, a part at a time, until a reader freezes one of them.

        Readers see writes in both layers from the upper one, so that they can't observe a partial merge.
        """
        items = iter(newer.staged.writes.items())
        while True:
            some = list(islice(items, _MERGED_AT_ONCE))
            with self.lock:
                if self._active is not newer or older.pins:
                    return
                if not some:
                    self._frozen = self._frozen[:-1]
                    self._start_layer(older)
                    return
                older.staged.writes.update(some)

    def _compact(self) -> None:
        """Merge layers from the top down, while the lower one is at most twice as large as the upper one.

        So a write is copied about as often as its layer doubles. Scans keep their layers, and readers do not wait.
        """
        with self.lock:
            stack = list(self._frozen)
        count = len(stack)
        while len(stack) > 1 and stack[-2].size() <= 2 * stack[-1].size():
            newer, older = stack.pop(), stack.pop()
            stack.append(_laid_over(older, newer))
        with self.lock:
            # A reader may have frozen one more layer.
            self._frozen = (*stack, *self._frozen[count:])

    def _start_layer(self, layer: Layer) -> None:
        self._active = layer
        # Set before the layer is used: after a reader's freeze the writer must not miss the layers below.
        self.deep = bool(self._frozen or layer.ranges or self._drained)
        self.writes = layer.staged.writes

    def remember(self, committed: Sequence[Writes]) -> None:
        """Let the writes of a commit become recent ones. Call it after the engine has them, and before ``clear``.

        ``committed`` are all layers, none for a spilled commit. Without the lock: readers do not use recent writes.
        """
        if committed and not committed[1:] and not committed[0].ranges:
            self.recent = self._recent_writes.after(committed[0].writes, self.granted_bytes - self.room_bytes)
        else:
            self.forget_recent()

    def forget_recent(self) -> None:
        """Drop the recent writes. Call it when the engine gets other writes than a commit's, and after a rollback.

        A commit may have failed after the engine took its writes.
        """
        self.recent = {}
        self._recent_writes.forget()

    def clear(self) -> None:
        """Drop all staged writes. Pinned frozen stacks stay readable. The caller holds ``lock``."""
        staged = self._active.staged
        if self.deep or staged.is_partly_ordered():
            self._frozen = ()
            self._drained = None
            self._drained_bytes = 0
            self._start_layer(Layer())
        else:
            # The usual case after a commit: there is one layer that no scan holds, with nothing but its writes.
            staged.writes = self.writes = {}
        self.granted_bytes = self.room_bytes = self._first_room_bytes


def lookup(layers: tuple[Layer, ...], key: bytes) -> bytes | Missing | None:
    """Return the value of ``key`` in a stack: None for a delete, MISSING if there is no write."""
    for layer in reversed(layers):
        value = layer.staged.writes.get(key, MISSING)
        if value is not MISSING:
            return value
        if key in layer.ranges:
            return None
    return MISSING
