"""The changelog of a versioned store over brokers, which compact it by the times of its records and their clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.testing.broker import Broker
from stores.tests.kafka.fresh import remove_all
from stores.tests.kafka.shared_broker import FOLDER, skip_without_kafka
from stores.tests.kafka.test_expired_windows import EAGER, IN_2019_MS, SMALL
from stores.tests.tasks.setup import MEMORY
from stores.tests.tasks.stores.test_versions import RETENTION, asked, feed, inputs, model_of, task_of
from stores.tests.tasks.typed import STORE

pytestmark = pytest.mark.kafka
LAG = "min.compaction.lag.ms"
DAY_MS = 86_400_000
COMPACTED = {**SMALL, "min.cleanable.dirty.ratio": "0.01"}


@pytest.fixture(scope="module")
def eager() -> Iterator[Broker]:
    skip_without_kafka()
    with TemporaryDirectory(prefix="kafka-") as data, Broker(Path(data), FOLDER, settings=EAGER) as broker:
        yield broker


def compact(log: KafkaChangelog, time_ms: int) -> None:
    """Let the broker compact the changelog: a segment is compacted once a later one has begun."""
    number, deadline = len(list(log.read(STORE))), time.monotonic() + 300
    # Markers of commits have the time of the broker, so that the lag would protect what is before them.
    log._cluster.alter_topic(STORE.topic, {LAG: "0"})
    while True:
        assert time.monotonic() < deadline
        with log.producer() as producer:
            producer.send(STORE, b"later", b"v", time_ms)
            producer.flush()
        if len(list(log.read(STORE))) <= number // 2:
            return
        time.sleep(0.5)


@pytest.mark.parametrize("lag", [None, str(100 * 365 * DAY_MS)])
def test_compaction_leaves_latest_versions_and_with_a_lag_the_history(
    tmp_path: Path, eager: Broker, lag: str | None
) -> None:
    puts = [(key, value, IN_2019_MS + time_ms) for key, value, time_ms in inputs(1, 200)]
    model = model_of(puts)
    given = COMPACTED if lag is None else {**COMPACTED, LAG: lag}
    remove_all(eager)
    with KafkaChangelog({"bootstrap.servers": eager.address}, topic_settings=given) as log:
        log._create("input", 1, {"retention.ms": "-1"})
        feed(log, puts)
        with closing(task_of(tmp_path, log, MEMORY)) as task:
            task.open()
            task.run(commit=True)
            assert asked(task, model) == []
        settings = log._cluster.topic_settings(STORE.topic)
        assert (settings["cleanup.policy"], settings[LAG]) == ("compact", lag or str(RETENTION + DAY_MS))
        if lag is None:
            model.put(b"later", b"v", model.stream_time)
            compact(log, model.stream_time)
        with closing(task_of(tmp_path / "elsewhere", log, MEMORY)) as task:
            task.open()
            assert list(task.store("s").all()) == model.latest()
            assert (asked(task, model) == []) == (lag is not None)


def test_a_topic_of_versions_with_a_short_lag_gets_the_one_that_its_history_needs(
    tmp_path: Path, eager: Broker
) -> None:
    remove_all(eager)
    with KafkaChangelog({"bootstrap.servers": eager.address}) as log:
        log._create("input", 1, {})
        log._create(STORE.topic, 1, {"cleanup.policy": "compact", LAG: "5"})
        with closing(task_of(tmp_path, log, MEMORY)) as task:
            task.open()
        assert log._cluster.topic_settings(STORE.topic)[LAG] == str(RETENTION + DAY_MS)
