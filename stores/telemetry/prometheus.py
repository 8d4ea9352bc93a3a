"""A Prometheus endpoint: the metrics of a registry in Prometheus' text format, over HTTP.

Built on ``prometheus-client``, which needs no SDK and reads each store once per scrape. OpenTelemetry's Prometheus
exporter has only been published as pre-releases, each bound to one version of the SDK. An application that runs
OpenTelemetry's SDK can use that exporter (``stores.telemetry.opentelemetry``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any
from wsgiref.types import WSGIApplication

from stores.errors import StoreUnavailableError
from stores.extras import advice
from stores.interface import Closeable
from stores.metrics import LATENCY_BOUNDS_S, LatencyHistogram, MetricKind
from stores.telemetry import Instrument, MetricsRegistry

try:
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest, start_http_server
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(f"prometheus-client is missing: {advice('prometheus')}") from error

__all__ = ["CONTENT_TYPE", "PORT", "PrometheusCollector", "PrometheusEndpoint", "exposition", "metric_name"]

_KINDS = {MetricKind.TOTAL: "counter", MetricKind.HISTOGRAM: "histogram"}
PORT = 9464
"""As OpenTelemetry's exporters have it."""


class PrometheusCollector(Collector):
    """The metrics of ``registry``, for a registry of ``prometheus-client`` that the application has already."""

    def __init__(self, registry: MetricsRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Each metric with its samples, one for each store or task."""
        for instrument, values in self._registry.collect_all().items():
            name, measure = metric_name(instrument), instrument.measure
            kind = _KINDS.get(measure.kind, "gauge")
            metric = Metric(name.removesuffix("_total"), measure.description, kind)
            for labels, value in values:
                if isinstance(value, LatencyHistogram):
                    _add_histogram(metric, dict(labels), value)
                else:
                    metric.add_sample(name, dict(labels), value)
            yield metric

    def describe(self) -> Iterator[Metric]:
        """Return nothing, so that registering this does not read the stores."""
        return iter(())


class PrometheusEndpoint(Closeable):
    """Serves ``registry`` on ``http://HOST:PORT/metrics``, from a thread of its own, until it is closed.

    Only this machine can reach it, unless another ``host`` is given; it has neither encryption nor passwords. Port 0
    takes a free one. Raises: StoreUnavailableError where the port can't be had.
    """

    def __init__(
        self,
        registry: MetricsRegistry,
        *,
        host: str = "127.0.0.1",
        port: int = PORT,
        around: Callable[[WSGIApplication], WSGIApplication] | None = None,
    ) -> None:
        """Begin to serve. ``around`` returns an application that answers more paths, and passes on the others."""
        server: Any
        try:
            server, self._thread = start_http_server(port, host, _collectors(registry))
            if around is not None:
                server.set_app(around(server.get_app()))
        except OSError as error:
            raise StoreUnavailableError(
                f"metrics can't be served on {host}, port {port}: {error.strerror}. Choose another one"
            ) from error
        self._server = server
        self.port: int = server.server_port
        """The port on which it listens."""

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


CONTENT_TYPE = CONTENT_TYPE_LATEST
"""The type of what ``exposition`` returns."""


def exposition(registry: MetricsRegistry) -> bytes:
    """Return all metrics of ``registry`` in Prometheus' text format."""
    return generate_latest(_collectors(registry))


def _collectors(registry: MetricsRegistry) -> CollectorRegistry:
    collectors = CollectorRegistry()
    collectors.register(PrometheusCollector(registry))
    return collectors


def _add_histogram(metric: Metric, labels: dict[str, str], histogram: LatencyHistogram) -> None:
    bounds = [*map(repr, LATENCY_BOUNDS_S), "+Inf"]
    for bound, count in zip(bounds, accumulate(histogram.counts), strict=True):
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": bound}, count)
    metric.add_sample(f"{metric.name}_count", labels, histogram.total)
    metric.add_sample(f"{metric.name}_sum", labels, histogram.seconds)


def metric_name(instrument: Instrument) -> str:
    """Return the name of ``instrument`` in Prometheus."""
    return f"txstores_{instrument.scope}_{instrument.name}"
