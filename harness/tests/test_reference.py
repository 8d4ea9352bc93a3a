"""The API reference is made from the docstrings without a warning, and has every public name."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.folders import ROOT
from stores import TopicPartition, open_store
from stores.changelog import MemoryChangelog
from stores.records import (
    INT64,
    STR,
    KeyValue,
    RecordKind,
    Session,
    TimestampedKeyValue,
    TimestampedKeyValueWithHeaders,
    Versioned,
    VersionedWithHeaders,
    Window,
)
from stores.records.handles import StoreTable
from stores.spark.context import Context, PartitionState
from stores.tasks import StreamTask, TaskContext, TaskId

MODULES = (
    *("stores", "stores.changelog", "stores.changelog.files", "stores.records", "stores.records.serdes"),
    *("stores.spark", "stores.spark.sources", "stores.tasks", "stores.worker", "stores.metrics", "stores.registry"),
    *("stores.telemetry", "stores.telemetry.opentelemetry", "stores.telemetry.prometheus"),
    *("stores.engines.engine", "stores.failpoints", "stores.snapshots"),
)


Opened = Callable[[Path], AbstractContextManager[tuple[str, Any]]]
KINDS: Mapping[str, RecordKind] = {
    "key-value": KeyValue(STR, INT64),
    "timestamped": TimestampedKeyValue(STR, INT64),
    "with headers": TimestampedKeyValueWithHeaders(STR, INT64),
    "versioned": Versioned(STR, INT64, 1),
    "versioned with headers": VersionedWithHeaders(STR, INT64, 1),
    "window": Window(STR, INT64, 1, 2),
    "session": Session(STR, INT64, 2),
}


def shown_store(kind: RecordKind) -> Opened:
    @contextmanager
    def of(folder: Path) -> Iterator[tuple[str, Any]]:
        with kind.over(open_store("memory", folder / "s")) as store:
            yield "stores.records", store

    return of


def shown_view(kind: RecordKind) -> Opened:
    @contextmanager
    def of(folder: Path) -> Iterator[tuple[str, Any]]:
        with kind.over(open_store("memory", folder / "s")) as store:
            yield "stores.records", store.read_only()

    return of


@contextmanager
def shown_context(folder: Path) -> Iterator[tuple[str, Any]]:
    """The context that a task gives to its function."""
    contexts: list[TaskContext] = []
    with MemoryChangelog() as log:
        log.create_topic("input")
        inputs = [TopicPartition("input", 0)]
        with StreamTask(
            "app",
            TaskId(0, 0),
            state_dir=folder,
            changelog=log,
            stores={"s": "memory"},
            process=lambda record, context: None,
            inputs=inputs,
            init=contexts.append,
        ):
            yield "stores.tasks", contexts[0]


@contextmanager
def shown_spark_context(_: Path) -> Iterator[tuple[str, Any]]:
    yield "stores.spark", Context(0, 0, None, None, StoreTable("the query", {}, {}), PartitionState())


OBJECTS: Mapping[str, Opened] = {
    "context": shown_context,
    "context on Spark": shown_spark_context,
    **{name: shown_store(kind) for name, kind in KINDS.items()},
    **{f"view of {name}": shown_view(kind) for name, kind in KINDS.items()},
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    made = subprocess.run(
        [sys.executable, str(ROOT / "docs/reference.py"), str(folder)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return folder


@pytest.mark.parametrize("module", MODULES)
def test_the_reference_has_every_public_name_of_a_package(reference: Path, module: str) -> None:
    page = (reference / f"{module.replace('.', '/')}.html").read_text()
    named = set(re.findall(r'id="([\w.]+)"', page))
    public = set(importlib.import_module(module).__all__)
    assert public
    assert public <= named


@pytest.mark.parametrize("module", MODULES)
def test_a_page_has_no_other_names_than_those_that_its_module_offers(reference: Path, module: str) -> None:
    page = (reference / f"{module.replace('.', '/')}.html").read_text()
    named = {name for name in re.findall(r'id="(\w+)"', page) if not name.startswith("_")}
    assert named - {"search", "pdoc", "navtoggle", "togglestate"} <= set(importlib.import_module(module).__all__)


@pytest.mark.parametrize("of", [*OBJECTS.values()], ids=[*OBJECTS])
def test_an_object_has_no_public_names_that_its_page_has_not(reference: Path, tmp_path: Path, of: Opened) -> None:
    """An editor offers the attributes of the object: those of the class, and those that are set when it is made."""
    with of(tmp_path) as (module, shown):
        page = (reference / f"{module.replace('.', '/')}.html").read_text()
        named = set(re.findall(rf'id="{type(shown).__name__}\.(\w+)"', page))
        assert {name for name in dir(shown) if not name.startswith("_")} - named == set()


def test_the_reference_has_the_text_of_the_contract(reference: Path) -> None:
    page = (reference / "stores.html").read_text()
    assert "visible and persistent in one step, or change nothing" in page
