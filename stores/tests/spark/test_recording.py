"""Writes of each kind of call are in the log, and so in a copy that is restored from there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stores.changelog.files import Retention
from stores.config import StoreConfig
from stores.interface import KeyValueStore
from stores.spark.context import Context
from stores.spark.rows import Rows
from stores.tests.spark.counting import close_all, compute, plan

FIRST = [(b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"d", b"4")]


def put_if_absent(store: KeyValueStore) -> None:
    assert store.put_if_absent(b"a", b"other") == b"1"
    assert store.put_if_absent(b"e", b"5") is None


def delete_range(store: KeyValueStore) -> None:
    store.put(b"bb", b"staged")
    store.delete_range(b"b", b"c")


def delete(store: KeyValueStore) -> None:
    assert store.delete(b"a") == b"1"
    assert store.delete(b"none") is None
    store.put(b"b", None)


def put_all(store: KeyValueStore) -> None:
    store.put_all(iter([(b"a", b"7"), (b"b", None), (b"a", b"8")]))


@pytest.mark.parametrize("write", [put_if_absent, delete_range, delete, put_all])
@pytest.mark.parametrize("snapshot_versions", [1, 100])
def test_writes_of_each_kind_are_restored(
    tmp_path: Path, write: Callable[[KeyValueStore], None], snapshot_versions: int
) -> None:
    seen: list[Any] = []

    def process(rows: Rows, context: Context) -> None:
        store = context.store("bytes")
        seen.append(list(store.all()))
        if context.version == 0:
            store.put_all(FIRST)
        if context.version == 1:
            write(store)
            seen.append(list(store.all()))

    for number in range(3):
        stores = {"bytes": StoreConfig("rocksdb")}
        retention = Retention(snapshot_versions=snapshot_versions)
        compute(plan(tmp_path, process, stores=stores, retention=retention, local=str(tmp_path / f"{number}")), number)
        close_all()
    assert seen[1] == FIRST
    assert seen[3] == seen[2] != FIRST


def test_marks_are_in_each_snapshot_also_after_a_restore(tmp_path: Path) -> None:
    """A restored store that did not know its marks' names would leave them out of its next snapshot."""
    seen: list[Any] = []

    def process(rows: Rows, context: Context) -> Iterator[Any]:
        store = context.store("bytes")
        seen.append([store.mark(name) for name in ("one", "two")])
        if context.version < 2:
            store.set_mark(("one", "two")[context.version], b"%d" % context.version)
        yield "N1", 1

    for number in range(5):
        stores, retention = {"bytes": StoreConfig("rocksdb")}, Retention(snapshot_versions=1, keep_versions=0)
        compute(plan(tmp_path, process, stores=stores, retention=retention, local=str(tmp_path / f"{number}")), number)
        close_all()
    assert seen == [[None, None], [b"0", None], [b"0", b"1"], [b"0", b"1"], [b"0", b"1"]]
