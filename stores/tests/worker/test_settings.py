"""The properties of a worker, and the definitions of applications: mistakes are refused before anything is done."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import MemoryChangelog
from stores.config import StoreConfig
from stores.errors import ConfigError, StoreUnavailableError
from stores.interface import ProcessingGuarantee
from stores.records import INT64, STR, KeyValue
from stores.tests.worker.counting_app import app, count
from stores.worker import Application, Processor, Worker
from stores.worker.foreign_names import STREAMS_ANSWERS
from stores.worker.settings import WorkerSettings, read_properties
from stores.worker.transaction_scope import TransactionScope, transaction_timeout_s

EMBEDDED = {"changelog.file": "log.sqlite", "state.dir": "state"}
KAFKA = {"bootstrap.servers": "127.0.0.1:9", "state.dir": "state"}


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({**EMBEDDED, "num.stream.thread": "2"}, "num.stream.threads"),
        ({**EMBEDDED, "commit.intervall.ms": "2"}, "commit.interval.ms"),
        ({**EMBEDDED, "sasl.mechanism": "PLAIN"}, "bootstrap.servers"),
        ({**KAFKA, "num.stream.thread": "2"}, "num.stream.threads"),
        ({**KAFKA, "session.timout.ms": "2"}, "session.timeout.ms"),
        ({"state.dir": "state"}, "changelog.file"),
        ({"state.dir": "", "changelog.file": "log.sqlite"}, "path"),
        ({"state.dir": None, "changelog.file": "log.sqlite"}, "state.dir"),
        ({"state.dir": "state", "changelog.file": None}, "changelog.file"),
        ({"state.dir": "state", "bootstrap.servers": None}, "bootstrap.servers"),
        ({**EMBEDDED, **KAFKA}, "changelog.file"),
        ({"changelog.file": "log.sqlite"}, "state.dir"),
        ({**EMBEDDED, "application.id": "other"}, "counting"),
        ({**EMBEDDED, "num.stream.threads": "0"}, "num.stream.threads"),
        ({**EMBEDDED, "status.interval.ms": "-1"}, "status.interval.ms"),
        ({**EMBEDDED, "status.interval.ms": "9" * 20}, "status.interval.ms"),
        ({**EMBEDDED, "session.timeout.ms": str(2**31)}, "session.timeout.ms"),
        ({**EMBEDDED, "num.standby.replicas": "-1"}, "num.standby.replicas"),
        ({**EMBEDDED, "num.standby.replicas": "many"}, "num.standby.replicas"),
        ({**EMBEDDED, "num.standby.replica": "1"}, "num.standby.replicas"),
        ({**EMBEDDED, "transaction.scope": "worker"}, "transaction.scope"),
        ({**EMBEDDED, "transaction.scope": "thread", "processing.guarantee": "at_least_once"}, "transaction.scope"),
        ({**EMBEDDED, "group.instance.id": "one"}, "bootstrap.servers"),
        ({**KAFKA, "group.instance.id": ""}, "group.instance.id"),
    ],
)
def test_a_property_that_is_unknown_or_does_not_fit_is_refused_by_name(properties: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Worker(app, properties)


@pytest.mark.parametrize(
    ("name", "value", "values"),
    [
        ("num.stream.threads", "0", "a whole number from 1"),
        ("commit.interval.ms", "1.5", "a whole number from 0, or -1 for none (ms)"),
        ("changelog.coalescing", "yes", "true or false"),
        ("session.timeout.ms", "45s", "a whole number from 0 to 2147483647 (ms)"),
        ("transaction.scope", "worker", "one of task, thread"),
        ("store.option.checksums", "1", "true or false"),
        ("store.option.map_size_bytes", "1 GiB", "a whole number (bytes)"),
    ],
)
def test_the_error_of_a_value_says_what_the_property_takes(name: str, value: str, values: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*{re.escape(f'give {values}')}$"):
        Worker(app, {**EMBEDDED, "store.backend": "lmdb", name: value})


@pytest.mark.parametrize("changelog", [EMBEDDED, KAFKA])
@pytest.mark.parametrize("name", [*STREAMS_ANSWERS, "consumer.fetch.max.bytes", "main.consumer.max.poll.records"])
def test_a_property_of_kafka_streams_without_counterpart_gets_an_answer(changelog: dict[str, str], name: str) -> None:
    with pytest.raises(ConfigError, match=name) as error:
        Worker(app, {**changelog, name: "0"})
    assert "did you mean" not in str(error.value)


def test_names_that_are_not_ours_are_settings_of_the_kafka_client() -> None:
    properties = {**KAFKA, "sasl.mechanism": "PLAIN", "statistics.interval.ms": "0", "enable.random.seed": "true"}
    settings = WorkerSettings.from_properties(
        app,
        {
            **properties,
            "num.stream.threads": "3",
            "num.standby.replicas": "2",
            "store.backend": "lmdb",
            "processing.guarantee": "at_least_once",
        },
    )
    assert settings.client == {name: value for name, value in properties.items() if name != "state.dir"}
    assert settings.threads == 3
    assert settings.standby_replicas == 2
    assert settings.tasks.guarantee is ProcessingGuarantee.AT_LEAST_ONCE


def test_secrets_of_the_kafka_client_are_not_shown() -> None:
    secrets = {"sasl.password": "correct-horse", "ssl.key.password": "battery"}
    settings = WorkerSettings.from_properties(app, {**KAFKA, **secrets})
    assert settings.client == {"bootstrap.servers": KAFKA["bootstrap.servers"], **secrets}
    assert not any(secret in repr(settings) for secret in secrets.values())


def test_a_worker_has_no_standby_copies_by_default() -> None:
    assert WorkerSettings.from_properties(app, EMBEDDED).standby_replicas == 0


@pytest.mark.parametrize(("backend", "numbers"), [("lmdb", {0}), ("memory", set())])
def test_sub_topologies_with_files_are_those_that_may_have_copies(backend: str, numbers: set[int]) -> None:
    several = Application("several", [Processor(["a"], count, {"s": None}), Processor(["b"], count)])
    settings = WorkerSettings.from_properties(several, {**EMBEDDED, "store.backend": backend})
    assert settings.persistent_subtopologies(several) == numbers


@pytest.mark.parametrize(
    ("given", "timeout_s"),
    [
        ({}, 10.1),
        ({"commit.interval.ms": "30000"}, 40.0),
        ({"commit.interval.ms": "3600000"}, 900.0),
        ({"commit.interval.ms": "-1"}, 900.0),
    ],
)
def test_a_transaction_of_a_thread_may_be_open_longer_than_a_commit_interval(
    given: dict[str, str], timeout_s: float
) -> None:
    """Else the brokers would abort each one. They allow a quarter of an hour."""
    settings = WorkerSettings.from_properties(app, {**KAFKA, "transaction.scope": "thread", **given})
    assert settings.scope is TransactionScope.THREAD
    assert transaction_timeout_s(settings.tasks) == pytest.approx(timeout_s)


def test_each_thread_of_each_worker_has_a_transactional_id_of_its_own() -> None:
    """Equal ones would fence each other."""
    tasks = WorkerSettings.from_properties(app, {**KAFKA, "transaction.scope": "thread"}).tasks
    both = [("one", 1), ("one", 2), ("two", 1), ("two", 2)]
    names = {repr(TransactionScope.THREAD.transaction(MemoryChangelog(), tasks, *each)) for each in both}
    assert len(names) == len(both)
    assert TransactionScope.TASK.transaction(MemoryChangelog(), tasks, "one", 1) is None


def test_properties_fill_the_settings_that_the_application_does_not_set() -> None:
    settings = WorkerSettings.from_properties(app, {**EMBEDDED, "store.backend": "lmdb"})
    kind, own = KeyValue(key=STR, value=INT64), StoreConfig("sqlite")
    stores = settings.stores({"bytes": None, "typed": kind, "own": own})
    assert [config.backend for config in stores.values()] == ["lmdb", "lmdb", "sqlite"]
    assert stores["typed"].records == kind


@pytest.mark.parametrize(
    "make",
    [
        lambda: Application("a", []),
        lambda: Application("a/b", Processor(["t"], count)),
        lambda: Application("a", Processor([], count)),
        lambda: Application("a", [Processor(["t", "u"], count), Processor(["u"], count)]),
        lambda: Application("a", Processor(["t"], count), topics={"t": 0}),
        lambda: Application("a", [Processor(["t"], count, {"s": None}), Processor(["u"], count, {"s": None})]),
    ],
)
def test_an_application_that_can_not_work_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Application("a", "topology"),  # type: ignore[arg-type]
        lambda: Application("a", [count]),  # type: ignore[list-item]
        lambda: Processor("topic", count),
        lambda: Processor(["t"], "count"),  # type: ignore[call-overload]
        lambda: Processor(["t"], count, [3]),  # type: ignore[list-item]
        lambda: Processor(["t"], count, "s"),
        lambda: Processor(["t"], count, {"s": 3}),
        lambda: Worker("app", EMBEDDED),  # type: ignore[arg-type]
        lambda: Worker(app, [("state.dir", "state")]),  # type: ignore[arg-type]
        lambda: Worker(app, {**EMBEDDED, 5: "x"}),  # type: ignore[dict-item]
    ],
)
def test_wrong_types_are_refused(make: Any) -> None:
    with pytest.raises(TypeError):
        make()


def test_workers_of_one_group_have_the_same_inputs_and_stores() -> None:
    same = Application("counting", {0: Processor(["words"], print, {"counts": StoreConfig("lmdb")})})
    other = Application("counting", Processor(["words"], count, {"totals": None}))
    assert same.fingerprint == app.fingerprint != other.fingerprint


def test_a_file_of_properties_is_read(tmp_path: Path) -> None:
    file = tmp_path / "worker.properties"
    file.write_text("# comment\n\n a.b = c=d \nempty=\n", encoding="utf-8")
    assert read_properties(file) == {"a.b": "c=d", "empty": ""}


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    file = tmp_path / "worker.properties"
    file.write_text("a=1\nb=2\n", encoding="utf-8-sig")
    assert read_properties(file) == {"a": "1", "b": "2"}


@pytest.mark.parametrize("content", [b"word\n", b"=value\n", b"a=1\na=2\n", b"\xff=1\n"])
def test_a_file_that_has_no_properties_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "worker.properties"
    file.write_bytes(content)
    with pytest.raises(ConfigError):
        read_properties(file)
    with pytest.raises(StoreUnavailableError):
        read_properties(tmp_path)


def test_a_file_of_properties_that_is_not_there_is_named_as_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no file of properties .*nope\.properties"):
        read_properties(tmp_path / "nope.properties")


def test_a_processor_can_not_be_changed_after_it_was_checked() -> None:
    with pytest.raises(AttributeError):
        Processor(["lines"], count).inputs = ["../lines"]  # type: ignore[misc]
