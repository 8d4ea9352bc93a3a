"""The memory of a scan: large values do not pile up in any combination of layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from stores import Durability, open_store
from stores.batch.merge import lay_over
from stores.engines.engine import FETCH_BYTES_MAX, Engine, Scan, Writes
from stores.ordered import KeyRanges
from stores.registry import backends
from stores.strategies.spilled import TOKEN_BYTES, SpilledWrites

ENGINES = sorted({backend.load_engine() for backend in backends().values()}, key=lambda engine: engine.name)
VALUE = b"v" * (1 << 20)
COUNT = 12


class OnePairAtATime(Scan):
    """Spilled writes of the numbers from 0, each in a fetch of its own."""

    def __init__(self, count: int, *, reverse: bool) -> None:
        self._left = list(range(count) if reverse else reversed(range(count)))

    def fetch(self) -> list[tuple[bytes, bytes]]:
        return [(b"token---%04d" % self._left.pop(), b"\x01new")] if self._left else []

    def close(self) -> None:
        self._left = []


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine.persistent], ids=lambda engine: engine.name)
def test_a_fetch_ends_at_about_a_megabyte(path: Path, engine: type[Engine], reverse: bool) -> None:
    path.mkdir()
    open_engine = engine.open(path, Durability.CHANGELOG, engine.options)
    try:
        open_engine.write([Writes((), {b"%04d" % number: VALUE for number in range(COUNT)})], {})
        scan = open_engine.scan(reverse=reverse)
        keys = []
        while chunk := scan.fetch():
            assert sum(len(value) for _, value in chunk) < FETCH_BYTES_MAX + len(VALUE)
            keys += [key for key, _ in chunk]
        scan.close()
        assert keys == sorted((b"%04d" % number for number in range(COUNT)), reverse=reverse)
    finally:
        open_engine.close()


@pytest.mark.parametrize("reverse", [False, True])
def test_many_spilled_writes_before_a_committed_key_come_in_pieces(reverse: bool) -> None:
    """One committed pair behind all of them must not bring all of them into memory."""
    below = [(b"0050", b"old"), (b"0060x", b"old"), (b"\x00" if reverse else b"~", b"old")]
    below.sort(reverse=reverse)
    spilled = SpilledWrites(OnePairAtATime(100, reverse=reverse), bytes(TOKEN_BYTES), reverse=reverse)
    chunks = list(lay_over(iter([below]), spilled, KeyRanges(), reverse=reverse))
    assert max(map(len, chunks)) <= 3
    expected = dict(below) | {b"%04d" % number: b"new" for number in range(100)}
    assert [pair for chunk in chunks for pair in chunk] == sorted(expected.items(), reverse=reverse)


def test_a_scan_of_large_staged_and_committed_values_shows_all(path: Path) -> None:
    with open_store("rocksdb-dual-store", path, options={"staging_buffer_bytes": 1 << 20}) as store:
        for number in range(0, 2 * COUNT, 2):
            store.put(b"%04d" % number, VALUE)
        store.commit()
        for number in range(1, 2 * COUNT, 2):
            store.put(b"%04d" % number, VALUE)
        assert [key for key, _ in store.all()] == [b"%04d" % number for number in range(2 * COUNT)]
        assert [key for key, _ in store.reverse_all()] == [b"%04d" % number for number in reversed(range(2 * COUNT))]
