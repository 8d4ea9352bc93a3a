"""Kafka's property names set up the tasks of an application."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stores.changelog import MemoryChangelog
from stores.config import StoreConfig
from stores.errors import ConfigError
from stores.interface import IsolationLevel, ProcessingGuarantee
from stores.registry import backend_named, backends
from stores.snapshots import Snapshots
from stores.tasks import TaskConfig
from stores.tests.changelog.files import object_store
from stores.tests.tasks.setup import AT_LEAST_ONCE, DIRECT, EXACTLY_ONCE, INDEXED, INPUT, MEMORY, TASK, count, feed

NEEDED = {"application.id": "app", "state.dir": "state"}


def test_every_property_of_a_task_is_taken_under_kafka_s_name() -> None:
    config = TaskConfig.from_properties(
        {
            **NEEDED,
            "commit.interval.ms": "250",
            "task.timeout.ms": "1500",
            "state.cleanup.delay.ms": 60_000,
            "processing.guarantee": "at_least_once",
            "num.standby.replicas": 0,
            "num.stream.threads": "1",
            "statestore.uncommitted.max.bytes": 1_000,
            "default.state.isolation.level": "read_committed",
            "store.backend": MEMORY,
        }
    )
    assert (config.application_id, config.state_dir) == ("app", Path("state/app"))
    assert (config.commit_interval_ms, config.task_timeout_s, config.state_cleanup_delay_s) == (250, 1.5, 60.0)
    assert config.guarantee is AT_LEAST_ONCE
    assert config.store == StoreConfig(
        MEMORY,
        isolation_level=IsolationLevel.READ_COMMITTED,
        uncommitted_max_bytes=1_000,
        processing_guarantee=AT_LEAST_ONCE,
    )


def test_what_is_not_given_is_kafka_s_default_but_for_the_guarantee() -> None:
    config = TaskConfig.from_properties(NEEDED)
    assert config == TaskConfig("app", Path("state/app"))
    assert (config.guarantee, config.commit_interval_ms) == (EXACTLY_ONCE, None)
    assert (config.task_timeout_s, config.state_cleanup_delay_s) == (300.0, 600.0)


@pytest.mark.parametrize(
    "properties",
    [
        {"application.id": "app"},
        {"state.dir": "state"},
        {**NEEDED, "num.standby.replicas": 1},
        {**NEEDED, "num.standby.replicas": "many"},
        {**NEEDED, "num.stream.threads": 4},
        {**NEEDED, "bootstrap.servers": "localhost:9092"},
        {**NEEDED, "commit.interval.ms": "soon"},
        {**NEEDED, "commit.interval.ms": -5},
        {**NEEDED, "task.timeout.ms": -1},
        {**NEEDED, "state.cleanup.delay.ms": -1},
        {**NEEDED, "application.id": "../app"},
        {**NEEDED, "enable.transactional.statestores": True, "store.backend": DIRECT},
        {**NEEDED, "enable.transactional.statestores": False, "store.backend": INDEXED},
        {**NEEDED, "store.option.block_cache_size_bites": 1},
    ],
)
def test_what_can_t_be_kept_is_refused(properties: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TaskConfig.from_properties(properties)


@pytest.mark.parametrize(
    ("mistyped", "meant"),
    [
        ("commit.intervall.ms", "commit.interval.ms"),
        ("task.timeouts.ms", "task.timeout.ms"),
        ("statestore.uncommited.max.bytes", "statestore.uncommitted.max.bytes"),
    ],
)
def test_an_unknown_property_is_reported_with_the_nearest_one(mistyped: str, meant: str) -> None:
    with pytest.raises(ConfigError) as error:
        TaskConfig.from_properties({**NEEDED, mistyped: 1})
    assert repr(meant) in str(error.value)


def test_one_switch_decides_for_all_stores_whether_uncommitted_writes_are_kept_apart() -> None:
    """Source: KIP-892, "Rejected Alternatives": not per store."""
    for switch in (True, False):
        config = TaskConfig.from_properties({**NEEDED, "enable.transactional.statestores": switch})
        configs = config.stores(["a", "b"])
        assert [backend_named(store.backend).transactional for store in configs.values()] == [switch, switch]
        for name, backend in backends().items():
            if backend.transactional is switch:
                assert config.stores({"own": StoreConfig(name)})["own"].backend == name
            else:
                with pytest.raises(ConfigError):
                    config.stores({"a": config.store, "own": StoreConfig(name)})


def test_properties_of_snapshots_make_one_setting(tmp_path: Path) -> None:
    assert TaskConfig.from_properties(NEEDED).snapshots is None
    properties: dict[str, Any] = {"snapshot.dir": str(tmp_path), "snapshot.interval.ms": "5000", "snapshot.keep": 3}
    properties |= NEEDED
    assert TaskConfig.from_properties(properties).snapshots == Snapshots(str(tmp_path), interval_ms=5_000, keep=3)
    properties |= {"snapshot.cpu.share": "0.25"}
    assert TaskConfig.from_properties(properties).snapshots == Snapshots(
        str(tmp_path), interval_ms=5_000, keep=3, cpu_share=0.25
    )
    assert TaskConfig.from_properties({**NEEDED, "snapshot.dir": "x"}).snapshots == Snapshots("x")
    put = f"{object_store.__name__}:put_if_absent"
    config = TaskConfig.from_properties({**NEEDED, "snapshot.dir": str(tmp_path), "snapshot.put.if.absent": put})
    assert config.snapshots == Snapshots(str(tmp_path), object_store.put_if_absent)


@pytest.mark.parametrize(
    "properties",
    [
        {"snapshot.keep": 2},
        {"snapshot.dir": ""},
        {"snapshot.dir": "x", "snapshot.keep": 0},
        {"snapshot.dir": "x", "snapshot.interval.ms": -1},
        *({"snapshot.dir": "x", "snapshot.cpu.share": share} for share in ("0", "-1", "nan", "inf", "much")),
        {"snapshot.dir": "x", "snapshot.interval.ms": "soon"},
        {"snapshot.dir": "unknown://host/x"},
        {"snapshot.put.if.absent": "os.path:join"},
        *({"snapshot.dir": "x", "snapshot.put.if.absent": name} for name in ("os", ":x", "os:none", "missing_one:x")),
    ],
)
def test_properties_of_snapshots_that_do_not_fit_are_refused(properties: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TaskConfig.from_properties({**NEEDED, **properties})


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"application_id": "../app"}, ConfigError),
        ({"application_id": 5}, TypeError),
        ({"guarantee": None}, ConfigError),
        ({"guarantee": "twice"}, ConfigError),
        ({"state_cleanup_delay_s": -1}, ConfigError),
        ({"state_cleanup_delay_s": float("nan")}, ConfigError),
        ({"state_cleanup_delay_s": float("inf")}, ConfigError),
        ({"state_cleanup_delay_s": "600"}, TypeError),
        ({"state_cleanup_delay_s": True}, TypeError),
    ],
)
def test_what_does_not_fit_is_refused_when_a_configuration_is_made(
    settings: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        TaskConfig(**{"application_id": "app", "state_dir": Path("state"), **settings})


@pytest.mark.parametrize(
    ("guarantee", "level"),
    [(EXACTLY_ONCE, IsolationLevel.READ_COMMITTED), (AT_LEAST_ONCE, IsolationLevel.READ_UNCOMMITTED)],
)
def test_readers_of_every_store_follow_the_guarantee_of_the_configuration(
    guarantee: ProcessingGuarantee, level: IsolationLevel
) -> None:
    """The task's guarantee applies, also if the store's configuration names another one."""
    config = TaskConfig("app", Path("state"), guarantee=guarantee)
    own = StoreConfig(MEMORY, processing_guarantee=next(each for each in ProcessingGuarantee if each is not guarantee))
    configs = {**config.stores(["common"]), **config.stores({"own": own})}
    assert {name: store.readers_level for name, store in configs.items()} == {"common": level, "own": level}


def test_a_task_is_made_from_a_configuration(tmp_path: Path, log: MemoryChangelog) -> None:
    feed(log, [1, 1])
    config = TaskConfig.from_properties(
        {"application.id": "app", "state.dir": str(tmp_path), "processing.guarantee": "at_least_once"}
    )
    task = config.task(
        TASK, changelog=log, stores=["left", "right"], process=count, inputs=[INPUT], commit_every_records=1
    )
    task.open()
    task.run()
    assert (task.guarantee, task.metrics.commit_total) == (AT_LEAST_ONCE, 2)
    task.close()
    assert (tmp_path / "app" / "0_0" / "rocksdb" / "left").is_dir()
    assert config.clean() == []
    assert TaskConfig("app", tmp_path / "app", state_cleanup_delay_s=0).clean() == [TASK]


def test_settings_of_one_task_replace_those_of_the_configuration(tmp_path: Path, log: MemoryChangelog) -> None:
    config = TaskConfig("app", tmp_path / "common", store=StoreConfig(MEMORY))
    own: dict[str, Any] = {"state_dir": tmp_path / "own", "application_id": "other", "store": StoreConfig(INDEXED)}
    with config.task(TASK, changelog=log, stores=["counts"], process=count, inputs=[INPUT], **own) as task:
        assert task.application_id == "other"
    assert (tmp_path / "own" / "0_0" / "rocksdb" / "counts").is_dir()
    assert not (tmp_path / "common").exists()
    with pytest.raises(ConfigError, match="statestores=false"):
        config.task(TASK, changelog=log, stores=["counts"], process=count, inputs=[INPUT], transactional=False)
