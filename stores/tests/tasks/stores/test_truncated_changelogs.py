"""A changelog without the next record of a store: the store is wiped, and restored from what is left.

Brokers remove the old records of a window store's changelog by themselves. Source: KIP-892, "Error Handling", 2.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from stores.changelog import Changelog
from stores.records import BYTES, INT64, Window
from stores.tasks import StreamTask
from stores.tests.tasks.setup import DIRECT, INDEXED, INPUT, outputs, over_each_changelog
from stores.tests.tasks.typed import STORE, typed_task, values

KIND = "window"
HOURS = Window(key=BYTES, value=INT64, size_ms=10, retention_ms=3_600_000)


def feed_now(log: Changelog, number: int) -> None:
    """Feed records of the present time, with keys of their own: a broker may remove older ones during a test."""
    now_ms = time.time_ns() // 1_000_000
    with log.producer() as producer:
        producer.send_all(INPUT, [(b"%d" % each, b"x", now_ms + each) for each in range(number)])
        producer.flush()


def windowed(folder: Path, log: Changelog, backend: str = INDEXED) -> StreamTask:
    """Return a task whose store has the offset of each input record in a window."""
    return typed_task(folder, log, KIND, backend, store_records=HOURS)


def run_two_instances(folder: Path, log: Changelog, backend: str = INDEXED) -> int:
    """Process two records in the instance "behind", and three more in another one; return the offset of the first."""
    feed_now(log, 6)
    with windowed(folder / "behind", log, backend) as behind:
        assert behind.run(2, commit=True) == 2
        offset = behind.changelog_offsets()[STORE]
    with windowed(folder / "ahead", log, backend) as ahead:
        assert ahead.run(3, commit=True) == 3
    assert offset is not None
    return offset


@over_each_changelog
@pytest.mark.parametrize("backend", [INDEXED, "lmdb-native", DIRECT])
def test_a_store_whose_next_record_was_deleted_is_restored_whole_and_its_task_continues(
    tmp_path: Path, log: Changelog, backend: str
) -> None:
    run_two_instances(tmp_path, log, backend)
    offsets = [record.offset for record in log.read(STORE)][3:]
    log.truncate(STORE, offsets[0])
    with windowed(tmp_path / "behind", log, backend) as task:
        [report] = task.restore_reports()
        assert (report.wiped, report.from_offset, report.records) == (True, offsets[0], len(offsets))
        assert report.reason is not None
        assert STORE.topic in report.reason
        assert values(task, KIND) == [3, 4]
        assert task.run(commit=True) == 1
        assert values(task, KIND) == [3, 4, 5]
    assert outputs(log) == [(b"%d" % number, b"%d" % number) for number in range(6)]
    with windowed(tmp_path / "behind", log, backend) as task:
        assert [(report.wiped, report.records) for report in task.restore_reports()] == [(False, 0)]
        assert values(task, KIND) == [3, 4, 5]


@over_each_changelog
def test_a_store_is_kept_if_its_changelog_begins_with_the_next_offset(tmp_path: Path, log: Changelog) -> None:
    offset = run_two_instances(tmp_path, log)
    log.truncate(STORE, offset + 1)
    with windowed(tmp_path / "behind", log) as task:
        [report] = task.restore_reports()
        assert (report.wiped, report.reason, report.records) == (False, None, 3)
        assert values(task, KIND) == [0, 1, 2, 3, 4]
