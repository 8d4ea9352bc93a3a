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
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Final

from stores.engines.engine import Writes
from stores.merge import MappedWrites
from stores.ranges import KeyRanges
from stores.sorted_map import SortedMap


class Missing:
    """The type of ``MISSING``: the batch says nothing of this key, ask below."""


MISSING: Final = Missing()


_FROZEN_MAX = 8
"""Where more layers than this are held by scans, they are compacted: making a scan and looking a key up take a step
for each."""


class Layer:
    """Staged writes (None deletes) over staged range deletes."""

    __slots__ = ("pins", "ranges", "staged")

    def __init__(self) -> None:
        self.staged: SortedMap[bytes | None] = SortedMap()
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
        return Writes(self.ranges, self.staged.writes)

    def scan(self, start: bytes | None, end: bytes | None, *, end_open: bool, reverse: bool) -> MappedWrites:
        """The staged writes in order, nothing of them copied. The layer is frozen; sorting it, which only the first of
        its scans has to, takes a lock of the caller's."""
        low, high = self.staged.bounds_between(start, end, end_open=end_open)
        return MappedWrites(self.staged.sorted_keys(), low, high, self.staged.writes, reverse=reverse)

    def absorb(self, newer: Layer) -> None:
        """Lay ``newer`` over this layer."""
        for start, end in newer.ranges:
            self.staged.discard_range(start, end)
        self.ranges.update(newer.ranges)
        self.staged.writes.update(newer.staged.writes)


class IndexedBatch:
    """One writer; another thread may look into ``writes``, and holding ``lock`` may ``get`` and ``freeze``.

    ``capacity_bytes`` is how much it is to hold; who writes sees to it, by ``room_bytes``.
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
        self.room_bytes = capacity_bytes
        """What is left of the capacity; below 0 where more is held. A writer has compared a write with it anyway: so
        the bound costs no step of its own."""
        self._drained_bytes = 0
        self._drained: Callable[[bytes], bytes | Missing | None] | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of the staged keys, values and range bounds, drained ones too; what is overwritten does not count."""
        return self._capacity_bytes - self.room_bytes + self._drained_bytes

    def num_bytes_held(self) -> int:
        """As ``num_bytes``, without what was drained: what the batch keeps in memory."""
        return self._capacity_bytes - self.room_bytes

    def put(self, key: bytes, value: bytes | None) -> None:
        """Stage ``value``; None deletes."""
        old = self.writes.get(key, MISSING)
        if old is MISSING and self.deep:
            old = self._get_older(key)
        if old is MISSING:
            self.room_bytes -= len(key) + len(value or b"")
        else:
            self.room_bytes -= len(value or b"") - len(old or b"")  # type: ignore[arg-type]
        # One step from here on: a reader may freeze the layer between any two others.
        self.writes[key] = value

    def delete_range(self, start: bytes | None, end: bytes | None) -> None:
        """Stage the removal of all keys from ``start`` to ``end``, both included."""
        with self.lock:
            self._merge()
            before = self._active.ranges.num_bytes()
            for key, value in self._visible(start, end).items():
                self.room_bytes += len(key) + len(value or b"")
            self._active.staged.discard_range(start, end)
            self._active.ranges.add(start, end)
            self.room_bytes -= self._active.ranges.num_bytes() - before
            self.deep = True

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
        frozen = self._frozen
        if self._released or len(frozen) > _FROZEN_MAX or (frozen and not frozen[-1].pins):
            with self.lock:
                self._merge()
        for layer in (self._active, *reversed(self._frozen)):
            if key in layer.staged.writes:
                return layer.staged.writes[key]
            if key in layer.ranges:
                return MISSING
        old = MISSING if self._drained is None else self._drained(key)
        if not isinstance(old, Missing):
            # The key counts already, but not as something held here.
            num_bytes = len(key) + len(old or b"")
            self._drained_bytes -= num_bytes
            self.room_bytes -= num_bytes
        return old

    def _visible(self, start: bytes | None, end: bytes | None) -> Mapping[bytes, bytes | None]:
        """The staged writes from ``start`` to ``end`` that no newer layer hides."""
        seen: dict[bytes, bytes | None] = {}
        for layer in (*self._frozen, self._active):
            if layer.ranges:
                seen = {key: value for key, value in seen.items() if key not in layer.ranges}
            for key in layer.staged.keys_between(start, end):
                seen[key] = layer.staged.writes[key]
        return seen

    def is_empty(self) -> bool:
        """Whether nothing is staged."""
        active = self._active
        return active.is_empty() and not self._frozen

    def drain(self, drained: Callable[[bytes], bytes | Missing | None]) -> None:
        """Forget the layers, which somebody else keeps from now on, and answers for: they go on counting as staged.

        The caller holds ``lock``.
        """
        self._frozen = ()
        self._drained, self._drained_bytes = drained, self.num_bytes
        self.room_bytes = self._capacity_bytes
        self._start_layer(Layer())

    def forget_drained(self, num_bytes: int) -> None:
        """So many drained bytes are no longer staged."""
        self._drained_bytes -= num_bytes

    def layers(self) -> list[Layer]:
        """The stack, oldest first, for the writer to hand to an engine. The caller holds ``lock``."""
        return [layer for layer in (*self._frozen, self._active) if not layer.is_empty()]

    def freeze(self) -> tuple[Layer, ...]:
        """The stack as it is now, pinned until ``release``. The caller holds ``lock``."""
        if not self._active.is_empty():
            self._frozen = (*self._frozen, self._active)
            self._start_layer(Layer())
        # Here as well: who only reads must not let them pile up.
        self._settle()
        for layer in self._frozen:
            layer.pins += 1
        return self._frozen

    def release(self, layers: tuple[Layer, ...]) -> None:
        """Give a frozen stack back, from any thread, also from a finaliser: it takes no lock."""
        self._released.append(layers)

    def _settle(self) -> None:
        """Take account of what was given back. The caller holds ``lock``."""
        while self._released:
            for layer in self._released.popleft():
                layer.pins -= 1

    def _merge(self) -> None:
        """Make one layer, the active one, of those on top that no scan holds. Only the writer's thread may."""
        self._settle()
        keep = len(self._frozen)
        while keep and self._frozen[keep - 1].pins == 0:
            keep -= 1
        free = self._frozen[keep:]
        if free:
            lowest = free[0]
            for layer in (*free[1:], self._active):
                lowest.absorb(layer)
            self._frozen = self._frozen[:keep]
            self._start_layer(lowest)
        if len(self._frozen) > _FROZEN_MAX:
            self._compact()

    def _compact(self) -> None:
        """Make fewer layers of those that scans hold, from the top down while the lower one is not much the larger:
        a write is copied as often as its layer doubles. Scans keep the layers that they have."""
        stack = list(self._frozen)
        while len(stack) > 1 and stack[-2].size() <= 2 * stack[-1].size():
            newer, older = stack.pop(), stack.pop()
            merged = Layer()
            merged.absorb(older)
            merged.absorb(newer)
            stack.append(merged)
        self._frozen = tuple(stack)

    def _start_layer(self, layer: Layer) -> None:
        self._active = layer
        # Before the layer is written to: a reader's freeze must not leave the writer with a shallow view.
        self.deep = bool(self._frozen or layer.ranges or self._drained)
        self.writes = layer.staged.writes

    def clear(self) -> None:
        """Forget everything staged; frozen stacks that are still pinned stay readable. The caller holds ``lock``."""
        self._frozen = ()
        self._drained = None
        self._start_layer(Layer())
        self.room_bytes, self._drained_bytes = self._capacity_bytes, 0


def lookup(layers: tuple[Layer, ...], key: bytes) -> bytes | Missing | None:
    """What a stack says of ``key``: a value, None for deleted, MISSING for nothing."""
    for layer in reversed(layers):
        value = layer.staged.writes.get(key, MISSING)
        if value is not MISSING:
            return value
        if key in layer.ranges:
            return None
    return MISSING
