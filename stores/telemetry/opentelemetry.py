"""Export through OpenTelemetry's metrics API: observable instruments, read when an SDK collects.

Only the API is needed here. Which SDK runs, how often it collects and where it sends that is the application's choice;
without any, nothing is read at all. Names follow OpenTelemetry's conventions, where units and "total" are not part of a
name: ``commit_latency_seconds_total`` of a store is ``txstores.store.commit_latency``, in ``s``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stores.extras import advice
from stores.metrics import MetricKind
from stores.telemetry import INSTRUMENTS, Instrument, MetricsRegistry

try:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter
except ImportError as error:
    raise ImportError(f"OpenTelemetry's API is missing: {advice('opentelemetry')}") from error

__all__ = ["export_metrics"]


def export_metrics(registry: MetricsRegistry, meter_provider: MeterProvider | None = None) -> None:
    """Let OpenTelemetry collect what ``registry`` watches, now and later; once for each provider.

    ``meter_provider`` is the global one unless it is given. OpenTelemetry has no way to take instruments back: an empty
    registry shows nothing. Nor has it histograms that are read when it collects: latencies at the level DEBUG go to
    Prometheus, and by OTLP with ``stores.telemetry.otlp``.
    """
    meter = get_meter("txstores", meter_provider=meter_provider)
    for instrument in INSTRUMENTS:
        if instrument.measure.kind is MetricKind.HISTOGRAM:
            continue  # The API has no histogram that is read when somebody collects.
        total = instrument.measure.kind is MetricKind.TOTAL
        create = meter.create_observable_counter if total else meter.create_observable_gauge
        create(
            instrument.opentelemetry_name,
            callbacks=[_callback(registry, instrument)],
            unit=instrument.measure.unit,
            description=instrument.measure.description,
        )


def _callback(registry: MetricsRegistry, instrument: Instrument) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        collected = registry.collect(instrument)
        return [Observation(value, dict(labels)) for labels, value in collected if isinstance(value, int | float)]

    return observe
