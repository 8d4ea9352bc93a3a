"""OpenTelemetry's own reader and a scrape over HTTP return what stores and tasks have counted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from socket import create_server
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, InMemoryMetricReader, NumberDataPoint, Sum
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from stores import StoreUnavailableError, open_store
from stores.changelog import MemoryChangelog
from stores.tasks import StreamTask
from stores.telemetry import INSTRUMENTS, MetricsRegistry
from stores.telemetry.opentelemetry import export_metrics
from stores.telemetry.prometheus import PrometheusCollector, PrometheusEndpoint, metric_name
from stores.tests.tasks.setup import MEMORY, counting_task, feed

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Values by name and labels."""

TASK_LABELS = {"application": "app", "task": "0_0"}
LEFT = {**TASK_LABELS, "store": "left", "backend": MEMORY}


@pytest.fixture
def task(tmp_path: Path, log: MemoryChangelog) -> Iterator[StreamTask]:
    """Five of seven records committed in two commits, two staged."""
    feed(log, range(7))
    task = counting_task(tmp_path, log, MEMORY, commit_every_records=5)
    task.open()
    task.run(7)
    yield task
    task.close(clean=False)


@pytest.fixture
def registry(task: StreamTask) -> MetricsRegistry:
    watching = MetricsRegistry()
    watching.add(task)
    return watching


def key(name: str, labels: dict[str, str]) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def read(reader: InMemoryMetricReader) -> tuple[Series, dict[str, Sum | Gauge], dict[str, str]]:
    """Values, data and units, by the instruments' names."""
    values: Series = {}
    data: dict[str, Sum | Gauge] = {}
    units: dict[str, str] = {}
    collected = reader.get_metrics_data()
    for resource in collected.resource_metrics if collected else ():
        for scope in resource.scope_metrics:
            assert scope.scope.name == "txstores"
            for metric in scope.metrics:
                assert isinstance(metric.data, Sum | Gauge)
                data[metric.name], units[metric.name] = metric.data, metric.unit or ""
                for point in metric.data.data_points:
                    assert isinstance(point, NumberDataPoint)
                    values[key(metric.name, {k: str(v) for k, v in (point.attributes or {}).items()})] = point.value
    return values, data, units


def test_opentelemetry_reads_what_was_counted_and_what_is_counted_later(
    task: StreamTask, registry: MetricsRegistry
) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    try:
        export_metrics(registry, provider)
        values, data, units = read(reader)
        metrics = task.metrics
        left = metrics.stores["left"]
        assert values[key("txstores.task.commit", TASK_LABELS)] == metrics.commit_total == 1
        assert values[key("txstores.task.process", TASK_LABELS)] == 5
        assert values[key("txstores.task.early_commit", {**TASK_LABELS, "cause": "EXCEEDED"})] == 0
        assert values[key("txstores.store.uncommitted", LEFT)] == left.uncommitted_bytes == 4
        assert values[key("txstores.store.commit_latency", LEFT)] == left.commit_latency_seconds_total > 0
        assert values[key("txstores.store.commit_latency_max", LEFT)] == left.commit_latency_max_seconds
        assert values[key("txstores.store.engine", {**LEFT, "figure": "num_keys"})] == 5
        latency, staged = data["txstores.store.commit_latency"], data["txstores.store.uncommitted"]
        assert isinstance(latency, Sum)
        assert latency.is_monotonic
        assert isinstance(staged, Gauge)
        assert units["txstores.store.commit_latency"] == units["txstores.store.commit_latency_max"] == "s"
        assert units["txstores.store.uncommitted"] == "By"
        task.commit()
        later, _, _ = read(reader)
        assert later[key("txstores.task.commit", TASK_LABELS)] == 2
        assert later[key("txstores.store.uncommitted", LEFT)] == 0
        registry.remove(task)
        assert read(reader)[0] == {}
    finally:
        provider.shutdown()


def test_opentelemetry_and_prometheus_know_every_instrument_by_a_name_of_its_own() -> None:
    assert len({instrument.opentelemetry_name for instrument in INSTRUMENTS}) == len(INSTRUMENTS)
    assert len(set(map(metric_name, INSTRUMENTS))) == len(INSTRUMENTS)


def test_without_an_sdk_nothing_is_read(registry: MetricsRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "collect", lambda instrument: pytest.fail(instrument.name))
    export_metrics(registry)


def scrape(endpoint: PrometheusEndpoint) -> tuple[Series, dict[str, str]]:
    """Values, and types of the families, of one scrape."""
    with urlopen(f"http://127.0.0.1:{endpoint.port}/metrics", timeout=600) as answer:
        return parsed(answer.read())


def parsed(text: bytes) -> tuple[Series, dict[str, str]]:
    families = list(text_string_to_metric_families(text.decode()))
    values = {key(sample.name, sample.labels): sample.value for family in families for sample in family.samples}
    return values, {family.name: family.type for family in families}


def test_a_scrape_over_http_shows_what_was_counted_so_far(task: StreamTask, registry: MetricsRegistry) -> None:
    with PrometheusEndpoint(registry, port=0) as endpoint:
        values, types = scrape(endpoint)
        left = task.metrics.stores["left"]
        assert values[key("txstores_task_commit_total", TASK_LABELS)] == 1
        assert values[key("txstores_task_early_commit_total", {**TASK_LABELS, "cause": "REQUESTED"})] == 0
        assert values[key("txstores_store_uncommitted_bytes", LEFT)] == 4
        assert values[key("txstores_store_commit_latency_seconds_total", LEFT)] == pytest.approx(
            left.commit_latency_seconds_total
        )
        assert values[key("txstores_store_engine", {**LEFT, "figure": "num_keys"})] == 5
        assert types["txstores_store_commit_latency_seconds"] == "counter"
        assert types["txstores_store_commit_latency_max_seconds"] == "gauge"
        assert types["txstores_store_uncommitted_bytes"] == "gauge"
        task.commit()
        later, _ = scrape(endpoint)
        assert later[key("txstores_task_commit_total", TASK_LABELS)] == 2
        assert later[key("txstores_task_process_total", TASK_LABELS)] == 7
        assert later[key("txstores_store_uncommitted_bytes", LEFT)] == 0


def test_a_registry_that_the_application_has_already_shows_open_stores_of_all_backends(tmp_path: Path) -> None:
    registry = MetricsRegistry()
    names = ("rocksdb-dual-store", "lmdb-native", "sqlite-indexed-batch")
    stores = [open_store(name, tmp_path / name) for name in names]
    for store in stores:
        store.put(b"a", b"1")
        store.commit()
        registry.add(store)
    commits = [key("txstores_store_commit_total", {"store": "store", "backend": name}) for name in names]
    theirs = CollectorRegistry()
    theirs.register(PrometheusCollector(registry))
    values, _ = parsed(generate_latest(theirs))
    assert [values[each] for each in commits] == [1, 1, 1]
    for store in stores:
        store.close()
    assert parsed(generate_latest(theirs))[0] == {}


def test_a_closed_endpoint_answers_no_more_and_gives_its_port_back() -> None:
    endpoint = PrometheusEndpoint(MetricsRegistry(), port=0)
    with pytest.raises(StoreUnavailableError):
        PrometheusEndpoint(MetricsRegistry(), port=endpoint.port)
    endpoint.close()
    endpoint.close()
    with pytest.raises(URLError):
        scrape(endpoint)
    create_server(("127.0.0.1", endpoint.port)).close()


@pytest.mark.parametrize("module", ["opentelemetry", "prometheus"])
def test_without_its_extra_an_export_says_so_and_stores_need_neither(module: str) -> None:
    """In a process of its own, where the package is not to be found."""
    code = f"""
import sys
sys.modules["opentelemetry"] = sys.modules["prometheus_client"] = None
import stores.tasks, stores.telemetry
stores.open_store("memory-indexed-batch", "unused").metrics
try:
    import stores.telemetry.{module}
except ImportError as error:
    sys.exit(0 if "txstores[{module}]" in str(error) else str(error))
sys.exit("it was imported")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
