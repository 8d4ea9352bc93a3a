"""A reader notices what becomes of a store beside it: an upgrade that begins, a marker that is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from stores import StoreUnavailableError, open_read_only, open_store
from stores.records import BYTES, KeyValue, TimestampedKeyValue
from stores.registry import backends

IN_ONE_PROCESS = [name for name, each in backends().items() if each.persistent and not name.startswith("lmdb")]
"""The backends whose stores can be read by another opening in the process that writes."""


@pytest.mark.parametrize("backend", IN_ONE_PROCESS)
def test_a_reader_shows_records_of_both_formats_once_an_upgrade_has_begun(backend: str, path: Path) -> None:
    with KeyValue(key=BYTES, value=BYTES).over(open_store(backend, path)) as plain:
        plain.put_all([(b"a", b"1"), (b"b", b"2")])
        plain.commit()
    with open_store(backend, path, durability="PROCESS") as store, open_read_only(path) as reader:
        assert dict(reader.all()) == {b"a": b"1", b"b": b"2"}
        timed = TimestampedKeyValue(key=BYTES, value=BYTES).over(store)
        timed.put(b"a", b"3", 5)
        timed.commit()
        with open_read_only(path) as fresh:
            shown = dict(fresh.all())
            assert (fresh.timestamps, len(shown)) == (reader.timestamps, 2)
        assert reader.timestamps.is_split
        assert dict(reader.all()) == shown
        assert [reader.get(key) for key in shown] == list(shown.values())


def test_a_dual_store_with_a_damaged_marker_is_not_shown(path: Path) -> None:
    """Its commit may be in parts: the next opening says whether it can be completed."""
    open_store("rocksdb-dual-store", path).close()
    (path / "commit").write_bytes(b"damaged")
    with pytest.raises(StoreUnavailableError):
        open_read_only(path)
