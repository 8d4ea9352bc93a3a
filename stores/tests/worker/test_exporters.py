"""A worker exports its metrics by its properties: to Prometheus on loopback, and by OTLP to a collector."""

from __future__ import annotations

import gc
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socket import create_server
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stores import extras
from stores.errors import ConfigError
from stores.telemetry import MetricsRegistry
from stores.telemetry.otlp import OtlpExporter, checked_endpoint
from stores.tests.worker.counting_app import app
from stores.tests.worker.places import EmbeddedPlace
from stores.tests.worker.worker_process import IDLE, WorkerProcess
from stores.tests.worker.worker_thread import await_counted, await_true, running
from stores.worker import settings as settings_module
from stores.worker.settings import WorkerSettings, exported_metrics

EMBEDDED = {"changelog.file": "log.sqlite", "state.dir": "state"}
WORDS = ["to", "be", "or", "not", "to", "be"]
REFUSED = 2
DEBUG = {"metrics.recording.level": "DEBUG"}


class Collector(HTTPServer):
    """A collector of OTLP that keeps what it gets."""

    def __init__(self, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = status
        self.received: list[tuple[str, str, Any]] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append((self.path, self.headers["Content-Type"], json.loads(content)))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def collector(status: int = 200) -> Iterator[Collector]:
    with Collector(status) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def run_worker(place: EmbeddedPlace, properties: dict[str, str], *, verbose: bool = True) -> Any:
    return WorkerProcess(place.folder, "w", {**place.properties(), **properties}, verbose=verbose)


def test_prometheus_reads_the_metrics_of_all_tasks_on_loopback(tmp_path: Path) -> None:
    place = EmbeddedPlace(tmp_path)
    place.feed(WORDS)
    with run_worker(place, {"metrics.port": "0", **DEBUG}) as worker:
        worker.await_line(f"4 {IDLE}")
        place.await_counted(len(WORDS))
        [address] = set(re.findall(r"metrics at (http://127\.0\.0\.1:\d+/metrics)", worker.errors))
        with urlopen(address, timeout=600) as answer:
            families = {each.name: each for each in text_string_to_metric_families(answer.read().decode())}
        assert worker.terminate() == 0, worker.errors
    calls = families["txstores_store_operation_latency_seconds"]
    assert calls.type == "histogram"
    puts = [each for each in calls.samples if each.labels["operation"] == "put"]
    ends = [each for each in puts if each.labels.get("le") == "+Inf"]
    assert {each.labels["task"] for each in ends} == {f"0_{number}" for number in range(4)}
    assert sum(each.value for each in ends) == len(WORDS)
    counts = [each.value for each in puts if each.name.endswith("_count")]
    assert sum(counts) == len(WORDS)
    processed = families["txstores_task_process"]
    assert processed.type == "counter"


def test_a_collector_gets_all_metrics_at_the_latest_when_the_worker_ends(tmp_path: Path) -> None:
    place = EmbeddedPlace(tmp_path)
    place.feed(WORDS)
    with collector() as requests:
        with run_worker(place, {"metrics.otlp.endpoint": requests.endpoint, **DEBUG}) as worker:
            worker.await_line(f"4 {IDLE}")
            place.await_counted(len(WORDS))
            assert worker.terminate() == 0, worker.errors
        path, kind, content = requests.received[-1]
    assert (path, kind) == ("/v1/metrics", "application/json")
    [resource] = content["resourceMetrics"]
    [attribute] = resource["resource"]["attributes"]
    assert (attribute["key"], attribute["value"]) == ("service.name", {"stringValue": "counting"})
    [scope] = resource["scopeMetrics"]
    metrics = {each["name"]: each for each in scope["metrics"]}
    processed = metrics["txstores.task.process"]["sum"]
    assert (processed["isMonotonic"], processed["aggregationTemporality"]) == (True, 2)
    assert sum(int(point["asInt"]) for point in processed["dataPoints"]) == len(WORDS)
    calls = metrics["txstores.store.operation_latency"]["histogram"]["dataPoints"]
    operation = {"key": "operation", "value": {"stringValue": "put"}}
    puts = [point for point in calls if operation in point["attributes"]]
    assert sum(int(point["count"]) for point in puts) == len(WORDS)
    for point in puts:
        assert sum(map(int, point["bucketCounts"])) == int(point["count"])
        assert len(point["bucketCounts"]) == len(point["explicitBounds"]) + 1
        assert int(point["startTimeUnixNano"]) < int(point["timeUnixNano"])
    assert "gauge" in metrics["txstores.store.uncommitted"]


def test_the_metrics_of_the_last_tasks_are_there_after_the_worker_ended(tmp_path: Path) -> None:
    """The exporter reads them once more: until then nothing else may refer to the tasks."""
    place = EmbeddedPlace(tmp_path)
    place.feed(WORDS)
    registry = MetricsRegistry()
    with running(place, {}, registry) as worker:
        await_counted(place, len(WORDS))
    assert worker.status().running == 0
    gc.collect()
    [totals] = [values for each, values in registry.collect_all().items() if each.name == "process_total"]
    assert sum(value for _, value in totals if isinstance(value, int)) == len(WORDS)


def test_metrics_are_sent_at_each_interval_while_the_worker_runs(tmp_path: Path) -> None:
    place = EmbeddedPlace(tmp_path)
    place.feed(WORDS)
    with collector() as requests:
        settings = {"metrics.otlp.endpoint": requests.endpoint, "metrics.otlp.interval.ms": "20"}
        with run_worker(place, settings) as worker:
            worker.await_line(f"4 {IDLE}")
            worker.await_caught_up(4)
            await_true(lambda: len(requests.received) >= 2)
            assert worker.terminate() == 0, worker.errors
        names = {each["name"] for each in requests.received[-1][2]["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]}
        assert "txstores.store.operation_latency" not in names  # At the level INFO.


@pytest.mark.parametrize("status", [None, 503])
def test_a_collector_that_fails_is_logged_once_and_costs_nothing_else(tmp_path: Path, status: int | None) -> None:
    place = EmbeddedPlace(tmp_path)
    place.feed(WORDS)
    with collector(status or 200) as requests:
        endpoint = requests.endpoint if status else "http://127.0.0.1:1"
        settings = {"metrics.otlp.endpoint": endpoint, "metrics.otlp.interval.ms": "10"}
        with run_worker(place, settings, verbose=False) as worker:
            place.await_counted(len(WORDS))
            worker.await_text("metrics can't be sent")
            worker.await_caught_up(4)
            assert worker.terminate() == 0, worker.errors
    assert worker.errors.count("metrics can't be sent") == 1


def test_a_collector_that_does_not_speak_http_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    with create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        with OtlpExporter(MetricsRegistry(), endpoint, service="s", interval_s=0.01):
            for _ in range(3):
                connection, _ = server.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(b"220 mail.example ESMTP\r\n")
            server.close()
    assert caplog.text.count("metrics can't be sent") == 1


def test_a_port_that_is_taken_ends_the_worker_with_the_property(tmp_path: Path) -> None:
    place = EmbeddedPlace(tmp_path)
    with create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        with run_worker(place, {"metrics.port": port}) as worker:
            assert worker.ended() == REFUSED
    assert "metrics.port" in worker.errors
    assert port in worker.errors
    assert "Traceback" not in worker.errors


def test_the_endpoint_for_prometheus_is_closed_with_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    settings = WorkerSettings.from_properties(app, {**EMBEDDED, "metrics.port": "0"})
    with caplog.at_level("INFO", settings_module.__name__), exported_metrics(settings, "app", MetricsRegistry()):
        [address] = re.findall(r"http://127\.0\.0\.1:\d+/metrics", caplog.text)
        with urlopen(address, timeout=600) as answer:
            assert answer.status == 200
    with pytest.raises(URLError):
        urlopen(address, timeout=600)


def test_a_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    required, missing = extras._requirements, ("prometheus-client",)
    monkeypatch.setattr(extras, "_requirements", lambda package: None if package in missing else required(package))
    monkeypatch.setattr(extras, "find_spec", lambda module: None)
    with pytest.raises(ConfigError, match=r"prometheus.* not installed: install the extra 'prometheus'"):
        WorkerSettings.from_properties(app, {**EMBEDDED, "metrics.port": "9464"})
    WorkerSettings.from_properties(app, {**EMBEDDED, "metrics.otlp.endpoint": "http://127.0.0.1:4318"})


@pytest.mark.parametrize(
    ("properties", "name"),
    [
        ({"metrics.port": "65536"}, "metrics.port"),
        ({"metrics.port": "-1"}, "metrics.port"),
        ({"metrics.port": "port"}, "metrics.port"),
        ({"metrics.host": "0.0.0.0"}, "needs metrics.port"),
        ({"metrics.otlp.interval.ms": "5"}, "needs metrics.otlp.endpoint"),
        ({"metrics.otlp.endpoint": "127.0.0.1:4318"}, "metrics.otlp.endpoint"),
        ({"metrics.otlp.endpoint": "http://user:word@host"}, "metrics.otlp.endpoint"),
        ({"metrics.otlp.endpoint": "http://host:65536"}, "metrics.otlp.endpoint"),
        ({"metrics.otlp.endpoint": "http://host:0"}, "metrics.otlp.endpoint"),
        ({"metrics.otlp.endpoint": "http://host:otlp/v1"}, "metrics.otlp.endpoint"),
        ({"metrics.otlp.endpoint": "http://h", "metrics.otlp.interval.ms": "-1"}, "metrics.otlp.interval.ms"),
        ({"metrics.recording.level": "LOUD"}, "metrics.recording.level"),
        ({"metric.prometheus.port": "1"}, "metrics.port"),
    ],
)
def test_a_property_that_does_not_fit_is_refused_by_its_name(properties: dict[str, str], name: str) -> None:
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        WorkerSettings.from_properties(app, {**EMBEDDED, **properties})


def test_prometheus_is_on_loopback_unless_another_address_is_given() -> None:
    settings = WorkerSettings.from_properties(app, {**EMBEDDED, "metrics.port": "1"})
    assert settings.metrics_host == "127.0.0.1"


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("http://h:4318", "http://h:4318/v1/metrics"),
        ("https://h/", "https://h/v1/metrics"),
        ("http://h:4318/v1/metrics", "http://h:4318/v1/metrics"),
        ("http://h/of/tenant", "http://h/of/tenant"),
    ],
)
def test_the_path_of_the_protocol_is_added_to_an_address_without_one(text: str, endpoint: str) -> None:
    assert checked_endpoint(text) == endpoint
