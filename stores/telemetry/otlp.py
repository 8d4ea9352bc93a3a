"""An exporter by OTLP, OpenTelemetry's protocol: the metrics of a registry, sent to a collector at each interval.

It writes the protocol's JSON over HTTP with Python's own library, so it needs no SDK. An application that runs
OpenTelemetry's SDK already exports with that (``stores.telemetry.opentelemetry``).

Source: OpenTelemetry Protocol 1.x, "OTLP/HTTP" and "JSON Protobuf Encoding".
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from stores.errors import ConfigError, StoreError
from stores.interface import Closeable
from stores.metrics import LATENCY_BOUNDS_S, LatencyHistogram, MetricKind
from stores.telemetry import Instrument, Labels, MetricsRegistry, Value

_log = logging.getLogger(__name__)

INTERVAL_S = 60.0
"""Source: OpenTelemetry, default of ``OTEL_METRIC_EXPORT_INTERVAL``."""
TIMEOUT_S = 10.0
"""Source: OpenTelemetry, default of ``OTEL_EXPORTER_OTLP_TIMEOUT``."""
_ENDPOINT = re.compile(r"https?://[^\s/@?#]+(/[^\s?#]*)?")
_PATH = "/v1/metrics"
_CUMULATIVE = 2
"""``AGGREGATION_TEMPORALITY_CUMULATIVE``."""


def checked_endpoint(text: str) -> str:
    """Return the address of a collector, with the protocol's path if it has none. Raises: ConfigError."""
    try:
        fits = _ENDPOINT.fullmatch(text) is not None and urlsplit(text).port != 0
    except ValueError:
        fits = False  # It has a port that is none.
    if not fits:
        raise ConfigError(f"{text!r} is no address of a collector: write http://HOST:4318")
    path = "/" + text.split("/", 3)[3] if text.count("/") > 2 else ""
    return text if path.strip("/") else text.rstrip("/") + _PATH


class OtlpExporter(Closeable):
    """Sends ``registry`` to a collector each ``interval_s``, and once more when it is closed, from its own thread.

    ``service`` is the ``service.name`` of the metrics. A collector that does not answer is logged once, until it
    answers again, and never an error of the application: the next metrics have all counts so far.

    Raises: ConfigError for an ``endpoint`` that is no address.
    """

    def __init__(
        self, registry: MetricsRegistry, endpoint: str, *, service: str, interval_s: float = INTERVAL_S
    ) -> None:
        self._registry, self._endpoint, self._service = registry, checked_endpoint(endpoint), service
        self._interval_s = interval_s
        self._began_ns = time.time_ns()
        self._failing = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(TIMEOUT_S)

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._send()
        self._send()

    def _send(self) -> None:
        try:
            content = json.dumps(self._request()).encode()
            request = Request(self._endpoint, content, {"Content-Type": "application/json"})
            with urlopen(request, timeout=TIMEOUT_S) as answer:
                answer.read()
            self._failing = False
        except HTTPError as error:
            error.close()
            self._failed(f"it answered {error.code}")
        except (OSError, ValueError, HTTPException, StoreError) as error:
            self._failed(str(error) or type(error).__name__)

    def _failed(self, reason: str) -> None:
        if not self._failing:
            _log.warning("metrics can't be sent to %s, and are sent again later: %s", self._endpoint, reason)
        self._failing = True

    def _request(self) -> Mapping[str, Any]:
        now_ns = time.time_ns()
        metrics = [
            _metric(instrument, values, self._began_ns, now_ns)
            for instrument, values in self._registry.collect_all().items()
            if values
        ]
        resource = {"attributes": _attributes({"service.name": self._service})}
        scope = {"scope": {"name": "txstores"}, "metrics": metrics}
        return {"resourceMetrics": [{"resource": resource, "scopeMetrics": [scope]}]}


def _metric(
    instrument: Instrument, values: list[tuple[Labels, Value]], began_ns: int, now_ns: int
) -> Mapping[str, Any]:
    measure = instrument.measure
    points = [
        {
            "attributes": _attributes(labels),
            "startTimeUnixNano": str(began_ns),
            "timeUnixNano": str(now_ns),
            **_value(value),
        }
        for labels, value in values
    ]
    if measure.kind is MetricKind.HISTOGRAM:
        data: Mapping[str, Any] = {"histogram": {"dataPoints": points, "aggregationTemporality": _CUMULATIVE}}
    elif measure.kind is MetricKind.TOTAL:
        data = {"sum": {"dataPoints": points, "aggregationTemporality": _CUMULATIVE, "isMonotonic": True}}
    else:
        data = {"gauge": {"dataPoints": points}}
    names = {"name": instrument.opentelemetry_name, "description": measure.description, "unit": measure.unit}
    return {**names, **data}


def _value(value: Value) -> Mapping[str, Any]:
    """Return a value as the protocol has it: integers of 64 bits are texts in JSON."""
    if isinstance(value, LatencyHistogram):
        return {
            "count": str(value.total),
            "sum": value.seconds,
            "bucketCounts": [str(count) for count in value.counts],
            "explicitBounds": list(LATENCY_BOUNDS_S),
        }
    return {"asInt": str(value)} if isinstance(value, int) else {"asDouble": value}


def _attributes(labels: Labels) -> list[Mapping[str, Any]]:
    return [{"key": name, "value": {"stringValue": value}} for name, value in labels.items()]
