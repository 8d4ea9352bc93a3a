"""A task whose store was plain goes on with values that have times: a restart is the whole upgrade. Source: KIP-258."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stores import IsolationLevel, StoreError
from stores.changelog import MemoryChangelog, Record
from stores.engines.families import OLD
from stores.records import BYTES, INT64, KeyValue
from stores.tasks import StreamTask, TaskContext
from stores.tests.tasks.setup import DIRECT, INDEXED
from stores.tests.tasks.typed import feed_times, kept_in, sent, typed_task

BACKENDS = [INDEXED, "rocksdb-dual-store", "lmdb-native", "lmdb-indexed-batch", "sqlite-indexed-batch", "sqlite-native"]
COUNT = 6
PLAIN = KeyValue(BYTES, INT64)


def key_of(number: int) -> bytes:
    """The key that record ``number`` is kept under."""
    return b"%b-%d" % (sent(number)[0], number)


def shown(task: StreamTask, level: IsolationLevel = IsolationLevel.READ_COMMITTED) -> dict[bytes, tuple[int, int]]:
    """Values and times by key."""
    with task.store("s", level).all() as pairs:
        return {key: (record.value, record.timestamp_ms) for key, record in pairs}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("records", [None, PLAIN], ids=["bytes", "key-value"])
def test_a_restart_is_the_whole_upgrade_of_a_store(
    tmp_path: Path, backend: str, records: KeyValue[bytes, int] | None
) -> None:
    with MemoryChangelog() as log:
        feed_times(log, range(COUNT))

        def put_plain(record: Record, context: TaskContext) -> None:
            number = record.offset
            value = INT64.serialize(number) if records is None else number
            context.store("s").put(key_of(number), value)

        with closing(
            typed_task(tmp_path, log, "timestamped", backend, store_records=records, process=put_plain)
        ) as task:
            task.open()
            task.run(commit=True)
        old = {key_of(number): (number, -1) for number in range(COUNT)}

        seen: list[Any] = []

        def upgrade(record: Record, context: TaskContext) -> None:
            store = context.store("s")
            number = record.offset
            seen.append(store.get(key_of(number - COUNT)))
            store.put(key_of(number), number, record.timestamp_ms)

        with closing(typed_task(tmp_path, log, "timestamped", backend, process=upgrade)) as task:
            [report] = task.open()
            assert (report.wiped, report.records) == (False, 0)
            assert shown(task) == old
            feed_times(log, range(COUNT, 2 * COUNT))
            task.run(commit=True)
            assert [tuple(each) for each in seen] == list(old.values())
            new = {key_of(number): (number, sent(number)[1]) for number in range(COUNT, 2 * COUNT)}
            assert shown(task) == {**old, **new}
        # What the function looked up was the last of the old records.
        for upgraded in (True, False):
            with closing(typed_task(tmp_path, log, "timestamped", backend, process=upgrade)) as task:
                [report] = task.open()
                assert (report.wiped, report.records, report.upgraded) == (False, 0, upgraded)
                assert shown(task) == {**old, **new}
        with closing(typed_task(tmp_path / "restored", log, "timestamped", backend, process=upgrade)) as task:
            task.open()
            # What only moved was not logged: the changelog has the time of the record that wrote it.
            assert {key: value for key, (value, _) in shown(task).items()} == {
                key_of(number): number for number in range(2 * COUNT)
            }
        with closing(typed_task(tmp_path, log, "timestamped", backend, store_records=PLAIN)) as task:
            with pytest.raises(StoreError):
                task.open()


def test_a_store_without_transactions_is_upgraded_as_well(tmp_path: Path) -> None:
    with MemoryChangelog() as log:
        feed_times(log, range(COUNT))
        put = lambda record, context: context.store("s").put(key_of(record.offset), record.offset)  # noqa: E731
        with closing(typed_task(tmp_path, log, "timestamped", DIRECT, store_records=PLAIN, process=put)) as task:
            task.open()
            task.run(commit=True)
        with closing(typed_task(tmp_path, log, "timestamped", DIRECT)) as task:
            [report] = task.open()
            assert not report.wiped
            assert shown(task) == {key_of(number): (number, -1) for number in range(COUNT)}


@pytest.mark.parametrize("backend", [INDEXED, "lmdb-native"])
def test_init_looks_up_old_records_and_moves_none(tmp_path: Path, backend: str) -> None:
    """Nothing may be staged before the first record: a lookup that tried would fail the opening."""
    with MemoryChangelog() as log:
        feed_times(log, range(COUNT))
        put = lambda record, context: context.store("s").put(key_of(record.offset), record.offset)  # noqa: E731
        with closing(typed_task(tmp_path, log, "timestamped", backend, store_records=PLAIN, process=put)) as task:
            task.open()
            task.run(commit=True)
        found: list[Any] = []

        def init(context: TaskContext) -> None:
            store = context.store("s")
            found.extend([store.get(key_of(1)), *store.get_many([key_of(2), b"none"])])

        with closing(typed_task(tmp_path, log, "timestamped", backend, init=init)) as task:
            task.open()
            assert found == [(1, -1), (2, -1), None]
            tags = {key[:1] for key in kept_in(task)}
            assert tags == {OLD}
