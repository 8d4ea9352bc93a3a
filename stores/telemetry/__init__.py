"""Export of the metrics of stores and tasks: a registry, and its exporters to OpenTelemetry and Prometheus.

Stores and tasks import nothing of this: they count (``stores.metrics``). An application adds them to a
``MetricsRegistry`` to export their metrics. The exporters need the extras ``opentelemetry`` and ``prometheus``.
"""

from stores.telemetry.registry import MetricsRegistry

__all__ = ["MetricsRegistry"]
