"""Windows and sessions are reported when they close: each once, with its final value, whatever happens between.

The oracle goes over the records of the input in their order, and keeps all windows in a dictionary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any

import pytest

from stores.changelog import Changelog, MemoryChangelog, Record, SqliteChangelog
from stores.changelog.interface import Headers
from stores.command import main
from stores.interface import TopicPartition
from stores.records import (
    BYTES,
    INT64,
    STR,
    RecordKind,
    Session,
    ValueTimestampHeaders,
    Window,
    Windowed,
)
from stores.records.closing import INDEX
from stores.tasks import DeadLetterTopic, StoreConfig, TaskContext
from stores.tasks.stores.shown_store import ChangeloggingStore
from stores.testing import AppDriver
from stores.tests.tasks.setup import INPUT, Crash, over_both_forms, over_each_changelog, run_until_killed, single
from stores.tests.tasks.stores.reports import Output, end, feed, in_form, outputs, over_each_backend
from stores.tests.tasks.typed import kept_in
from stores.worker import Processor

SIZE_MS, GAP_MS, GRACE_MS, RETENTION_MS = 10, 5, 7, 60


def headers_of(key: bytes | None) -> Headers:
    """The headers of each value of the key, in a store with headers."""
    return (("key", key), ("none", None))


def emit(window: Windowed[bytes], value: Any, context: TaskContext) -> None:
    assert not isinstance(value, ValueTimestampHeaders) or value.headers == headers_of(window.key)
    count = getattr(value, "value", value)
    context.forward("output", window.key, b"%d-%d:%d" % (window.start_ms, window.end_ms, count))


SHARED: Mapping[str, Any] = {"key": BYTES, "value": INT64, "retention_ms": RETENTION_MS, "segment_ms": 20}
CLOSING: Mapping[str, Any] = {"grace_ms": GRACE_MS, "on_close": emit}
KINDS: Mapping[str, RecordKind] = {
    "window": Window(size_ms=SIZE_MS, **SHARED, **CLOSING),
    "timestamped-window": Window(size_ms=SIZE_MS, timestamped=True, **SHARED, **CLOSING),
    "window-headers": Window(size_ms=SIZE_MS, headers=True, **SHARED, **CLOSING),
    "session": Session(gap_ms=GAP_MS, **SHARED, **CLOSING),
    "timestamped-session": Session(gap_ms=GAP_MS, timestamped=True, **SHARED, **CLOSING),
    "session-headers": Session(gap_ms=GAP_MS, headers=True, **SHARED, **CLOSING),
}


def count(record: Record, context: TaskContext) -> None:
    store: Any = context.store("s")
    more = {"headers": headers_of(record.key)} if store.kind.headers else {}
    if hasattr(store, "merge"):
        store.merge(record.key, record.timestamp_ms, GAP_MS, lambda values: sum(values) + 1, **more)
    else:
        store.update(record.key, record.timestamp_ms, lambda value: (value or 0) + 1, **more)


def sent(seed: int, records: int) -> list[tuple[bytes, int]]:
    """Return keys and times: most go on by some milliseconds, some are late, some jump over a retention."""
    random = Random(seed)
    time_ms, pairs = 0, []
    for _ in range(records):
        time_ms += random.choice([0, 0, 1, 3, 8, 15]) if random.random() < 0.96 else 2 * RETENTION_MS
        pairs.append((b"%d" % random.randrange(3), max(0, time_ms - random.choice([0, 0, 0, 4, 12, 30]))))
    return pairs


def reported(kind: str, pairs: list[tuple[bytes, int]]) -> list[Output]:
    """Return what is reported after these records."""
    return list(_sessions(pairs) if "session" in kind else _windows(pairs))


def _windows(pairs: list[tuple[bytes, int]]) -> Iterator[Output]:
    counts: dict[tuple[int, bytes], int] = {}
    stream_time = -1
    for key, time_ms in pairs:
        start = time_ms // SIZE_MS * SIZE_MS
        if start + SIZE_MS + GRACE_MS > stream_time:
            counts[start, key] = counts.get((start, key), 0) + 1
            stream_time = max(stream_time, start)
        for start, owner in sorted(each for each in counts if each[0] + SIZE_MS + GRACE_MS <= stream_time):
            yield owner, b"%d-%d:%d" % (start, start + SIZE_MS, counts.pop((start, owner)))


def _sessions(pairs: list[tuple[bytes, int]]) -> Iterator[Output]:
    sessions: list[tuple[int, bytes, int, int]] = []  # end, key, start, count
    stream_time = -1
    for key, time_ms in pairs:
        fitting = [
            (end, owner, start, number)
            for end, owner, start, number in sessions
            if owner == key and start - GAP_MS <= time_ms <= end + GAP_MS
        ]
        start = min([time_ms, *(each[2] for each in fitting)])
        end = max([time_ms, *(each[0] for each in fitting)])
        if end + GAP_MS + GRACE_MS >= stream_time:
            sessions = [each for each in sessions if each not in fitting]
            sessions.append((end, key, start, 1 + sum(each[3] for each in fitting)))
            stream_time = max(stream_time, end)
        for each in sorted(each for each in sessions if each[0] + GAP_MS + GRACE_MS < stream_time):
            sessions.remove(each)
            yield each[1], b"%d-%d:%d" % (each[2], each[0], each[3])


def closing_task(folder: Path, log: Changelog, kind: RecordKind | str, backend: str = "memory", **more: Any) -> Any:
    records = KINDS[kind] if isinstance(kind, str) else kind
    return single(folder, log, **{"process": count, "stores": {"s": StoreConfig(backend, records=records)}, **more})


@pytest.mark.parametrize("kind", KINDS)
@over_each_backend
@over_each_changelog
def test_each_window_is_reported_once_with_its_final_value(
    tmp_path: Path, log: Changelog, kind: str, backend: str
) -> None:
    pairs = sent(seed=7, records=80)
    feed(log, pairs)
    for number in range(7):
        task = closing_task(tmp_path, log, kind, backend, commit_every_records=3)
        task.open()
        task.run(10)
        end(task, tmp_path, number)
    with closing_task(tmp_path, log, kind, backend) as task:
        task.run()
    expected = reported(kind, pairs)
    assert outputs(log) == expected
    assert len(expected) > 15


@over_both_forms
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", KINDS)
def test_the_reports_of_any_records_are_those_of_the_oracle(
    tmp_path: Path, log: Changelog, kind: str, seed: int, batches: bool
) -> None:
    pairs = sent(seed, records=150)
    feed(log, pairs)
    with closing_task(tmp_path, log, kind, commit_every_records=[None, 7][seed % 2], batches=batches) as task:
        task.run()
    assert in_form(outputs(log), batches) == in_form(reported(kind, pairs), batches)


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        ("window", "lmdb-native"),
        *(
            pytest.param(kind, backend, marks=pytest.mark.long)
            for kind in ("window", "timestamped-session")
            for backend in ("rocksdb-indexed-batch", "rocksdb-dual-store", "sqlite-indexed-batch")
        ),
    ],
)
@pytest.mark.parametrize(
    "failpoint",
    [
        "task.before_log_commit",
        "changelog.before_commit",
        "changelog.after_commit",
        "task.after_log_commit",
        "task.after_store_commit",
        "task.restore.before_write",
        "task.restore.after_write",
    ],
)
def test_a_kill_loses_no_report_and_repeats_none(tmp_path: Path, kind: str, backend: str, failpoint: str) -> None:
    pairs = sent(seed=3, records=60)
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        feed(log, pairs)
    five = {"commit_every_records": 5}
    if "restore" in failpoint:
        assert run_until_killed(closing_task, tmp_path, "task.after_log_commit", 7, kind, backend, **five)
        assert run_until_killed(closing_task, tmp_path, failpoint, 1, kind, backend, **five)
    else:
        assert run_until_killed(closing_task, tmp_path, failpoint, 7, kind, backend, **five)
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        with closing_task(tmp_path, log, kind, backend) as task:
            task.run()
        assert outputs(log) == reported(kind, pairs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_standby_copy_takes_over_without_a_loss_or_a_repetition(tmp_path: Path, log: Changelog, kind: str) -> None:
    pairs = sent(seed=5, records=60)
    feed(log, pairs)
    standby = closing_task(tmp_path / "other", log, kind, "lmdb").standby()
    standby.open()
    task = closing_task(tmp_path, log, kind, "lmdb", commit_every_records=4)
    task.open()
    for _ in range(8):
        task.run(5)
        standby.follow(1_000)
    task.close(clean=False)
    standby.close()
    with closing_task(tmp_path / "other", log, kind, "lmdb") as task:
        task.run()
    assert outputs(log) == reported(kind, pairs)


def test_an_exception_of_on_close_rolls_back_the_transaction_and_the_report_comes_again(
    tmp_path: Path, log: Changelog
) -> None:
    feed(log, [(b"a", 0), (b"b", 1), (b"a", 40)])
    calls: list[bytes] = []

    def fail_once(window: Windowed[bytes], value: int, context: TaskContext) -> None:
        calls.append(window.key)
        emit(window, value, context)
        if calls == [b"a", b"b"]:
            raise Crash

    kind = Window(size_ms=SIZE_MS, on_close=fail_once, **SHARED)
    with closing(closing_task(tmp_path, log, kind, on_error="skip")) as task:
        task.open()
        with pytest.raises(Crash):
            task.run(commit=True)
        assert outputs(log) == []
        task.run(commit=True)
    assert calls == [b"a", b"b"] * 2
    assert outputs(log) == [(b"a", b"0-10:1"), (b"b", b"0-10:1")]


def test_a_record_that_is_undone_closes_nothing(tmp_path: Path, log: Changelog) -> None:
    log.create_topic("dead")
    feed(log, [(b"a", 0), (b"poison", 40), (b"a", 1), (b"a", 30), (b"a", 2)])

    def poisonable(record: Record, context: TaskContext) -> None:
        count(record, context)
        if record.key == b"poison":
            raise Crash

    with closing_task(tmp_path, log, "window", process=poisonable, on_error=DeadLetterTopic("dead")) as task:
        task.run()
    assert outputs(log) == [(b"a", b"0-10:2")]


@pytest.mark.parametrize("kind", ["window", "session"])
@pytest.mark.parametrize("reported", [True, False])
def test_a_record_far_ahead_hides_all_other_windows_and_only_on_close_reports_them(kind: str, reported: bool) -> None:
    described: Any = replace(KINDS[kind], name="s")
    if not reported:
        described = replace(described, on_close=None, grace_ms=None, **({"gap_ms": None} if kind == "session" else {}))
    with AppDriver(Processor(["in"], count, [described]), topics=["output"]) as driver:
        for key, time_ms in ((b"a", 10), (b"a", 11), (b"b", 12), (b"c", 10**9), (b"b", 13)):
            driver.pipe("in", key, b"", time_ms)
        view = driver.store(described)
        bounds = (0, 10**10) if kind == "window" else ()
        assert [len(list(view.fetch(key, *bounds))) for key in (b"a", b"b", b"c")] == [0, 0, 1]
        counts = [record.value.rpartition(b":")[2] for record in driver.read("output") if record.value]
        assert counts == ([b"2", b"1"] if reported else [])
        [metrics] = [task.metrics.stores["s"] for task in driver.tasks.values()]
        assert metrics.late_total == 1


def test_on_close_may_write_to_a_store_that_reports_as_well() -> None:
    def per_hour(window: Windowed[str], value: int, context: TaskContext) -> None:
        context.store("hours").update(window.key, window.start_ms, lambda number: (number or 0) + value)

    def out(window: Windowed[str], value: int, context: TaskContext) -> None:
        context.forward("out", window.key.encode(), b"%d" % value)

    minutes = Window(key=STR, value=INT64, size_ms=60, retention_ms=7_200, on_close=per_hour, name="minutes")
    hours = Window(key=STR, value=INT64, size_ms=3_600, retention_ms=7_200, on_close=out, name="hours")

    def process(record: Record, context: TaskContext) -> None:
        context.store(minutes).update("a", record.timestamp_ms, lambda number: (number or 0) + 1)

    with AppDriver(Processor(["in"], process, [minutes, hours]), topics=["out"]) as driver:
        for time_ms in range(0, 3_660, 20):
            driver.pipe("in", b"", b"", time_ms)
        assert driver.read("out") == []
        driver.restart()
        driver.pipe("in", b"", b"", 3_660)
        # The function had the time of the window's end.
        assert driver.read("out") == [Record(0, b"a", b"180", 3_600)]


def test_a_closed_window_takes_no_more_records_and_can_be_removed() -> None:
    seen: list[Windowed[str]] = []

    def remove(window: Windowed[str], value: int, context: TaskContext) -> None:
        seen.append(window)
        context.store(kind).put(window.key, 99, window.start_ms)
        assert context.store(kind).fetch_one(window.key, window.start_ms) == value
        context.store(kind).put(window.key, None, window.start_ms)

    kind = Window(key=STR, value=INT64, size_ms=10, retention_ms=100, on_close=remove, name="w")

    def process(record: Record, context: TaskContext) -> None:
        value = None if record.value is None else 1
        context.store(kind).put((record.key or b"").decode(), value, record.timestamp_ms)

    with AppDriver(Processor(["in"], process, [kind])) as driver:
        for key, value, start_ms in ((b"a", b"", 0), (b"b", b"", 0), (b"b", None, 0), (b"c", b"", 10), (b"d", b"", 0)):
            driver.pipe("in", key, value, start_ms)
        assert seen == [Windowed("a", 0, 10)]
        assert list(driver.store(kind).all()) == [(Windowed("c", 10, 20), 1)]
        [metrics] = [task.metrics.stores["w"] for task in driver.tasks.values()]
        assert metrics.late_total == 2


@pytest.mark.parametrize("backend", ["lmdb", "rocksdb", "sqlite"])
def test_a_store_may_get_on_close_later_lose_it_and_get_it_again(tmp_path: Path, log: Changelog, backend: str) -> None:
    plain = Window(size_ms=SIZE_MS, **SHARED)
    closing_kind = Window(size_ms=SIZE_MS, on_close=emit, **{**SHARED, "segment_ms": 15})
    for kind, times in (
        (plain, (0, 10, 11)),
        (closing_kind, (20, 21)),
        (plain, (22, 30, 31)),
        (closing_kind, (40, 50)),
    ):
        feed(log, [(b"a", time_ms) for time_ms in times])
        with closing_task(tmp_path, log, kind, backend) as task:
            task.run()
    # When the store got on_close again, the window from 20 to 30 had closed, and that from 30 to 40 was open.
    assert outputs(log) == [(b"a", b"10-20:2"), (b"a", b"30-40:2"), (b"a", b"40-50:1")]


class LosingTombstones(MemoryChangelog):
    """A changelog that a broker has compacted: a key that was removed is in none of its records."""

    def read(self, partition: TopicPartition, from_offset: int = 0) -> Iterator[Record]:
        last = {record.key: record for record in super().read(partition)}
        for record in super().read(partition, from_offset):
            if "changelog" not in partition.topic or last[record.key].value is not None:
                yield record


def test_no_report_is_repeated_if_the_changelog_has_lost_the_record_with_the_highest_time(tmp_path: Path) -> None:
    def put(record: Record, context: TaskContext) -> None:
        context.store("s").put(record.key, None if record.value == b"remove" else 1, record.timestamp_ms)

    with LosingTombstones() as log:
        feed(log, [(b"a", 30), (b"a", 40), (b"b", 50)])
        with log.producer() as producer:
            producer.send(INPUT, b"b", b"remove", 50)
            producer.flush()
        with closing_task(tmp_path, log, "window", process=put) as task:
            task.run()
        rmtree(tmp_path / "state")
        feed(log, [(b"a", 60)])
        with closing_task(tmp_path, log, "window", process=put) as task:
            task.run()
        assert outputs(log) == [(b"a", b"30-40:1"), (b"a", b"40-50:1")]


def test_another_grace_repeats_no_report(tmp_path: Path, log: Changelog) -> None:
    for grace_ms, times in ((0, (0, 10)), (15, (3, 13, 20)), (5, (14, 30))):
        feed(log, [(b"a", time_ms) for time_ms in times])
        with closing_task(
            tmp_path, log, Window(size_ms=SIZE_MS, grace_ms=grace_ms, on_close=emit, **SHARED), "lmdb"
        ) as task:
            task.run(commit=True)
            assert task.store("s").fetch_one(b"a", 0) == 1
    assert outputs(log) == [(b"a", b"0-10:1"), (b"a", b"10-20:3")]


def test_a_longer_grace_opens_windows_again_in_a_store_that_is_restored_whole(tmp_path: Path, log: Changelog) -> None:
    for grace_ms, times in ((0, (0, 10, 20)), (5, (12, 30))):
        feed(log, [(b"a", time_ms) for time_ms in times])
        with closing_task(tmp_path, log, Window(size_ms=SIZE_MS, grace_ms=grace_ms, on_close=emit, **SHARED)) as task:
            task.run()
    assert outputs(log) == [(b"a", b"0-10:1"), (b"a", b"10-20:1"), (b"a", b"10-20:2")]


@pytest.mark.parametrize("backend", ["memory", "rocksdb", "lmdb-native"])
def test_the_cost_is_that_of_the_windows_that_close_and_not_of_those_that_are_open(
    log: Changelog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    read = 0
    scan = ChangeloggingStore.range

    def counted(store: ChangeloggingStore, start: bytes | None, end: bytes | None) -> Any:
        return Counted(scan(store, start, end))

    class Counted:
        def __init__(self, pairs: Any) -> None:
            self.pairs = pairs

        def __enter__(self) -> Iterator[tuple[bytes, bytes]]:
            return self.counting()

        def __exit__(self, *_: object) -> None:
            self.pairs.close()

        def counting(self) -> Iterator[tuple[bytes, bytes]]:
            nonlocal read
            for pair in self.pairs:
                read += 1
                yield pair

    kind = Window(size_ms=1, grace_ms=10, on_close=emit, **SHARED)
    costs = []
    for step, number in enumerate((10, 100, 1_000)):
        folder = tmp_path / str(step)
        at = 1_000 * step
        early = [(b"early-%d" % each, at) for each in range(5)]
        feed(log, early + [(b"open-%d" % each, at + 10) for each in range(number)])
        with closing_task(folder, log, kind, backend) as task:
            task.run(commit=True)
            feed(log, [(b"last", at + 11 + each) for each in range(4)])
            with monkeypatch.context() as patch:
                patch.setattr(ChangeloggingStore, "range", counted)
                read = 0
                task.run(commit=True)
                costs.append(read)
        assert outputs(log)[-5:] == [(key, b"%d-%d:1" % (at, at + 1)) for key, _ in early]
        rmtree(folder)
    # The one that follows is read once, and then no more until its time has come.
    assert costs == [5 + 1] * 3


def test_many_windows_close_at_once_in_parts_that_fit_into_memory(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stores.records.time_index.CHUNK", 10)
    feed(log, [(b"%02d" % number, 0) for number in range(35)] + [(b"last", 50)])
    with closing_task(tmp_path, log, "window") as task:
        task.run()
    assert outputs(log) == [(b"%02d" % number, b"0-10:1") for number in range(35)]


def test_a_dump_shows_no_key_of_the_index(tmp_path: Path, log: Changelog, capsys: pytest.CaptureFixture[str]) -> None:
    feed(log, [(b"a", 0), (b"a", 10)])
    with closing_task(tmp_path, log, "window", "lmdb") as task:
        task.run()
    [folder] = [file.parent for file in (tmp_path / "state").rglob("store.json")]
    assert main(["dump", "--json", "--all", str(folder)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_the_index_has_the_sessions_that_are_open_and_not_those_that_were_merged(
    tmp_path: Path, log: Changelog
) -> None:
    feed(log, [(b"a", time_ms) for time_ms in range(0, 80, 4)])
    with closing_task(tmp_path, log, "session") as task:
        task.run(commit=True)
        assert sum(key.startswith(INDEX) for key in kept_in(task)) == 1
