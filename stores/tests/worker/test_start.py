"""A worker whose changelog does not answer at first says so, asks again for ``task.timeout.ms``, and can be ended."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from stores.changelog import SqliteChangelog
from stores.changelog.interface import Changelog
from stores.changelog.kafka.testing.broker import Broker
from stores.errors import ChangelogTimeoutError, ConfigError
from stores.tests.kafka.shared_broker import FOLDER, skip_without_kafka
from stores.tests.worker.counting_app import app
from stores.tests.worker.places import KafkaPlace, expected_counts
from stores.tests.worker.worker_process import IDLE, WorkerProcess
from stores.tests.worker.worker_thread import await_true
from stores.worker import Application, start
from stores.worker.start import StoppedError, open_prepared

WORDS = ["to", "be", "or", "not", "to", "be"]
LONG_S = 3600.0


class Away:
    """A changelog that answers after some attempts, each of which fails."""

    def __init__(self, file: Path, attempts: int, on_attempt: Callable[[], None] = lambda: None) -> None:
        self._file, self.attempts, self._on_attempt = file, attempts, on_attempt

    def open(self, check_stopped: Callable[[], None]) -> Changelog:
        self.attempts -= 1
        self._on_attempt()
        check_stopped()
        if self.attempts >= 0:
            raise ChangelogTimeoutError("no broker answers")
        return SqliteChangelog(self._file)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "_PAUSE_S", 0.0)


def begin(away: Away, timeout_s: float, application: Application = app) -> Changelog:
    stopped = threading.Event()
    changelog, leading = open_prepared(application, away.open, stopped, fencing=False, timeout_s=timeout_s)
    assert leading == {"words": 0}
    return changelog


def test_a_changelog_that_is_away_is_asked_again_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), begin(Away(tmp_path / "log", 3), LONG_S) as changelog:
        assert app.topics.keys() <= changelog.topics().keys()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no broker answers" in caplog.text


def test_after_the_time_out_the_error_names_it(tmp_path: Path) -> None:
    away = Away(tmp_path / "log", 5)
    with pytest.raises(ChangelogTimeoutError) as error:
        begin(away, 0)
    assert away.attempts == 4
    assert "task.timeout.ms" in "".join(error.value.__notes__)


def test_a_worker_that_waits_for_its_changelog_can_be_ended(tmp_path: Path) -> None:
    stopped = threading.Event()
    away = Away(tmp_path / "log", 10**9, stopped.set)
    with pytest.raises(StoppedError):
        open_prepared(app, away.open, stopped, fencing=False, timeout_s=LONG_S)


def test_a_mistake_in_the_topics_is_not_asked_again(tmp_path: Path) -> None:
    away = Away(tmp_path / "log", 0)
    with pytest.raises(ConfigError):
        begin(away, LONG_S, Application("other", app.processors))
    assert away.attempts == -1


@pytest.mark.kafka
def test_a_worker_begins_when_its_broker_does_and_reports_each_loss_of_it(tmp_path: Path) -> None:
    skip_without_kafka()
    with Broker(tmp_path / "data", FOLDER) as broker:
        place = KafkaPlace(tmp_path, broker.address)
        broker.kill()
        with WorkerProcess(tmp_path, "w", place.properties()) as worker:
            worker.await_text("can't be reached")
            broker.start()
            place.feed(WORDS)
            worker.await_line(f"4 {IDLE}")
            losses = worker.errors.count("can't be reached")
            broker.kill()
            await_true(lambda: worker.errors.count("can't be reached") > losses)
            broker.start()
            place.feed(WORDS)
            place.await_counted(2 * len(WORDS))
            assert worker.terminate() == 0, worker.errors
        assert Counter(place.counted()) == expected_counts(WORDS * 2)
        assert f"Kafka at {broker.address} answers" in worker.errors


@pytest.mark.kafka
def test_a_worker_that_waits_for_its_broker_ends_by_sigterm(tmp_path: Path) -> None:
    skip_without_kafka()
    properties = {"bootstrap.servers": "127.0.0.1:9"}
    with WorkerProcess(tmp_path, "w", properties) as worker:
        worker.await_text("can't be reached")
        assert worker.terminate() == 0, worker.errors
