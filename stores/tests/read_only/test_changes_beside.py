"""A reader notices what becomes of a store and of itself: an upgrade, a damaged marker, a thread that closes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stores import (
    StoreClosedError,
    StoreCorruptedError,
    StoreUnavailableError,
    open_read_only,
    open_store,
)
from stores.read_only.store_files import StoreFiles
from stores.records import BYTES, INT64, STR, KeyValue, TimestampedKeyValue, Window
from stores.registry import backends
from stores.tests.read_only.test_open_read_only import ON_DISK, Writer

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


@pytest.mark.parametrize("backend", IN_ONE_PROCESS)
def test_a_snapshot_begun_while_another_thread_closes_the_reader_is_closed(
    backend: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(backend, path).close()
    reader = open_read_only(path)

    def closing(files: StoreFiles) -> int:
        reader.close()
        return 0

    monkeypatch.setattr(StoreFiles, "approximate_num_entries", closing)
    snapshot = reader.snapshot()
    with pytest.raises(StoreClosedError):
        snapshot.get(b"k")


@pytest.mark.parametrize("backend", ON_DISK)
def test_a_reader_shows_what_a_process_has_committed_that_opened_and_closed_meanwhile(backend: str, path: Path) -> None:
    writer = Writer(backend, path)
    writer.do("close")
    with open_read_only(path) as reader:
        assert reader.get(b"001") is None
        for number in range(2):
            writer.do("open")
            writer.do("commit", number)
            writer.do("close")
            assert reader.get(b"001") == b"%d" % number
    writer.kill()


def test_a_new_store_without_records_can_be_read_by_any_description(path: Path) -> None:
    open_store("sqlite", path).close()
    with open_read_only(path, KeyValue(key=STR, value=INT64)) as reader:
        assert list(reader.all()) == []
    with open_read_only(path, Window(key=STR, value=INT64, size_ms=1, retention_ms=1)) as windows:
        assert list(windows.all()) == []


def test_a_store_that_power_loss_may_have_torn_is_not_shown(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer("rocksdb-indexed-batch", path)
    writer.do("commit", 1)
    writer.kill()
    with open_read_only(path) as reader:
        assert reader.get(b"000") == b"1"
    monkeypatch.setattr("stores.read_only.held_store.boot_id", lambda: "the boot after it")
    with pytest.raises(StoreCorruptedError):
        open_read_only(path)
