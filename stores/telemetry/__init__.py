"""Metrics of stores and tasks for those who watch: a registry, and its ways out to OpenTelemetry and Prometheus.

Nothing here is imported by stores and tasks: they count (``stores.metrics``), and whoever wants that exported adds them
to a ``MetricsRegistry``. The exports need the extras ``opentelemetry`` and ``prometheus``.
"""

from stores.telemetry.registry import MetricsRegistry

__all__ = ["MetricsRegistry"]
