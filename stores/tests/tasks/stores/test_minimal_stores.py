"""A store of another package that only implements the contract, with its defaults, works in a task.

Source: KIP-844, "Compatibility"; KIP-892, whose additions to ``StateStore`` have defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from stores.changelog import MemoryChangelog, Record
from stores.config import StoreConfig
from stores.errors import (
    ConfigError,
    NotUpToBoundError,
    StoreCorruptedError,
    StoreError,
    StoreIncompatibleError,
)
from stores.interface import IsolationLevel, KeyValueStore, PositionBound, TopicPartition
from stores.records import BYTES, INT64, KeyValue, TimestampedKeyValue, TimestampedKeyValueWithHeaders, Window
from stores.records.record_kind import RecordKind
from stores.records.segments import WindowKeys
from stores.registry import StoreBackend, backends, open_store
from stores.tasks import ProcessingGuarantee, StreamTask, TaskContext
from stores.tasks.context import ProcessFunction
from stores.tests.minimal_store import KINDS, Direct
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    INDEXED,
    INPUT,
    Crash,
    changelog_of,
    counting_task,
    expected_outputs,
    expected_state,
    feed,
    outputs,
    raising_at,
    state,
)

NAMES = sorted(KINDS)


def _class(kind: type[KeyValueStore]) -> type[KeyValueStore]:
    return kind


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    """Known by name, as an entry point would make them."""
    registry = cast("dict[str, Any]", backends())
    for name, kind in KINDS.items():
        registry[name] = StoreBackend(name, load_store=partial(_class, kind))
    yield
    for name in KINDS:
        del registry[name]


@pytest.mark.parametrize("name", NAMES)
def test_each_record_counts_once_after_unclean_and_clean_closes(
    tmp_path: Path, log: MemoryChangelog, name: str
) -> None:
    keys = [1, 2, 1, 1, 2, 3, 3, 1]
    feed(log, keys)
    for done in (2, 4, 6):
        task = counting_task(tmp_path, log, name, INDEXED)
        task.open()
        assert state(task, "left") == expected_state(keys[: done - 2])
        task.run(2, commit=True)
        if done != 4:
            task.run(1)
        task.close(clean=done == 4)
    task.open()
    assert state(task, "left") == state(task, "right") == expected_state(keys[:6])
    task.run()
    assert state(task, "left") == state(task, "right") == expected_state(keys)
    task.close()
    assert outputs(log) == expected_outputs(keys)


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
@pytest.mark.parametrize("name", NAMES)
def test_a_function_that_raises_is_undone(tmp_path: Path, log: MemoryChangelog, name: str, guarantee: Any) -> None:
    feed(log, [1, 1, 1, 2])
    poisoned = {2}
    task = counting_task(tmp_path, log, name, guarantee=guarantee, process=raising_at(poisoned))
    task.open()
    task.run(1, commit=True)
    with pytest.raises(Crash):
        task.run()
    assert task.input_offsets() == {INPUT: 1}
    kept_apart = backends()[name].transactional or guarantee is EXACTLY_ONCE
    assert state(task, "left") == {b"1": b"1" if kept_apart else b"3"}
    poisoned.clear()
    task.run(commit=True)
    if kept_apart:
        assert state(task, "left") == {b"1": b"3", b"2": b"1"}
    task.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_clean_close_costs_no_restore_where_anything_is_kept(tmp_path: Path, log: MemoryChangelog, name: str) -> None:
    feed(log, [1, 2, 3])
    task = counting_task(tmp_path, log, name)
    task.open()
    task.run()
    task.close()
    reports = task.open()
    assert [(report.wiped, report.records) for report in reports] == [
        (False, 0 if backends()[name].persistent else 3)
    ] * 2
    assert set(task.metrics.stores) == {"left", "right"}
    task.close()


@pytest.mark.parametrize("name", NAMES)
def test_the_defaults_keep_the_contract(tmp_path: Path, name: str) -> None:
    with open_store(name, tmp_path / "s", name="s") as store:
        store.put_all([(b"%d" % number, b"v%d" % number) for number in range(20)])
        assert store.get_many([b"3", b"none"]) == [b"v3", None]
        assert store.put_if_absent(b"3", b"other") == b"v3"
        assert store.put_if_absent(b"new", b"v") is None
        assert store.delete(b"new") == b"v"
        assert store.delete(b"new") is None
        ascending = sorted(b"%d" % number for number in range(20))
        for scan, expected in (
            (store.all(), ascending),
            (store.reverse_all(), ascending[::-1]),
            (store.range(b"12", b"3"), [key for key in ascending if b"12" <= key <= b"3"]),
            (store.reverse_range(b"12", b"3"), [key for key in ascending if b"12" <= key <= b"3"][::-1]),
            (store.prefix_scan(b"1"), [key for key in ascending if key.startswith(b"1")]),
            (store.reverse_prefix_scan(b"1"), [key for key in ascending if key.startswith(b"1")][::-1]),
            (store.prefix_scan(b""), ascending),
            (store.range(b"3", b"2"), []),
        ):
            with scan:
                assert [key for key, _ in scan] == expected
            with pytest.raises(StoreError):
                next(scan)
        store.delete_range(b"12", b"3")
        assert store.get(b"2") is None
        assert store.approximate_num_entries() == len([key for key in ascending if not b"12" <= key <= b"3"])
        store.verify()
        store.commit()
        for bad, error in (([(b"a", b"1"), (b"", b"2")], ValueError), ([(b"a", b"1"), (b"b", "2")], TypeError)):
            with pytest.raises(error):
                store.put_all(cast("list[tuple[bytes, bytes]]", bad))
            assert store.get(b"a") is None
        with pytest.raises(StoreCorruptedError):
            store.recover({TopicPartition("t", 0): 5})


@pytest.mark.parametrize("name", NAMES)
def test_readers_get_the_isolation_levels_that_the_store_has(tmp_path: Path, name: str) -> None:
    with open_store(name, tmp_path / "s", name="s") as store:
        store.put(b"a", b"1")
        view = store.read_only(IsolationLevel.READ_UNCOMMITTED)
        assert (view.get(b"a"), view.get_many([b"a", b"b"]), list(view.all())) == (b"1", [b"1", None], [(b"a", b"1")])
        if store.transactional:
            # It has nothing that would show committed data alone.
            with pytest.raises(StoreError):
                store.read_only(IsolationLevel.READ_COMMITTED)
        bound = PositionBound({TopicPartition("t", 0): 0})
        with pytest.raises(NotUpToBoundError):
            store.read_only(IsolationLevel.READ_UNCOMMITTED, bound).get(b"a")


def test_a_promise_that_has_no_default_is_asked_for_by_name(tmp_path: Path) -> None:
    class Boasting(Direct):
        transactional = True
        manages_offsets = True

    store: KeyValueStore = Boasting(tmp_path, name="s")
    with pytest.raises(NotImplementedError):
        store.rollback()
    with pytest.raises(NotImplementedError):
        store.committed_offset(TopicPartition("t", 0))


def test_stores_of_others_and_of_ours_do_not_take_each_other_s_folders(tmp_path: Path) -> None:
    open_store(INDEXED, tmp_path / "ours").close()
    with pytest.raises(StoreIncompatibleError):
        open_store("minimal-direct", tmp_path / "ours")
    with open_store("minimal-direct", tmp_path / "theirs") as store:
        store.put(b"a", b"1")
    with pytest.raises(StoreIncompatibleError):
        open_store(INDEXED, tmp_path / "theirs")
    for settings in ({"durability": "DISK"}, {"options": {"cache": 1}}):
        with pytest.raises(ConfigError):
            StoreConfig("minimal-direct", **cast("dict[str, Any]", settings))


RECORDS: Mapping[str, RecordKind] = {
    "key-value": KeyValue(key=BYTES, value=INT64),
    "timestamped": TimestampedKeyValue(key=BYTES, value=INT64),
    "headers": TimestampedKeyValueWithHeaders(key=BYTES, value=INT64),
    "window": Window(key=BYTES, value=INT64, size_ms=10, retention_ms=1_000, headers=True),
}
HEADERS = (("trace", b"\x00"), ("none", None))


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
@pytest.mark.parametrize("name", NAMES)
def test_typed_stores_work_over_a_store_that_keeps_no_marks(
    tmp_path: Path, name: str, guarantee: ProcessingGuarantee, kind: str
) -> None:
    """On disk values with times lie behind a proxy, which keeps the value alone. Source: KIP-258, "Compatibility".

    So it is with headers. The changelog has times and headers.
    """
    poisoned = {3}

    def process(record: Record, context: TaskContext) -> None:
        more = (record.timestamp_ms + 5, HEADERS)[: list(RECORDS).index(kind)]
        start = (10,) if kind == "window" else ()
        context.store("s").put(b"%d" % record.offset, record.offset, *start, *more)

    with MemoryChangelog() as log:
        feed(log, range(8))
        task = _typed(tmp_path, log, name, guarantee, kind, raising_at(poisoned, process))
        task.open()
        task.run(2, commit=True)
        with pytest.raises(Crash):
            task.run()
        poisoned.clear()
        task.run(commit=True)
        task.close()
        task = _typed(tmp_path, log, name, guarantee, kind, process)
        [report] = task.open()
        assert report.records == (8 if name == "minimal-memory" else 0)
        with task.store("s", IsolationLevel.READ_UNCOMMITTED).all() as pairs:
            contents = {key.key if kind == "window" else key: value for key, value in pairs}
        task.close()
        numbers = range(8)
        if kind == "key-value":
            assert contents == {b"%d" % number: number for number in numbers}
        else:
            times = {number: number + 5 if name == "minimal-memory" else -1 for number in numbers}
            more: Any = () if kind == "timestamped" else (HEADERS if name == "minimal-memory" else (),)
            assert contents == {b"%d" % number: (number, times[number], *more) for number in numbers}
        logged = {
            WindowKeys().key(record.key or b"") if kind == "window" else record.key: tuple(record[2:])
            for record in log.read(changelog_of("s"))
        }
        later_ms, headers = 0 if kind == "key-value" else 5, HEADERS if kind in ("headers", "window") else ()
        assert logged == {b"%d" % number: (INT64.serialize(number), number + later_ms, headers) for number in numbers}


def _typed(
    folder: Path, log: MemoryChangelog, name: str, guarantee: ProcessingGuarantee, kind: str, process: ProcessFunction
) -> StreamTask:
    stores = {"s": StoreConfig(name, records=RECORDS[kind])}
    return counting_task(folder, log, guarantee=guarantee, stores=stores, process=process)
