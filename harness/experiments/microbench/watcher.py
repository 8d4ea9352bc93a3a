"""A watcher that collects a store's metrics while the store works. Its cost to the store is measured."""

from __future__ import annotations

from threading import Event, Thread
from types import TracebackType
from typing import Self

from stores import KeyValueStore
from stores.telemetry import MetricsRegistry

COLLECT_INTERVAL_S = 0.1
"""The interval: a hundred times as often as Prometheus by default (``scrape_interval``, some 10 s to 60 s)."""


class Watcher:
    """Collects all metrics of ``store`` and its engine on a thread of its own; use it in a ``with`` block."""

    def __init__(self, store: KeyValueStore) -> None:
        self.collections = 0
        self._registry = MetricsRegistry()
        self._registry.add(store)
        self._over = Event()
        self._thread = Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        assert self.collections, "nobody has watched"

    def _watch(self) -> None:
        while True:
            self._registry.collect_all()
            self.collections += 1
            if self._over.wait(COLLECT_INTERVAL_S):
                return
