"""Marks are small named bytes beside the data: staged, committed and rolled back with it, and never in a scan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stores import (
    IsolationLevel,
    KeyValueStore,
    NotUpToBoundError,
    PositionBound,
    StoreError,
    TopicPartition,
)
from stores.interface import KeyValueView
from stores.meta_entries import MARK_BYTES_MAX, MARK_NAME_CHARACTERS_MAX
from stores.strategies.store import transactions
from stores.tests.conformance.cases import AT_THE_END, Case
from stores.tests.conformance.gaps import ISOLATED, ROLLED_BACK, carries
from stores.tests.store_process import ProcessDied, StoreProcess

Reopen = Callable[[], KeyValueStore]
LOG, INPUT = TopicPartition("changelog", 0), TopicPartition("input", 0)
LONGEST = bytes(range(256)) * (MARK_BYTES_MAX // 256)
LENGTHS = (0, 1, 1023, 1024, 1025, 2048, MARK_BYTES_MAX - 1, MARK_BYTES_MAX)


def views(store: KeyValueStore) -> tuple[KeyValueView, KeyValueView]:
    """The views at READ_COMMITTED and READ_UNCOMMITTED."""
    return store.read_only(IsolationLevel.READ_COMMITTED), store.read_only(IsolationLevel.READ_UNCOMMITTED)


def test_a_mark_is_staged_until_commit_and_in_no_scan(store: KeyValueStore, reopen: Reopen) -> None:
    assert store.keeps_marks
    committed, uncommitted = views(store)
    store.set_mark("records", b"first")
    store.put(b"key", b"value")
    isolated = carries(store, ISOLATED)
    visible = None if isolated else b"first"
    assert (store.mark("records"), uncommitted.mark("records"), committed.mark("records")) == (
        b"first",
        b"first",
        visible,
    )
    store.commit({LOG: 1})
    assert (store.mark("records"), uncommitted.mark("records"), committed.mark("records")) == (b"first",) * 3
    assert store.mark("absent") is None
    assert list(store.all()) == [(b"key", b"value")]
    store.set_mark("records", b"second")
    store.set_mark("records", b"third")
    assert (uncommitted.mark("records"), committed.mark("records")) == (b"third", b"first" if isolated else b"third")
    store.rollback()
    # Where writes stay, so do the marks that tell what they are.
    left = b"first" if carries(store, ROLLED_BACK) else b"third"
    assert (store.mark("records"), uncommitted.mark("records"), committed.mark("records")) == (left,) * 3
    again = reopen()
    assert again.mark("records") == (left if again.persistent else None)
    assert again.recover().offsets == ({LOG: 1} if again.persistent and again.manages_offsets else {})


def test_a_mark_may_be_as_long_as_is_promised_and_shrinks_without_rest(store: KeyValueStore, reopen: Reopen) -> None:
    for length in (*LENGTHS, *reversed(LENGTHS)):
        store.set_mark("mark", LONGEST[:length])
        store.set_mark("m" * MARK_NAME_CHARACTERS_MAX, b"%d" % length)
        store.put(b"key", b"%d" % length)
        store.commit()
        if store.persistent:
            store = reopen()
        assert store.mark("mark") == LONGEST[:length]
        assert store.mark("m" * MARK_NAME_CHARACTERS_MAX) == b"%d" % length
    store.set_mark("mark", None)
    assert store.mark("mark") is None
    store.commit()
    if store.persistent:
        store = reopen()
    assert store.mark("mark") is None
    assert store.mark("m" * MARK_NAME_CHARACTERS_MAX) == b"0"


def test_marks_of_names_that_begin_alike_are_kept_apart(store: KeyValueStore, reopen: Reopen) -> None:
    names = ["a", "ab", "a ", "A", "~" * 3]
    for name in names:
        store.set_mark(name, name.encode() * 2000)
    store.commit()
    store.set_mark("a", None)
    store.commit()
    if store.persistent:
        store = reopen()
    assert [store.mark(name) for name in names] == [None, *(name.encode() * 2000 for name in names[1:])]


def test_a_commit_that_fails_leaves_the_marks_staged(store: KeyValueStore) -> None:
    if not store.manages_offsets:
        return
    store.commit({LOG: 9})
    store.set_mark("mark", b"value")
    with pytest.raises(ValueError):
        store.commit({LOG: 1})
    assert (store.mark("mark"), store.read_only(IsolationLevel.READ_COMMITTED).mark("mark")) == (b"value", None)
    store.commit()
    assert store.read_only(IsolationLevel.READ_COMMITTED).mark("mark") == b"value"


def test_a_commit_writes_no_mark_that_has_not_changed(store: KeyValueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.set_mark("mark", b"value")
    store.commit()
    encoded: list[object] = []

    def noted(kept: object, changes: object) -> dict[bytes, bytes | None]:
        encoded.append(changes)
        return {}

    monkeypatch.setattr(transactions, "encode_marks", noted)
    store.put(b"key", b"value")
    store.commit({LOG: 1})
    store.set_mark("mark", b"value")
    store.set_mark("absent", None)
    store.commit({LOG: 2})
    assert encoded == []
    store.set_mark("mark", b"other")
    store.commit()
    assert encoded == [{"mark": b"other"}]


def test_a_restore_sets_marks_with_the_records(store: KeyValueStore, reopen: Reopen) -> None:
    store.restore([(b"a", b"1")], {LOG: 5}, None, {"records": b"{}", "other": b"1"})
    store.restore([(b"b", b"2")], {LOG: 6}, marks={"other": None})
    if store.persistent:
        store = reopen()
        assert (store.mark("records"), store.mark("other")) == (b"{}", None)
        assert list(store.all()) == [(b"a", b"1"), (b"b", b"2")]
    store.set_mark("records", b"staged")
    with pytest.raises(StoreError):
        store.restore([(b"c", b"3")], {LOG: 7})
    store.rollback()
    store.restore([], {}, marks={"records": None})
    assert store.mark("records") is None


def test_what_is_no_mark_is_refused_and_changes_nothing(store: KeyValueStore) -> None:
    wrong_marks: list[tuple[Any, Any, type[Exception]]] = [
        ("", b"", ValueError), ("m" * (MARK_NAME_CHARACTERS_MAX + 1), b"", ValueError), ("ä", b"", ValueError),
        ("a\n", b"", ValueError), ("a\0", b"", ValueError), (b"mark", b"", TypeError), (None, b"", TypeError),
        (["mark"], b"", TypeError), ("mark", "text", TypeError), ("mark", bytearray(b"x"), TypeError),
        ("mark", LONGEST + b"x", ValueError),
    ]  # fmt: skip
    store.set_mark("mark", b"kept")
    for name, value, error in wrong_marks:
        with pytest.raises(error):
            store.set_mark(name, value)
    assert store.mark("mark") == b"kept"
    store.rollback()
    for name, value, error in wrong_marks:
        with pytest.raises(error):
            store.restore([(b"key", b"value")], {}, marks=5 if isinstance(name, list) else {name: value})  # type: ignore[arg-type]
    assert (store.mark("mark"), store.get(b"key")) == (None if carries(store, ROLLED_BACK) else b"kept", None)
    for name in ("", "ä", None, b"mark"):
        for reader in (store, *views(store)):
            with pytest.raises((TypeError, ValueError)):
                reader.mark(name)  # type: ignore[arg-type]


def test_a_bounded_view_shows_no_mark_before_its_bound_is_reached(store: KeyValueStore) -> None:
    store.set_mark("mark", b"value")
    view = store.read_only(IsolationLevel.READ_COMMITTED, PositionBound({INPUT: 3}))
    with pytest.raises(NotUpToBoundError):
        view.mark("mark")
    with pytest.raises(NotUpToBoundError):
        view.range_many([(None, None)])
    store.advance_position(INPUT, 3)
    store.commit()
    assert view.mark("mark") == b"value"
    assert [list(scan) for scan in view.range_many([(None, None)])] == [[]]


@pytest.mark.spread
def test_marks_are_of_the_same_commit_as_the_data_after_a_crash_on_the_way(
    case: Case, failpoint: str, process: StoreProcess, path: Path
) -> None:
    """Killed where a failpoint is reached for the second time, or at the end. For the first time: ``test_kills``."""
    process.call("load_backend", case.backend.name)
    if failpoint != AT_THE_END:
        process.call("kill_at", failpoint, 1)
    try:
        process.call("open", case.backend.name, path, case.durability, case.options)
        for number in range(3):
            process.call("put_many", 0, 20, b"%d" % number * 100)
            process.call("set_mark", "number", b"%d" % number)
            process.call("commit", {LOG: number})
        process.call("restore", [(b"%08d" % key, b"3" * 100) for key in range(20)], {LOG: 3}, None, {"number": b"3"})
        process.call("restore", [(b"%08d" % key, b"4" * 100) for key in range(20)], {LOG: 4}, None, {"number": b"4"})
        process.kill()
    except ProcessDied:
        pass
    with case.open(path) as store:
        values = {value[:1] for _, value in store.all()}
        if store.transactional:
            assert values == {mark for mark in [store.mark("number")] if mark is not None}
            assert store.mark("number") == (
                None if store.committed_offset(LOG) is None else b"%d" % (store.committed_offset(LOG) or 0)
            )
