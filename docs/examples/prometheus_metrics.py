"""Serve the metrics of a store in Prometheus' text format: ``python prometheus_metrics.py``.

Needs the extra ``prometheus``. An application that has a registry of ``prometheus-client`` already registers a
``PrometheusCollector`` there in place of the endpoint.
"""

from __future__ import annotations

import http.client
import tempfile

from stores import open_store
from stores.telemetry import MetricsRegistry
from stores.telemetry.prometheus import PrometheusEndpoint

SHOWN = ("txstores_store_commit_total", "txstores_store_uncommitted_bytes", "txstores_store_rollback_total")


def scrape(port: int) -> str:
    """Return what Prometheus would read."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def main() -> None:
    """Commit three times, leave one write uncommitted, and print some lines of the scrape."""
    registry = MetricsRegistry()
    with (
        tempfile.TemporaryDirectory() as folder,
        open_store("sqlite", f"{folder}/counts", name="counts") as store,
        PrometheusEndpoint(registry, port=0) as endpoint,
    ):
        registry.add(store, {"shop": "north"})
        for number in range(3):
            store.put(b"apples", b"%d" % number)
            store.commit()
        store.put(b"pears", b"12345")
        for line in scrape(endpoint.port).splitlines():
            if line.startswith(SHOWN):
                print(line)


if __name__ == "__main__":
    main()
