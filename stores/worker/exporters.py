"""The exporters of a worker's metrics that its properties ask for: Prometheus' endpoint, and OTLP to a collector."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from stores.errors import ConfigError, StoreUnavailableError
from stores.telemetry import MetricsRegistry
from stores.telemetry.otlp import OtlpExporter
from stores.worker.settings import PROMETHEUS, PROMETHEUS_HOST, WorkerSettings

_log = logging.getLogger(__name__)


def exports_metrics(settings: WorkerSettings) -> bool:
    """Return True if the properties ask for an exporter."""
    return settings.prometheus_port is not None or settings.otlp_endpoint is not None


@contextmanager
def exported_metrics(settings: WorkerSettings, application: str, registry: MetricsRegistry) -> Iterator[None]:
    """Export the metrics of ``registry`` during the block. Raises: ConfigError if a port can't be had."""
    with ExitStack() as held:
        if settings.prometheus_port is not None:
            from stores.telemetry.prometheus import PrometheusEndpoint

            host = settings.prometheus_host
            try:
                endpoint = PrometheusEndpoint(registry, host=host, port=settings.prometheus_port)
            except StoreUnavailableError as error:
                raise ConfigError(f"properties {PROMETHEUS} and {PROMETHEUS_HOST}: {error}") from error
            held.enter_context(endpoint)
            _log.info("metrics at http://%s:%d/metrics", host, endpoint.port)
        if settings.otlp_endpoint is not None:
            exporter = OtlpExporter(
                registry, settings.otlp_endpoint, service=application, interval_s=settings.otlp_interval_s
            )
            held.enter_context(exporter)
        yield
