"""Records with a time to live are reported when they expire: each once, before it is gone.

The oracle goes over the records of the input in their order, and keeps all records in a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stores import ConfigError, StoreError, StoreIncompatibleError, open_store
from stores.changelog import Changelog, Record, SqliteChangelog
from stores.command import main
from stores.records import BYTES, STR, KeyValue, TimestampedKeyValue, ValueAndTimestamp
from stores.records.expiring import INDEX
from stores.spark.arguments import configs_of
from stores.tasks import StoreConfig, TaskContext
from stores.testing import AppDriver
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    Crash,
    over_both_forms,
    over_each_changelog,
    run_until_killed,
    single,
)
from stores.tests.tasks.stores.reports import Output, end, feed, in_form, outputs, over_each_backend
from stores.tests.tasks.typed import kept_in
from stores.worker import Processor

TTL_MS = 20


def emit(key: bytes, value: ValueAndTimestamp[bytes], context: TaskContext) -> None:
    assert context.timestamp_ms == value.timestamp_ms
    context.forward("output", key, b"%d:%b" % (value.timestamp_ms, value.value))


KIND = TimestampedKeyValue(key=BYTES, value=BYTES, ttl_ms=TTL_MS, on_expiry=emit)


def process(record: Record, context: TaskContext) -> None:
    """Put, put several, replace or delete, by the record's offset."""
    store, key, time_ms = context.store("s"), record.key or b"", record.timestamp_ms
    if record.offset % 14 == 10:
        store.delete_range(key, key)
    elif record.offset % 7 == 3:
        store.delete(key)
    elif record.offset % 7 == 5:
        store.put(key, None, time_ms)
    elif record.offset % 7 == 6:
        store.put_all([(key, b"first", time_ms + 1), (key, b"%d" % record.offset, time_ms)])
    else:
        store.put(key, b"%d" % record.offset, time_ms)


def sent(seed: int, records: int) -> list[tuple[bytes, int]]:
    random = Random(seed)
    time_ms, pairs = 0, []
    for _ in range(records):
        time_ms += random.choice([0, 1, 2, 5]) if random.random() < 0.95 else 3 * TTL_MS
        pairs.append((b"%d" % random.randrange(8), max(0, time_ms - random.choice([0, 0, 0, 8, 2 * TTL_MS]))))
    return pairs


def reported(pairs: list[tuple[bytes, int]]) -> list[Output]:
    """Return what is reported after these records."""
    present: dict[bytes, tuple[int, bytes]] = {}
    stream_time = -1
    found: list[Output] = []
    for offset, (key, time_ms) in enumerate(pairs):
        present.pop(key, None)
        if offset % 7 not in (3, 5):
            present[key] = (time_ms, b"%d" % offset)
            stream_time = max(stream_time, time_ms + (offset % 7 == 6))
        for at, owner in sorted((at, owner) for owner, (at, _) in present.items() if at <= stream_time - TTL_MS):
            found.append((owner, b"%d:%b" % (at, present.pop(owner)[1])))
    return found


def expiring_task(folder: Path, log: Changelog, backend: str = "memory", **more: Any) -> Any:
    records = more.pop("records", KIND)
    return single(folder, log, **{"process": process, "stores": {"s": StoreConfig(backend, records=records)}, **more})


@over_both_forms
@over_each_backend
@over_each_changelog
def test_each_record_that_expires_is_reported_once(tmp_path: Path, log: Changelog, backend: str, batches: bool) -> None:
    pairs = sent(seed=2, records=100)
    feed(log, pairs)
    for number in range(7):
        task = expiring_task(tmp_path, log, backend, commit_every_records=3, batches=batches)
        task.open()
        task.run(12)
        end(task, tmp_path, number)
    with expiring_task(tmp_path, log, backend, batches=batches) as task:
        task.run()
    expected = reported(pairs)
    assert in_form(outputs(log), batches) == in_form(expected, batches)
    assert len(expected) > 15


@over_both_forms
@pytest.mark.parametrize("seed", range(8))
def test_the_reports_of_any_records_are_those_of_the_oracle(
    tmp_path: Path, log: Changelog, seed: int, batches: bool
) -> None:
    pairs = sent(seed, records=200)
    feed(log, pairs)
    with expiring_task(tmp_path, log, commit_every_records=[None, 7][seed % 2], batches=batches) as task:
        task.run(commit=True)
        # No key is left of records that were replaced, and none of the index is shown.
        records = {key: value for key, value in kept_in(task).items() if not key.startswith(INDEX)}
        with task.store("s").all() as shown:
            assert {key: value.timestamp_ms for key, value in shown} == {
                key: int.from_bytes(value[:8], "big") for key, value in records.items()
            }
    assert in_form(outputs(log), batches) == in_form(reported(pairs), batches)


@pytest.mark.parametrize(
    "failpoint",
    ["changelog.before_commit", "changelog.after_commit", "task.after_log_commit", "task.after_store_commit"],
)
@pytest.mark.parametrize(
    "backend",
    [
        "lmdb-native",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("rocksdb", "sqlite", "rocksdb-dual-store")),
    ],
)
def test_a_kill_loses_no_report_and_repeats_none(tmp_path: Path, backend: str, failpoint: str) -> None:
    pairs = sent(seed=4, records=60)
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        feed(log, pairs)
    assert run_until_killed(expiring_task, tmp_path, failpoint, 7, backend, commit_every_records=5)
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        with expiring_task(tmp_path, log, backend) as task:
            task.run()
        assert outputs(log) == reported(pairs)


def test_on_expiry_may_put_the_record_again_and_its_exception_rolls_back(tmp_path: Path, log: Changelog) -> None:
    calls: list[bytes] = []

    def renew(key: bytes, value: ValueAndTimestamp[bytes], context: TaskContext) -> None:
        calls.append(key)
        assert context.store("s").get(key) is None
        if calls == [b"a"]:
            raise Crash
        # It has expired again if it is as old as before.
        context.store("s").put(key, b"again", value.timestamp_ms + (1 if value.value == b"0" else TTL_MS))

    records = TimestampedKeyValue(key=BYTES, value=BYTES, ttl_ms=TTL_MS, on_expiry=renew)
    feed(log, [(b"a", 0), (b"b", 25)])
    with expiring_task(tmp_path, log, records=records, commit_every_records=1) as task:
        with pytest.raises(Crash):
            task.run()
        task.run(commit=True)
        assert calls == [b"a", b"a", b"a"]
        assert dict(task.store("s").all()) == {b"a": (b"again", 21), b"b": (b"1", 25)}


@pytest.mark.parametrize("later_ms", [0, TTL_MS])
def test_records_that_on_expiry_expires_again_and_again_are_an_error(
    tmp_path: Path, log: Changelog, monkeypatch: pytest.MonkeyPatch, later_ms: int
) -> None:
    """Put with their own time they have expired. Put with a later one they expire each other."""
    monkeypatch.setattr("stores.records.time_index.CHUNK", 2)
    monkeypatch.setattr("stores.tasks.context.REPORT_ROUNDS_MAX", 5)
    calls: list[bytes] = []

    def renew(key: bytes, value: ValueAndTimestamp[bytes], context: TaskContext) -> None:
        calls.append(key)
        store = context.store("s")
        store.put(key, b"again", value.timestamp_ms)
        if later_ms:
            store.put(b"later", b"", 100 + later_ms * len(calls))

    records = TimestampedKeyValue(key=BYTES, value=BYTES, ttl_ms=TTL_MS, on_expiry=renew)
    keys = [b"%d" % number for number in range(5)]
    feed(log, [(key, 0) for key in keys] + [(b"last", TTL_MS)])
    with expiring_task(tmp_path, log, process=put, records=records) as task, pytest.raises(StoreError, match="'s'"):
        task.run()
    assert calls[: len(keys)] == keys
    assert calls.count(b"0") == 5


def put(record: Record, context: TaskContext) -> None:
    context.store("s").put(record.key, b"", record.timestamp_ms)


def user_keys() -> list[bytes]:
    return [b"a", b"\xfe", b"\xff", b"\xff\xff", b"\xff" * 7, b"\xff" * 7 + b"\xfe\xff\xff"]


SCANS: Mapping[str, Callable[[Any], Any]] = {
    "all": lambda store: store.all(),
    "reverse_all": lambda store: store.reverse_all(),
    "range": lambda store: store.range(b"\xff", None),
    "range beyond": lambda store: store.range(b"b", b"\xff" * 20),
    "reverse_range": lambda store: store.reverse_range(None, b"\xff" * 9),
    "range of nothing": lambda store: store.range(b"\xff" * 9, None),
    "prefix_scan": lambda store: store.prefix_scan(b"\xff\xff"),
    "prefix of the index": lambda store: store.prefix_scan(b"\xff" * 8),
    "reverse_prefix_scan": lambda store: store.reverse_prefix_scan(b"\xff"),
    "no prefix": lambda store: store.prefix_scan(b""),
}


@pytest.mark.parametrize("scan", SCANS.values(), ids=SCANS)
def test_no_read_shows_the_index_and_no_write_touches_it(
    tmp_path: Path, log: Changelog, scan: Callable[[Any], Any]
) -> None:
    feed(log, [(key, 5) for key in user_keys()])
    plain = TimestampedKeyValue(key=BYTES, value=BYTES, ttl_ms=TTL_MS)

    def put(record: Record, context: TaskContext) -> None:
        context.store("s").put(record.key, b"", record.timestamp_ms)
        if record.offset == 5:
            store = context.store("s")
            with pytest.raises(ValueError, match="eight bytes"):
                store.put(INDEX + b"key", b"", 5)
            assert store.get(INDEX) is None
            assert store.get_many([INDEX + b"key", b"a"]) == [None, (b"", 5)]
            seen.append([key for key, _ in scan(store)])

    seen: list[list[bytes]] = []
    with expiring_task(tmp_path / "1", log, process=put) as task:
        task.run(commit=True)
        seen.append([key for key, _ in scan(task.store("s"))])
    with expiring_task(tmp_path / "2", log, records=plain) as task:  # It has the same records from the changelog.
        view = task.store("s")
        assert {key for key, _ in view.all()} == set(user_keys())
        assert seen == [[key for key, _ in scan(view)]] * 2


def test_the_index_has_one_key_for_a_record_that_is_put_again_and_again(tmp_path: Path, log: Changelog) -> None:
    def put(record: Record, context: TaskContext) -> None:
        context.store("s").put(record.key, b"", record.timestamp_ms)

    feed(log, [(b"a", time_ms) for time_ms in range(1, 15)])
    with expiring_task(tmp_path, log, process=put) as task:
        task.run(commit=True)
        assert sum(key.startswith(INDEX) for key in kept_in(task)) == 1


def test_a_range_that_is_deleted_is_not_reported_and_the_rest_is() -> None:
    def work(record: Record, context: TaskContext) -> None:
        if record.value is None:
            context.store("s").delete_range("b", None)
        else:
            context.store("s").put((record.key or b"").decode(), "", record.timestamp_ms)

    def out(key: str, value: ValueAndTimestamp[str], context: TaskContext) -> None:
        context.forward("out", key.encode(), b"")

    kind = TimestampedKeyValue(key=STR, value=STR, ttl_ms=10, on_expiry=out)
    with AppDriver(Processor(["in"], work, {"s": kind}), topics=["out"]) as driver:
        for key, value, time_ms in ((b"a", b"", 1), (b"b", b"", 2), (b"", None, 3), (b"c", b"", 4)):
            driver.pipe("in", key, value, time_ms)
        driver.restart()
        driver.pipe("in", b"d", b"", 100)
        assert [record.key for record in driver.read("out")] == [b"a", b"c"]


@pytest.mark.parametrize("backend", ["lmdb", "rocksdb", "sqlite"])
def test_a_store_may_get_on_expiry_later_lose_it_and_get_it_again(tmp_path: Path, log: Changelog, backend: str) -> None:
    plain = TimestampedKeyValue(key=BYTES, value=BYTES)

    def put(record: Record, context: TaskContext) -> None:
        context.store("s").put(record.key, b"", record.timestamp_ms)

    for number, (records, time_ms) in enumerate([(plain, 1), (KIND, 5), (plain, 10), (KIND, 30)]):
        feed(log, [(b"%d" % number, time_ms)])
        with expiring_task(tmp_path, log, backend, records=records, process=put) as task:
            task.run(commit=True)
            assert any(key.startswith(INDEX) for key in kept_in(task)) == (records is KIND)
    assert outputs(log) == [(b"0", b"1:"), (b"1", b"5:"), (b"2", b"10:")]


def test_records_without_times_are_refused_and_stay(tmp_path: Path) -> None:
    with open_store("lmdb", tmp_path / "s") as store:
        plain = KeyValue(BYTES, BYTES).over(store)
        plain.put(b"a", b"1")
        plain.commit()
        with pytest.raises(StoreIncompatibleError):
            KIND.prepare(store)
        assert dict(KeyValue(BYTES, BYTES).over(store).all()) == {b"a": b"1"}


def test_a_dump_shows_no_key_of_the_index(tmp_path: Path, log: Changelog, capsys: pytest.CaptureFixture[str]) -> None:
    feed(log, [(b"a", 1)])
    with expiring_task(tmp_path, log, "lmdb") as task:
        task.run()
    [folder] = [file.parent for file in (tmp_path / "state").rglob("store.json")]
    assert main(["dump", "--json", "--all", str(folder)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_outside_of_a_task_under_exactly_once_on_expiry_is_refused(tmp_path: Path, log: Changelog) -> None:
    with open_store("memory", "unused") as store, pytest.raises(ConfigError):
        KIND.over(store)
    with pytest.raises(ConfigError):
        expiring_task(tmp_path, log, guarantee=AT_LEAST_ONCE)
    with pytest.raises(ConfigError):
        configs_of({"s": StoreConfig("lmdb", records=KIND)}, times=False)


@pytest.mark.parametrize(
    ("arguments", "error"), [({"on_expiry": emit}, ValueError), ({"on_expiry": 1, "ttl_ms": 1}, TypeError)]
)
def test_a_description_that_can_t_report_is_refused(arguments: Mapping[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        TimestampedKeyValue(BYTES, BYTES, **arguments)


def test_a_range_that_is_deleted_after_some_of_it_has_expired_is_reported_as_far() -> None:
    def work(record: Record, context: TaskContext) -> None:
        store = context.store("s")
        store.put_all([("a", "", 1), ("b", "", 2), ("c", "", 3), ("d", "", 11)])
        store.delete_range("a", "b")

    def out(key: str, value: ValueAndTimestamp[str], context: TaskContext) -> None:
        context.forward("out", key.encode(), b"")

    kind = TimestampedKeyValue(key=STR, value=STR, ttl_ms=10, on_expiry=out)
    with AppDriver(Processor(["in"], work, {"s": kind}), topics=["out"]) as driver:
        driver.pipe("in", b"", b"", 0)
        assert [record.key for record in driver.read("out")] == [b"a"]
        assert [key for key, _ in driver.store("s").all()] == ["c", "d"]
