"""The methods that a strategy must have: a staging with these alone is a whole one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from stores.engines.engine import Writes
from stores.engines.memory import MemoryEngine
from stores.interface import Durability, IsolationLevel, TopicPartition
from stores.ordered import ScanRange
from stores.strategies.iterator import Pin
from stores.strategies.staging import Opened, Scanned, Staging, Traits
from stores.strategies.store_opening import open_over

PARTITION = TopicPartition("changelog", 0)
PAIRS = [(b"%02d" % number, b"value %d" % number) for number in range(20)]


class InOneDictionary(Staging):
    """The smallest staging: one dictionary, which every read merges over the whole of the committed data."""

    strategy = "dictionary"

    def __init__(self, opened: Opened) -> None:
        super().__init__(opened)
        self._writes: dict[bytes, bytes | None] = {}

    def stage_all(self, writes: dict[bytes, bytes | None]) -> None:
        self._writes = {**self._writes, **writes}

    def stage_range(self, start: bytes | None, end: bytes | None) -> None:
        bounds = ScanRange(start, end)
        self.stage_all(dict.fromkeys(key for key, _ in self._pairs(IsolationLevel.READ_UNCOMMITTED, bounds)))

    def is_clean(self) -> bool:
        return not self._writes

    def num_bytes(self) -> int:
        return sum(len(key) + len(value or b"") for key, value in self._writes.items())

    def get_many(self, level: IsolationLevel, keys: Sequence[bytes]) -> list[bytes | None]:
        pairs = dict(self._pairs(level, ScanRange(None, None)))
        return [pairs.get(key) for key in keys]

    def scans(self, level: IsolationLevel, ranges: Sequence[ScanRange], *, reverse: bool) -> list[Scanned]:
        return [(iter([self._pairs(level, each, reverse=reverse)]), Pin(lambda: None)) for each in ranges]

    def commit(self, meta: Mapping[bytes, bytes | None]) -> None:
        self.engine.write([Writes((), self._writes)], meta)
        self._writes = {}

    def rollback(self) -> None:
        self._writes = {}

    def _pairs(self, level: IsolationLevel, bounds: ScanRange, *, reverse: bool = False) -> list[tuple[bytes, bytes]]:
        values: dict[bytes, bytes | None] = {}
        scan = self.engine.scan()
        while chunk := scan.fetch():
            values.update(chunk)
        if level is IsolationLevel.READ_UNCOMMITTED:
            values.update(self._writes)
        start, end, end_open, _ = bounds
        within = [
            (key, value)
            for key, value in values.items()
            if value is not None
            and (start is None or key >= start)
            and (end is None or key < end or (key == end and not end_open))
        ]
        return sorted(within, reverse=reverse)


def test_a_strategy_needs_eight_methods_only(path: Path) -> None:
    assert len(Staging.__abstractmethods__) == 8
    traits = Traits("store", "memory-dictionary", Durability.CHANGELOG)
    with open_over(InOneDictionary, MemoryEngine, path, {}, traits) as store:
        view = store.read_only(IsolationLevel.READ_COMMITTED)
        store.put_all(PAIRS)
        store.put(b"03", None)
        assert store.delete(b"04") == b"value 4"
        store.delete_range(b"10", b"15")
        left = [pair for pair in PAIRS if pair[0] not in (b"03", b"04") and not b"10" <= pair[0] <= b"15"]
        assert list(store.all()) == left
        assert list(store.reverse_range(b"02", b"17")) == [pair for pair in reversed(left) if b"02" <= pair[0] <= b"17"]
        assert (store.get(b"05"), store.get(b"12")) == (b"value 5", None)
        assert store.approximate_num_uncommitted_bytes() > 0
        assert (view.get(b"05"), list(view.all())) == (None, [])
        store.commit({PARTITION: 7})
        assert (view.get(b"05"), list(view.all())) == (b"value 5", left)
        store.put(b"05", b"other")
        assert (store.get(b"05"), store.get_many([b"05", b"06"])) == (b"other", [b"other", b"value 6"])
        store.rollback()
        assert (store.get(b"05"), store.approximate_num_uncommitted_bytes()) == (b"value 5", 0)
        store.restore([(b"30", b"restored")], {PARTITION: 9})
        assert (store.get(b"30"), store.committed_offset(PARTITION)) == (b"restored", 9)
