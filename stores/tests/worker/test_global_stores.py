"""Workers with a global store, over both changelogs: all have it whole, before their tasks begin. Source: KIP-99."""

from __future__ import annotations

import itertools
import re
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import MemoryChangelog, Record, SqliteChangelog
from stores.errors import ChangelogError, ChangelogTimeoutError, ConfigError, StoreUnavailableError
from stores.interface import TopicPartition
from stores.tasks import GlobalStore, GlobalStores, TaskContext
from stores.tasks.global_copy import GlobalCopy
from stores.telemetry import MetricsRegistry
from stores.tests.worker import counting_app
from stores.tests.worker.places import EmbeddedPlace, Place
from stores.tests.worker.queries.asking import ask
from stores.tests.worker.worker_process import WorkerProcess
from stores.tests.worker.worker_thread import await_counted, await_true
from stores.worker import Application, Processor, Worker, stream_thread
from stores.worker.__main__ import FAILED, REFUSED
from stores.worker.stream_thread import GlobalThread
from stores.worker.worker import _POLL_S

MODULE = "stores.tests.worker.counting_app"
PRICED = f"{MODULE}:priced"
DEADLINE_S = 600.0


def set_price(place: Place, word: str, price: int) -> None:
    with place.open() as log:
        if "prices" not in log.topics():
            log.create_topic("prices", 2)
        with log.producer() as producer:
            producer.send(TopicPartition("prices", len(word) % 2), word.encode(), b"%d" % price)
            producer.flush()


def test_the_tasks_of_all_workers_read_it_and_a_killed_worker_goes_on_with_its_copy(place: Place) -> None:
    words = ["a", "bb", "ccc", "dddd"]
    for number, word in enumerate(words):
        set_price(place, word, number + 1)
    place.feed(words)
    expected = Counter({(word, number + 1): 1 for number, word in enumerate(words)})
    with WorkerProcess(place.folder, "first", place.properties(), application=PRICED) as first:
        with WorkerProcess(place.folder, "second", place.properties(), application=PRICED) as second:
            place.await_counted(len(words))
            assert Counter(place.counted()) == expected
            second.await_line("global stores: lag 0$")
            assert second.terminate() == 0, second.errors
        first.kill()
    set_price(place, "a", 9)
    place.feed(words)
    expected.update({("a", 9): 1, ("bb", 2): 1, ("ccc", 3): 1, ("dddd", 4): 1})
    with WorkerProcess(place.folder, "third", place.properties(), application=PRICED) as third:
        place.await_counted(2 * len(words))
        assert third.terminate() == 0, third.errors
    assert Counter(place.counted()) == expected


def test_each_worker_answers_queries_of_it(tmp_path: Path) -> None:
    embedded = EmbeddedPlace(tmp_path)
    set_price(embedded, "bb", 2)
    embedded.feed([])
    settings = {**embedded.properties(), "application.server": "0"}
    with WorkerProcess(embedded.folder, "first", settings, application=PRICED) as first:
        first.await_line(r"lag 0; global stores: lag 0$")
        with WorkerProcess(embedded.folder, "second", settings, application=PRICED) as second:
            second.await_line(r"lag 0; global stores: lag 0$")
            for worker in (first, second):
                [*_, address] = re.findall(r"queries at (\S+), ", worker.errors)
                reply = ask(address, "/stores/prices/get", key="bb")
                assert (reply.status, reply.body["value"]) == (200, "2")


def test_a_missing_topic_is_an_error_before_anything_is_made(place: Place) -> None:
    place.feed([])
    with WorkerProcess(place.folder, "w", place.properties(), application=f"{MODULE}:unpriced") as worker:
        assert worker.ended() == REFUSED
        assert "the topic 'prises' of global store 'prices' does not exist" in worker.errors
        assert "Traceback" not in worker.errors
    assert not (place.folder / "state").exists()


def ignore(record: Record, context: TaskContext) -> None:
    """Do nothing with a record."""


def test_workers_with_other_global_stores_are_of_another_kind() -> None:
    processor = Processor(["words"], ignore)
    plain, priced, other = (
        Application("shop", processor, global_stores=described)
        for described in (None, {"prices": GlobalStore("prices")}, {"prices": GlobalStore("others")})
    )
    assert len({plain.fingerprint, priced.fingerprint, other.fingerprint}) == 3
    assert Application("shop", processor, global_stores={}).fingerprint == plain.fingerprint


def test_similar_names_collide_with_those_of_a_task_and_not_between_sub_topologies() -> None:
    processors = [Processor(["words"], ignore, {"Counts": None}), Processor(["lines"], ignore, {"counts": None})]
    for described in ({}, {"prices": GlobalStore("prices")}):
        Application("shop", processors, global_stores=described)
    with pytest.raises(ConfigError, match="collide"):
        Application("shop", processors, global_stores={"COUNTS": GlobalStore("prices")})


def test_a_name_that_a_store_of_a_task_has_and_a_backend_that_does_not_fit_are_refused() -> None:
    processor = Processor(["words"], ignore, {"prices": None})
    with pytest.raises(ConfigError, match="rename one"):
        Application("shop", processor, global_stores={"prices": GlobalStore("prices")})
    app = Application("shop", Processor(["words"], ignore), global_stores={"p": GlobalStore("p")})
    properties = {"changelog.file": "log.sqlite", "state.dir": "state", "store.backend": "rocksdb-direct"}
    with pytest.raises(ConfigError, match="global store"):
        Worker(app, properties)


class Stores(GlobalStores):
    """Global stores whose ``follow`` raises the errors of a list first, and ``open`` those of another."""

    def __init__(self, folder: Path, errors: list[Exception], open_errors: Iterable[Exception] = ()) -> None:
        log = MemoryChangelog()
        log.create_topic("prices")
        super().__init__(folder, log, {"prices": GlobalStore("prices")})
        self.errors, self.followed, self.closed = errors, 0, threading.Event()
        self.open_errors = iter(open_errors)

    def open(self, *arguments: Any) -> None:
        for error in self.open_errors:
            raise error
        super().open(*arguments)

    def follow(self, *arguments: Any) -> int:
        self.followed += 1
        if self.errors:
            raise self.errors.pop()
        return super().follow(*arguments)

    def close(self) -> None:
        super().close()
        self.closed.set()


def test_a_changelog_that_does_not_answer_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_thread, "FOLLOW_S", 0.01)
    stores = Stores(tmp_path, [ChangelogTimeoutError("no answer") for _ in range(3)])
    registry = MetricsRegistry()
    thread = GlobalThread(stores, registry)
    assert thread.await_ready(DEADLINE_S)
    all_labels = [labels for values in registry.collect_all().values() for labels, _ in values]
    path = str(tmp_path / "global" / "rocksdb" / "prices")
    assert {"store": "prices", "backend": "rocksdb-indexed-batch", "path": path} in all_labels
    await_true(lambda: stores.followed > 5)
    assert thread.failure is None
    thread.stop()
    assert thread.join(DEADLINE_S)


def test_an_unreachable_changelog_at_opening_is_logged_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stream_thread, "FOLLOW_S", 0.01)
    thread = GlobalThread(Stores(tmp_path, [], [ChangelogTimeoutError("no answer") for _ in range(3)]))
    assert thread.await_ready(DEADLINE_S)
    assert thread.failure is None
    assert [record.getMessage().count("no answer") for record in caplog.records] == [1]
    thread.stop()
    assert thread.join(DEADLINE_S)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_is_stopped_while_the_changelog_does_not_answer_ends(tmp_path: Path) -> None:
    stores = Stores(tmp_path, [], itertools.repeat(ChangelogTimeoutError("no answer")))
    thread = GlobalThread(stores)
    assert not thread.await_ready(0.05)
    thread.stop()
    assert thread.join(DEADLINE_S)
    assert thread.failure is None


def test_a_record_that_a_store_cannot_have_ends_the_worker_after_its_tasks_have_committed(tmp_path: Path) -> None:
    """LMDB's keys have an upper bound. A record without a key is left out."""
    embedded = EmbeddedPlace(tmp_path)
    set_price(embedded, "a", 1)
    embedded.feed(["a"])
    settings = {**embedded.properties(), "commit.interval.ms": "100000", "store.backend": "lmdb"}
    with WorkerProcess(tmp_path, "w", settings, application=PRICED) as worker:
        worker.await_line(r"4 tasks, [\d,]+ records/s, lag 0; global stores: lag 0$")
        set_price(embedded, "", 1)
        set_price(embedded, "b" * 4000, 1)
        assert worker.ended() == FAILED
        assert "can't have the record at offset" in worker.errors
        assert "4000" in worker.errors
        assert "Traceback" not in worker.errors
    assert embedded.counted() == [("a", 1)]


def test_records_that_the_store_cannot_have_are_dead_letters_once_however_many_workers_read_them(place: Place) -> None:
    """LMDB's keys have an upper bound, and no store has an empty one."""
    settings = {**place.properties(), "store.backend": "lmdb"}
    lettered = f"{MODULE}:lettered"
    set_price(place, "a", 1)
    set_price(place, "", 2)
    place.feed(["a"])

    def letters() -> list[bytes | None]:
        with place.open() as log:
            return [record.key for record in log.read(TopicPartition("dead", 0))]

    with WorkerProcess(place.folder, "first", settings, application=lettered) as first:
        first.await_line(r"global stores: lag 0$")
        other = {**settings, "state.dir": str(place.folder / "other")}
        with WorkerProcess(place.folder, "second", other, application=lettered) as second:
            second.await_line(r"global stores: lag 0$")
            assert letters() == [b""]
            set_price(place, "b" * 4_000, 3)
            set_price(place, "", 4)
            await_true(lambda: len(letters()) == 3)
            first.kill()
            set_price(place, "c", 5)
            place.feed(["c"])
            place.await_counted(2)
            assert second.terminate() == 0, second.errors
    third = {**settings, "state.dir": str(place.folder / "third")}
    with WorkerProcess(place.folder, "third", third, application=lettered) as worker:
        worker.await_line(r"global stores: lag 0$")
        assert worker.terminate() == 0, worker.errors
    assert sorted(letters(), key=lambda key: len(key or b"")) == [b"", b"", b"b" * 4_000]
    assert place.counted()[0] == ("a", 1)


def test_after_an_error_the_stores_are_open_until_the_tasks_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_thread, "FOLLOW_S", 0.01)
    error = ChangelogError("the next record is gone")
    stores = Stores(tmp_path, [error])
    thread = GlobalThread(stores)
    await_true(lambda: thread.failure is error)
    assert stores.view("prices").get(b"a") is None
    thread.stop()
    assert thread.join(DEADLINE_S)
    assert thread.failure is error
    assert stores.closed.is_set()


def test_a_worker_that_is_stopped_while_a_store_is_read_ends(tmp_path: Path) -> None:
    stores = Stores(tmp_path, [])
    with stores._changelog.producer() as producer:
        producer.send(TopicPartition("prices", 0), b"a", b"1")
        producer.flush()
    progressed = threading.Event()

    class Slow(GlobalThread):
        def _progress(self, left: int) -> None:
            progressed.set()
            self._stopping.wait(DEADLINE_S)
            super()._progress(left)

    thread = Slow(stores)
    assert progressed.wait(DEADLINE_S)
    assert not thread.await_ready(0)
    assert thread.lag is None
    thread.stop()
    assert thread.join(DEADLINE_S)
    assert thread.lag == 1
    assert thread.failure is None


def test_an_error_of_the_close_is_the_failure_of_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the worker would end as if all was well."""
    thread = GlobalThread(Stores(tmp_path, []))
    assert thread.await_ready(DEADLINE_S)
    error = StoreUnavailableError("the disk is full")
    closing = GlobalCopy.close

    def close(copy: GlobalCopy) -> None:
        closing(copy)
        raise error

    monkeypatch.setattr(GlobalCopy, "close", close)
    thread.stop()
    assert thread.join(DEADLINE_S)
    assert thread.failure is error


def test_the_status_of_a_worker_says_whether_its_tasks_may_read_them(tmp_path: Path) -> None:
    worker = Worker(counting_app.priced, {"changelog.file": str(tmp_path / "log"), "state.dir": str(tmp_path)})
    worker._global = thread = GlobalThread(Stores(tmp_path, [], itertools.repeat(ChangelogTimeoutError("no answer"))))
    assert not worker.status().global_ready
    thread.stop()
    assert thread.join(DEADLINE_S)
    assert worker.status().global_ready


def test_no_task_begins_before_the_global_stores_have_been_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = EmbeddedPlace(tmp_path)
    set_price(place, "bb", 2)
    place.feed(["bb"])
    has_joined, early = threading.Event(), threading.Event()
    join, open_stores = SqliteChangelog.join_group, GlobalStores.open

    def noted_join(*arguments: Any, **named: Any) -> Any:
        has_joined.set()
        return join(*arguments, **named)

    def slow_open(*arguments: Any, **named: Any) -> Any:
        if has_joined.wait(4 * _POLL_S):
            early.set()
        return open_stores(*arguments, **named)

    monkeypatch.setattr(SqliteChangelog, "join_group", noted_join)
    monkeypatch.setattr(GlobalStores, "open", slow_open)
    settings = {"state.dir": str(tmp_path / "state"), "status.interval.ms": "0"}
    worker = Worker(counting_app.priced, {**place.properties(), **settings})
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        assert has_joined.wait(DEADLINE_S)
        assert not early.is_set()
        await_counted(place, 1)
    finally:
        worker.stop()
        thread.join(DEADLINE_S)
    assert place.counted() == [("bb", 2)]


def test_a_worker_takes_snapshots_of_its_global_stores(tmp_path: Path) -> None:
    place = EmbeddedPlace(tmp_path)
    set_price(place, "bb", 2)
    snapshots = {"snapshot.dir": str(tmp_path / "snapshots"), "snapshot.interval.ms": "0"}
    given = {**place.properties(), **snapshots, "state.dir": str(tmp_path / "state"), "status.interval.ms": "0"}
    worker = Worker(counting_app.priced, given)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        await_true(lambda: list(tmp_path.glob("snapshots/prices-global/index/*.json")))
    finally:
        worker.stop()
        thread.join(DEADLINE_S)
