"""The registry shows each store and task once, under labels of its own, and keeps none of them alive."""

from __future__ import annotations

import gc
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

import stores
from stores import ConfigError, KeyValueStore, StoreClosedError, StoreUnavailableError, open_store
from stores.changelog import MemoryChangelog
from stores.engines.memory import MemoryEngine
from stores.metrics import MetricKind, TaskMetrics, TaskStoreMetrics, measures
from stores.strategies.store import Store
from stores.strategies.store_opening import disown
from stores.telemetry import ENGINE, INSTRUMENTS, STORE, TASK, Instrument, MetricsRegistry
from stores.tests.tasks.setup import MEMORY, counting_task, feed

DERIVED = ("commit_rate", "commit_latency_avg_seconds", "restore_rate")


def memory(name: str = "store") -> KeyValueStore:
    return open_store(MEMORY, "unused", name=name)


def instrument(scope: str, name: str) -> Instrument:
    [match] = [each for each in INSTRUMENTS if (each.scope, each.name) == (scope, name)]
    return match


def shown(registry: MetricsRegistry, name: str, scope: str = STORE) -> list[tuple[dict[str, str], Any]]:
    one = instrument(scope, name)
    samples: list[tuple[dict[str, str], Any]] = [(dict(labels), value) for labels, value in registry.collect(one)]
    assert [(dict(labels), value) for labels, value in registry.collect_all()[one]] == samples
    return samples


def test_every_measure_of_stores_and_tasks_is_an_instrument() -> None:
    names = [(each.scope, each.name) for each in INSTRUMENTS]
    assert len(set(names)) == len(names)
    assert {name for scope, name in names if scope == TASK} == {*measures(TaskMetrics), *DERIVED}
    assert {name for scope, name in names if scope == STORE} == {*measures(TaskStoreMetrics), *DERIVED, "engine"}
    for each in INSTRUMENTS:
        assert each.name.endswith("_total") is (each.measure.kind is MetricKind.TOTAL)


def test_a_store_is_shown_under_its_name_and_backend_and_labels_given_to_it() -> None:
    registry = MetricsRegistry()
    with memory() as store, memory("other") as other:
        registry.add(store, {"shop": "north"})
        registry.add(other)
        store.put(b"a", b"1")
        assert shown(registry, "uncommitted_bytes") == [
            ({"store": "store", "backend": MEMORY, "shop": "north"}, 2),
            ({"store": "other", "backend": MEMORY}, 0),
        ]
        assert shown(registry, "oldest_iterator_open_since_seconds") == []
        assert shown(registry, "replay_total") == []
        assert shown(registry, "commit_total", TASK) == []


def test_a_task_is_shown_with_its_stores(tmp_path: Path, log: MemoryChangelog) -> None:
    feed(log, range(3))
    registry = MetricsRegistry()
    task = counting_task(tmp_path, log, MEMORY)
    registry.add(task)
    of_task = {"application": "app", "task": "0_0"}
    assert shown(registry, "process_total", TASK) == [(of_task, 0)]
    assert shown(registry, "commit_total") == []
    task.open()
    task.run()
    task.commit()
    assert shown(registry, "process_total", TASK) == [(of_task, 3)]
    assert shown(registry, "early_commit_total", TASK) == [
        ({**of_task, "cause": cause}, 0) for cause in ("REQUESTED", "EXCEEDED", "PREDICTED", "REPLAY")
    ]
    stores = [{**of_task, "store": name, "backend": MEMORY} for name in ("left", "right")]
    assert shown(registry, "commit_total") == [(labels, 1) for labels in stores]
    assert shown(registry, "replay_total") == [(labels, 0) for labels in stores]
    assert shown(registry, ENGINE.name) == [({**labels, "figure": "num_keys"}, 3) for labels in stores]
    task.close()
    assert shown(registry, "commit_total") == [(labels, 1) for labels in stores]
    assert shown(registry, ENGINE.name) == []


def test_the_engines_figures_can_be_left_out() -> None:
    with memory() as store:
        for engines, expected in ((True, 1), (False, 0)):
            registry = MetricsRegistry(engines=engines)
            registry.add(store)
            assert len(shown(registry, ENGINE.name)) == expected
            assert len(shown(registry, "commit_total")) == 1


def test_an_engines_figures_are_read_only_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    readings: list[int] = []

    def figures() -> Mapping[str, int]:
        readings.append(1)
        return {"num_keys": 1}

    registry = MetricsRegistry()
    with memory() as store:
        monkeypatch.setattr(store, "engine_metrics", figures)
        registry.add(store)
        store.commit()
        assert store.metrics.commit_total == 1
        list(registry.collect(instrument(STORE, "commit_total")))
        assert readings == []
        list(registry.collect(ENGINE))
        assert readings == [1]


def test_an_engine_that_can_not_tell_hides_nothing_else(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> Mapping[str, int]:
        raise StoreUnavailableError

    registry = MetricsRegistry()
    task = counting_task(tmp_path, log, MEMORY)
    task.open()
    registry.add(task)
    with memory() as store:
        registry.add(store)
        monkeypatch.setattr(MemoryEngine, "metrics", fail)
        assert shown(registry, ENGINE.name) == []
        assert len(shown(registry, "commit_total")) == 3
        assert task.engine_metrics() == {}
    task.close()


def test_a_store_of_the_parent_is_not_shown_in_the_child_of_a_fork() -> None:
    """Disowned as a fork's child would have it, without a fork: another thread of the test may hold a lock."""
    registry = MetricsRegistry()
    with memory() as store, memory("lost") as other:
        registry.add(store)
        registry.add(other)
        assert isinstance(other, Store)
        disown(other)
        with pytest.raises(StoreClosedError):
            _ = other.metrics
        assert shown(registry, "commit_total") == [({"store": "store", "backend": MEMORY}, 0)]


def test_a_task_whose_stores_are_the_parents_is_not_shown_in_the_child_of_a_fork(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    registry = MetricsRegistry()
    task = counting_task(tmp_path, log, MEMORY)
    task.open()
    registry.add(task)
    for store in task._stores._stores:
        assert isinstance(store.store, Store)
        disown(store.store)
    assert shown(registry, "commit_total", TASK) == []


def test_two_stores_that_look_alike_are_refused_until_labels_tell_them_apart() -> None:
    registry = MetricsRegistry()
    with memory() as first, memory() as second:
        registry.add(first)
        registry.add(first)
        with pytest.raises(ConfigError):
            registry.add(second)
        registry.add(second, {"number": "2"})
        assert len(shown(registry, "commit_total")) == 2
        first.close()
        assert shown(registry, "commit_total") == [({"store": "store", "backend": MEMORY, "number": "2"}, 0)]
        with memory() as third:
            registry.add(third)
            assert len(shown(registry, "commit_total")) == 2


def test_a_task_that_is_made_again_takes_the_place_of_the_one_before(tmp_path: Path, log: MemoryChangelog) -> None:
    registry = MetricsRegistry()
    first, second = (counting_task(tmp_path, log, MEMORY) for _ in range(2))
    registry.add(first)
    registry.add(second)
    feed(log, range(2))
    second.open()
    second.run()
    second.close()
    assert [value for _, value in shown(registry, "process_total", TASK)] == [2]
    registry.remove(first)
    assert [value for _, value in shown(registry, "process_total", TASK)] == [2]
    registry.remove(second)
    assert shown(registry, "process_total", TASK) == []


@pytest.mark.parametrize("label", ["", "2nd", "a-b", "__name__", "store", "cause", "figure"])
def test_a_label_that_exporters_would_refuse_or_mistake_is_refused(label: str) -> None:
    registry = MetricsRegistry()
    with memory() as store:
        with pytest.raises(ConfigError):
            registry.add(store, {label: "x"})
        assert shown(registry, "commit_total") == []


def test_the_registry_keeps_no_store_alive() -> None:
    registry = MetricsRegistry()
    store = memory()
    reference = ref(store)
    registry.add(store)
    assert len(shown(registry, "commit_total")) == 1
    del store
    gc.collect()
    assert reference() is None
    assert shown(registry, "commit_total") == []


def test_the_documentation_has_a_row_for_each_metric_and_no_other() -> None:
    text = (Path(stores.__file__).parents[1] / "docs" / "metrics.md").read_text()
    _, of_stores, of_tasks = text.split("\n## ")
    for scope, part in (("store", of_stores), ("task", of_tasks)):
        rows = re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)
        assert sorted(rows) == sorted(each.name for each in INSTRUMENTS if each.scope == scope)


def test_rates_and_means_are_exported_as_the_metrics_have_them() -> None:
    registry = MetricsRegistry()
    with open_store("memory-indexed-batch", "unused") as store:
        registry.add(store)
        for _ in range(3):
            store.put(b"a", b"1")
            store.commit()
        samples: dict[str, Any] = {
            each.name: list(registry.collect(each)) for each in INSTRUMENTS if each.scope == "store"
        }
        metrics = store.metrics
    assert samples["commit_latency_avg_seconds"][0][1] == metrics.commit_latency_avg_seconds > 0
    assert samples["commit_rate"][0][1] >= metrics.commit_rate > 0
    assert samples["restore_rate"][0][1] == 0.0
