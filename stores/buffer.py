"""The indexed batch: writes of the open transaction in memory, readable by key and in key order before the commit.

It is a stack of layers. Writes go to the active one, the top. A scan freezes the stack: what is written later goes
to a new layer, so a scan copies nothing and never changes. Layers that no scan holds any more are merged, and where
scans follow each other so closely that one always holds some, they are compacted, like the levels of an LSM tree.

Within a layer the ranges lie below the writes: a range delete first drops the writes that it covers, and a later
write goes on top. Source: KIP-892, "RocksDB Transactions" (WriteBatchWithIndex), and "Transactional support under
READ_UNCOMMITTED" there for the chain of frozen batches.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from itertools import islice
from threading import Lock
from typing import Final, Protocol

from stores.engines.engine import Writes
from stores.merge import MappedWrites
from stores.ranges import KeyRanges
from stores.sorted_map import SORTED_AT_ONCE, SortedMap


class Missing:
    """The type of ``MISSING``: the batch says nothing of this key, ask below."""


MISSING: Final = Missing()


_FROZEN_MAX = 8
"""Where more layers than this lie below the active one, they are compacted: making a scan and looking a key up take a
step for each."""
_MERGED_AT_ONCE = 4096
"""A layer of at most so many writes is merged while readers wait."""
_ORDERED_AT_ONCE = 512
"""Keys that are brought into the one order of a layer while readers wait."""
_CUT_FROM = 32_768
"""Keys are put in order as they come from so many on, which a commit then need not sort; and where a scan has shown
what is staged, from the first on."""
_ROOM_MAX = 1 << 18
"""The most that a writer may take from ``room_bytes`` before it is asked to make room: then keys are put in order."""


PAIR_MEMORY_BYTES: Final = 92
"""What a staged pair takes of memory beside its key and value: two objects of Python, a slot in a dict and one in the
order of keys. Measured with tracemalloc: 65 to 140, by the sizes of both and by how full the dict is."""
RANGE_MEMORY_BYTES: Final = 110
"""The same of a range delete, beside its bounds."""


class Spilled(Protocol):
    """Where drained writes are."""

    def get(self, key: bytes) -> bytes | Missing | None:
        """The write of ``key``, None for a delete, MISSING where there is none."""

    def pairs_between(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, int]]:
        """The keys of ``start <= key < end`` that have a write, with the bytes of key and value."""


class Layer:
    """Staged writes (None deletes) over staged range deletes."""

    __slots__ = ("pins", "ranges", "staged")

    def __init__(self, writes: dict[bytes, bytes | None] | None = None) -> None:
        self.staged: SortedMap[bytes | None] = SortedMap(writes)
        self.ranges = KeyRanges()
        self.pins = 0

    def is_empty(self) -> bool:
        """Whether the layer changes nothing."""
        return not self.staged.writes and not self.ranges

    def size(self) -> int:
        """How many writes and ranges there are."""
        return len(self.staged.writes) + len(self.ranges)

    def as_writes(self) -> Writes:
        """The layer as an engine takes it."""
        layer = _LayerWrites(self.ranges, self.staged.writes)
        layer.staged = self.staged
        return layer

    def scan(self, start: bytes | None, end: bytes | None, *, end_open: bool, reverse: bool) -> MappedWrites:
        """The staged writes in order, nothing of them copied. The layer is frozen."""
        keys = self.staged.merge(start, end, end_open=end_open, reverse=reverse)
        return MappedWrites(keys, self.staged.writes, reverse=reverse)

    def absorb(self, newer: Layer) -> None:
        """Lay ``newer`` over this layer."""
        for start, end in newer.ranges:
            self.staged.discard_range(start, end)
        self.ranges.update(newer.ranges)
        self.staged.writes.update(newer.staged.writes)

    def slip_under(self, older: Layer) -> None:
        """Lay this layer over ``older``, and keep the result here."""
        writes = self.staged.writes
        for key, value in older.staged.writes.items():
            if key not in writes and key not in self.ranges:
                writes[key] = value
        self.ranges.update(older.ranges)


class _LayerWrites(Writes):
    """Writes whose keys are partly in order already."""

    staged: SortedMap[bytes | None]

    def keys_in_order(self) -> Iterator[list[bytes]]:
        return self.staged.merge(None, None)


def _laid_over(older: Layer, newer: Layer) -> Layer:
    """A new layer of both, made in steps that are each short. Neither may change meanwhile."""
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
    """One writer; another thread may look into ``writes``, and holding ``lock`` may ``get`` and ``freeze``.

    ``capacity_bytes`` is how much memory it is to take (``memory_bytes``); a writer sees to it, by ``room_bytes``.
    """

    def __init__(self, capacity_bytes: int = sys.maxsize) -> None:
        self.lock: Final = Lock()
        """Held while layers change hands."""
        self._frozen: tuple[Layer, ...] = ()
        self._active = Layer()
        self.writes = self._active.staged.writes
        """The active layer's writes. A writer may assign a value to ``batch.writes[key]`` itself, and take it from
        ``room_bytes``, unless ``deep``: in this one expression, since the interpreter changes threads between it and
        any other."""
        self.deep = False
        """Whether anything is staged below the active layer's writes, so that ``put`` must look there."""
        self._released: deque[tuple[Layer, ...]] = deque()
        self._capacity_bytes = capacity_bytes
        self.room_bytes = 0
        """Bytes of keys and values that a writer may stage before it has to ``make_room``; below 0 where more is held
        than the capacity. A writer has compared a write with it anyway: so neither the capacity nor the order of keys
        costs a step of its own. No write increases it: so this is the most new pairs, too, and ``make_room`` can allow
        for what each takes beside its key and value."""
        self.granted_bytes = 0
        """The room that was made since the batch was empty: what is held is what is missing from it. A writer takes
        from it what a write has replaced."""
        self._pair_bytes = 64
        """About what a pair has of keys and values, as far as is known."""
        self._scanned = False
        """Whether a scan has shown anything that was staged."""
        self._drained_bytes = 0
        self._drained: Spilled | None = None
        self.make_room(0)

    @property
    def num_bytes(self) -> int:
        """Bytes of the staged keys, values and range bounds, drained ones too; what is overwritten does not count."""
        return self.granted_bytes - self.room_bytes + self._drained_bytes

    def num_bytes_held(self) -> int:
        """As ``num_bytes``, without what was drained: what the batch keeps in memory."""
        return self.granted_bytes - self.room_bytes

    def memory_bytes(self) -> int:
        """About what the batch takes of memory. From any thread."""
        layers = (*self._frozen, self._active)
        writes = sum([len(layer.staged.writes) for layer in layers])
        ranges = sum([len(layer.ranges) for layer in layers])
        return self.num_bytes_held() + PAIR_MEMORY_BYTES * writes + RANGE_MEMORY_BYTES * ranges

    def make_room(self, num_bytes: int, entry_bytes: int = PAIR_MEMORY_BYTES) -> bool:
        """Let ``room_bytes`` be so many at least, unless that is beyond the capacity; puts keys in order on the way.

        ``entry_bytes`` is what the entries of those bytes take beside them. For the writer's thread, right before it
        stages so much.
        """
        staged = self._active.staged
        count = len(staged.writes)
        if staged.num_fresh() >= SORTED_AT_ONCE and (count >= _CUT_FROM or self._scanned):
            staged.cut()
        held = self.num_bytes_held()
        if count:
            self._pair_bytes = held // count + 1
        left = self._capacity_bytes - self.memory_bytes()
        if num_bytes + entry_bytes > left:
            return False
        room_bytes = max(num_bytes, self._room_in(left))
        self.granted_bytes = held + room_bytes
        self.room_bytes = room_bytes
        return True

    def _room_in(self, memory_bytes: int) -> int:
        """The bytes of keys and values to grant at once: pairs with a key of one byte must fit as well."""
        return min(memory_bytes // (1 + PAIR_MEMORY_BYTES), _ROOM_MAX, SORTED_AT_ONCE * self._pair_bytes)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Stage ``value``; None deletes."""
        old = self.writes.get(key, MISSING)
        if old is MISSING and self.deep:
            old = self._get_older(key)
        self.room_bytes -= len(key) + len(value or b"")
        if not isinstance(old, Missing):
            self.granted_bytes -= len(key) + len(old or b"")
        # One step from here on: a reader may freeze the layer between any two others.
        self.writes[key] = value

    def put_all(self, writes: dict[bytes, bytes | None]) -> None:
        """Stage all of ``writes``, in one moment for whatever thread reads. The dict is the batch's from now on."""
        for key, value in writes.items():
            old = self.writes.get(key, MISSING)
            if old is MISSING and self.deep:
                old = self._get_older(key)
            self.room_bytes -= len(key) + len(value or b"")
            if not isinstance(old, Missing):
                self.granted_bytes -= len(key) + len(old or b"")
        if len(writes) <= _MERGED_AT_ONCE:
            with self.lock:
                # One step for readers without the lock as well, since comparing bytes runs no Python.
                self.writes.update(writes)
            return
        layer = Layer(writes)
        layer.staged.cut()
        with self.lock:
            if not self._active.is_empty():
                self._frozen = (*self._frozen, self._active)
            self._start_layer(layer)
            self._merge()

    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        """Stage the removal of all keys from ``start`` to ``end``, both included."""
        self._tidy()
        self._order_active()
        with self.lock:
            self._merge()
            active = self._active
            before = active.ranges.num_bytes()
            removed = active.staged.discard_range(start, end)
            self.granted_bytes -= sum([len(key) + len(value or b"") for key, value in removed])
            if self._frozen or self._drained is not None:
                self._discount_older({key for key, _ in removed}, start, end)
            active.ranges.add(start, end)
            added_bytes = active.ranges.num_bytes() - before
            self.room_bytes -= max(added_bytes, 0)
            self.granted_bytes += min(added_bytes, 0)
            self.deep = True

    def _order_active(self) -> None:
        """Do most of what a range delete has to before readers have to wait for it."""
        staged = self._active.staged
        if staged.num_unordered() <= _ORDERED_AT_ONCE:
            return
        if staged.is_mostly_unordered():
            staged.order_anew()
        while staged.num_unordered() > _ORDERED_AT_ONCE:
            with self.lock:
                if self._active.staged is not staged:
                    return
                staged.order_some(_ORDERED_AT_ONCE)

    def _discount_older(self, newer: set[bytes], start: bytes | None, end: bytes | None) -> None:
        """Count no more what lies below the active layer from ``start`` to ``end``, but for the keys in ``newer``.

        Only between the ranges that hide it already: each write is passed by once, however often its key is deleted.
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
        """The staged value, None for a staged delete, MISSING where nothing is staged."""
        value = self.writes.get(key, MISSING)
        if value is MISSING and self.deep:
            return self._get_below(key)
        return value

    def _get_below(self, key: bytes) -> bytes | Missing | None:
        # The active layer first: a reader's freeze that comes between has it among the frozen ones as well.
        active = self._active
        return lookup((*self._frozen, active), key)

    def _get_older(self, key: bytes) -> bytes | Missing | None:
        """What counts as staged for ``key`` below the active layer: MISSING also where a range delete covers it."""
        if self._released or self._frozen:
            self._tidy()
        for layer in (self._active, *reversed(self._frozen)):
            if key in layer.staged.writes:
                return layer.staged.writes[key]
            if key in layer.ranges:
                return MISSING
        old = MISSING if self._drained is None else self._drained.get(key)
        if not isinstance(old, Missing):
            # The key counts already, but not as something held here.
            num_bytes = len(key) + len(old or b"")
            self._drained_bytes -= num_bytes
            self.granted_bytes += num_bytes
        return old

    def is_empty(self) -> bool:
        """Whether nothing is staged."""
        active = self._active
        return active.is_empty() and not self._frozen

    def drain(self, drained: Spilled) -> None:
        """Forget the layers, which somebody else keeps from now on, and answers for: they go on counting as staged.

        The caller holds ``lock``.
        """
        self._frozen = ()
        self._drained, self._drained_bytes = drained, self.num_bytes
        self._start_layer(Layer())
        self._hold_nothing()

    def layers(self) -> list[Layer]:
        """The stack, oldest first, for the writer to hand to an engine. The caller holds ``lock``."""
        return [layer for layer in (*self._frozen, self._active) if not layer.is_empty()]

    def freeze(self, pins: int = 1) -> tuple[Layer, ...]:
        """The stack as it is now, pinned until as many calls of ``release``. The caller holds ``lock``."""
        self._scanned = True
        if not self._active.is_empty():
            self._frozen = (*self._frozen, self._active)
            self._start_layer(Layer())
        # Here as well: who only reads must not let them pile up.
        self._settle()
        for layer in self._frozen:
            layer.pins += pins
        return self._frozen

    def release(self, layers: tuple[Layer, ...]) -> None:
        """Give a frozen stack back, from any thread, also from a finaliser: it takes no lock."""
        self._released.append(layers)

    def _settle(self) -> None:
        """Take account of what was given back. The caller holds ``lock``."""
        while self._released:
            for layer in self._released.popleft():
                layer.pins -= 1

    def as_writes(self) -> list[Writes]:
        """The stack as an engine takes it. For the writer's thread, without ``lock``."""
        # In this order: a reader that freezes the layer says so before it puts another one in its place. So where
        # nothing lies below, these are all of the writes, and nobody has to wait.
        writes = self.writes
        if not self.deep and len(writes) < SORTED_AT_ONCE:
            return [Writes((), writes)] if writes else []
        with self.lock:
            self._merge()
            return [layer.as_writes() for layer in self.layers()]

    def _tidy(self) -> None:
        """Keep the stack low. For the writer's thread, which does not hold ``lock``."""
        frozen = self._frozen
        if self._released or (frozen and not frozen[-1].pins):
            with self.lock:
                self._merge()
            if self._frozen and not self._frozen[-1].pins and not self._active.ranges:
                self._merge_large(self._frozen[-1], self._active)
        if len(self._frozen) > _FROZEN_MAX:
            self._compact()

    def _merge(self) -> None:
        """Make one layer, the active one, of those on top that no scan holds, as far as little has to be moved."""
        self._settle()
        while self._frozen and not self._frozen[-1].pins:
            older, newer = self._frozen[-1], self._active
            if min(older.size(), newer.size()) > _MERGED_AT_ONCE:
                break
            if newer.ranges and older.staged.num_unordered() > _MERGED_AT_ONCE:
                # A range delete has to find what it covers.
                break
            self._frozen = self._frozen[:-1]
            if older.size() >= newer.size():
                older.absorb(newer)
                self._start_layer(older)
            else:
                newer.slip_under(older)
                self._start_layer(newer)

    def _merge_large(self, older: Layer, newer: Layer) -> None:
        """Lay the active layer over the one below, a part at a time, as long as no reader comes between.

        What both have is shown from the upper one: nobody can tell how far this has got.
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
        """Make fewer layers, from the top down while the lower one is not much the larger: a write is copied as often
        as its layer doubles. Scans keep the layers that they have, and readers do not wait meanwhile."""
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
        # Before the layer is written to: a reader's freeze must not leave the writer with a shallow view.
        self.deep = bool(self._frozen or layer.ranges or self._drained)
        self.writes = layer.staged.writes

    def clear(self) -> None:
        """Forget everything staged; frozen stacks that are still pinned stay readable. The caller holds ``lock``."""
        staged = self._active.staged
        if self.deep or staged.is_partly_ordered():
            self._frozen = ()
            self._drained = None
            self._drained_bytes = 0
            self._start_layer(Layer())
        else:
            # As after most commits: there is one layer, no scan has it, and nothing but its writes is to be forgotten.
            staged.writes = self.writes = {}
        self._hold_nothing()

    def _hold_nothing(self) -> None:
        """Make the room that there is in an empty batch."""
        self.granted_bytes = self.room_bytes = self._room_in(self._capacity_bytes)


def lookup(layers: tuple[Layer, ...], key: bytes) -> bytes | Missing | None:
    """What a stack says of ``key``: a value, None for deleted, MISSING for nothing."""
    for layer in reversed(layers):
        value = layer.staged.writes.get(key, MISSING)
        if value is not MISSING:
            return value
        if key in layer.ranges:
            return None
    return MISSING
