"""Declarations of stores: what each of them means in a task, a ``Processor`` and a query, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stores import TopicPartition
from stores.changelog import MemoryChangelog
from stores.config import StoreConfig
from stores.declarations import Stores, configurations
from stores.errors import ConfigError
from stores.records import INT64, STR, KeyValue
from stores.spark.arguments import configs_of
from stores.tasks import GlobalStore, GlobalStores, StreamTask, TaskConfig, TaskId
from stores.worker import Application, Processor
from stores.worker.settings import WorkerSettings

COUNTS = KeyValue(key=STR, value=INT64, name="counts")
CONFIG = StoreConfig("sqlite", durability="DISK")  # type: ignore[arg-type]
DEFAULT = StoreConfig("lmdb", restore_max_bytes=5, options={"checksums": False})


def process(record: object, context: object) -> None:
    """Do nothing."""


def task(stores: Any) -> object:
    inputs = [TopicPartition("t", 0)]
    return StreamTask(
        "app",
        TaskId(0, 0),
        state_dir=Path("s"),
        changelog=MemoryChangelog(),
        stores=stores,
        process=process,
        inputs=inputs,
    )


EVERYWHERE: dict[str, Callable[[Any], object]] = {
    "task": task,
    "task of a configuration": TaskConfig("app", Path("s")).stores,
    "processor": lambda stores: Processor(["t"], process, stores),
    "query": lambda stores: configs_of(stores, times=False),
}


@pytest.mark.parametrize(
    ("stores", "expected"),
    [
        ({"counts": COUNTS}, StoreConfig("lmdb", restore_max_bytes=5, options={"checksums": False}, records=COUNTS)),
        ({"counts": CONFIG}, CONFIG),
        ({"counts": None}, DEFAULT),
        ({"counts": "lmdb"}, DEFAULT),
        ({"counts": "memory"}, StoreConfig("memory", restore_max_bytes=5)),
        ([COUNTS], StoreConfig("lmdb", restore_max_bytes=5, options={"checksums": False}, records=COUNTS)),
        (["counts"], DEFAULT),
    ],
)
def test_a_declaration_takes_the_rest_from_the_default(stores: Stores, expected: StoreConfig) -> None:
    assert configurations(stores, DEFAULT) == {"counts": expected}


@pytest.mark.parametrize("declare", EVERYWHERE.values(), ids=EVERYWHERE.keys())
@pytest.mark.parametrize(
    "stores",
    [
        {"a": KeyValue(STR, STR), "b": StoreConfig("lmdb"), "c": "memory", "d": None},
        [COUNTS, "bytes"],
        {"counts": COUNTS},
    ],
)
def test_every_declaration_is_accepted_everywhere(declare: Callable[[Any], object], stores: Stores) -> None:
    assert declare(stores) is not None


@pytest.mark.parametrize("declare", EVERYWHERE.values(), ids=EVERYWHERE.keys())
@pytest.mark.parametrize("stores", [{"s": 3}, {"s": KeyValue}, {"s": b"lmdb"}, [3], [None], "lmdb", None, 3])
def test_what_is_no_declaration_is_refused_everywhere(declare: Callable[[Any], object], stores: Any) -> None:
    with pytest.raises(TypeError):
        declare(stores)


@pytest.mark.parametrize("declare", EVERYWHERE.values(), ids=EVERYWHERE.keys())
@pytest.mark.parametrize(
    "stores",
    [
        {"other": COUNTS},
        {"other": StoreConfig(records=COUNTS)},
        [KeyValue(STR, STR)],
        [COUNTS, COUNTS],
        [COUNTS, "counts"],
    ],
)
def test_a_store_has_one_name_everywhere(declare: Callable[[Any], object], stores: Any) -> None:
    with pytest.raises(ConfigError):
        declare(stores)


@pytest.mark.parametrize("declare", [task, TaskConfig("app", Path("s")).stores, EVERYWHERE["query"]])
def test_an_unknown_backend_is_refused(declare: Callable[[Any], object]) -> None:
    with pytest.raises(ConfigError):
        declare({"s": "rocksdb-indexed-bach"})


def test_a_global_store_is_declared_in_the_same_way(tmp_path: Path) -> None:
    assert GlobalStore("prices", COUNTS).config == StoreConfig(records=COUNTS)
    assert GlobalStore("prices", "lmdb").config == StoreConfig("lmdb")
    with pytest.raises(TypeError):
        GlobalStore("prices", 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        GlobalStores(tmp_path, MemoryChangelog(), {"prices": GlobalStore("prices", COUNTS)})


def test_a_worker_gives_declarations_its_own_properties() -> None:
    app = Application("app", Processor(["t"], process, [COUNTS]))
    properties = {"changelog.file": "log", "state.dir": "s", "store.backend": "lmdb"}
    settings = WorkerSettings.from_properties(app, properties)
    assert settings.stores(app.processors[0].stores)["counts"] == StoreConfig(
        "lmdb",
        records=COUNTS,
        processing_guarantee=settings.tasks.store.processing_guarantee,
        memory_max_bytes=settings.memory.max_bytes,
    )
