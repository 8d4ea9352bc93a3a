"""Export of the metrics of stores and tasks: a registry, and its exporters to OpenTelemetry and Prometheus.

Stores and tasks import nothing of this: they count (``stores.metrics``). An application adds them to a
``MetricsRegistry`` to export their metrics. The exporters need the extras ``opentelemetry`` and ``prometheus``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Protocol
from weakref import ReferenceType, ref

from stores.errors import ConfigError, StoreClosedError, StoreError
from stores.metrics import LatencyHistogram, Measure, MetricKind, StoreMetrics, TaskMetrics, TaskStoreMetrics, exported

__all__ = ["MetricsRegistry"]

Labels = Mapping[str, str]
Value = int | float | LatencyHistogram

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_FIGURE = "figure"
_OWN_LABELS = frozenset({"application", "task", "store", "backend", "cause", "operation", _FIGURE})


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric that is exported: ``name`` below ``scope``, which is ``store`` or ``task``."""

    scope: str
    name: str
    measure: Measure

    @property
    def opentelemetry_name(self) -> str:
        """The name by OpenTelemetry's conventions: without its unit and "total"."""
        name = self.name.removesuffix("_total")
        for unit in ("_seconds", "_bytes"):
            name = name.removesuffix(unit)
        return f"txstores.{self.scope}.{name}"


STORE, TASK = "store", "task"
ENGINE = Instrument(
    STORE,
    "engine",
    Measure(MetricKind.CURRENT, "a figure of the store's engine; bytes where its name says so", "1", _FIGURE),
)
INSTRUMENTS: tuple[Instrument, ...] = (
    *(Instrument(TASK, name, measure) for name, measure in exported(TaskMetrics).items()),
    *(Instrument(STORE, name, measure) for name, measure in exported(TaskStoreMetrics).items()),
    ENGINE,
)
"""Everything that is exported, in the order in which it is shown."""


class Metered(Protocol):
    """A store or a task."""

    @property
    def metrics(self) -> StoreMetrics | TaskMetrics: ...

    def engine_metrics(self) -> Mapping[str, int] | Mapping[str, Mapping[str, int]]: ...


@dataclass(frozen=True, slots=True)
class _Entry:
    source: ReferenceType[Metered]
    labels: dict[str, str]
    identity: tuple[str, ...]
    is_store: bool

    def is_here(self) -> bool:
        """Return True if the store or task still exists, and, if it is a store, is open."""
        source = self.source()
        return source is not None and (not self.is_store or bool(getattr(source, "is_open", True)))


class MetricsRegistry:
    """Stores and tasks under watch, each for as long as it is referred to elsewhere. For any thread.

    A store that is closed is forgotten; a task is not, since it may be opened again, until ``remove``. A store of a
    task is shown with it and need not be added. ``engines=False`` leaves the engines' own figures out.
    """

    def __init__(self, *, engines: bool = True) -> None:
        self._engines = engines
        self._entries: list[_Entry] = []
        self._lock = Lock()

    def add(self, source: Metered, labels: Labels | None = None) -> None:
        """Watch a store or a task; ``labels`` are shown beside its own (application, task, store, backend).

        Added again, it gets other labels; a task takes the place of an earlier one of the same application and id.
        Raises: ConfigError for a label that can't be one, and for an open store that would look like another.
        """
        labels = {} if labels is None else dict(labels)
        for label in labels:
            if not _LABEL.fullmatch(label) or label.startswith("__") or label in _OWN_LABELS:
                raise ConfigError(
                    f"{label!r} can't be a label: use letters, digits and '_', and no name that the library uses"
                )
        metrics = source.metrics
        is_store = isinstance(metrics, StoreMetrics)
        identity = (*_own_labels(metrics).values(), *(f"{name}={labels[name]}" for name in sorted(labels)))
        with self._lock:
            others = [entry for entry in self._entries if entry.is_here() and entry.source() is not source]
            for entry in [entry for entry in others if entry.identity == identity]:
                if is_store:
                    raise ConfigError(
                        f"another store has the same labels ({', '.join(identity)}): give one of them other labels"
                    )
                others.remove(entry)
            self._entries = [*others, _Entry(ref(source), labels, identity, is_store)]

    def remove(self, source: Metered) -> None:
        """Watch it no longer; nothing where it was not watched."""
        with self._lock:
            self._entries = [entry for entry in self._entries if entry.source() not in (None, source)]

    def collect(self, instrument: Instrument) -> Iterator[tuple[Labels, Value]]:
        """Return the present values of ``instrument``, for each store or task that has it."""
        for metrics, engines, labels in self._readings(engines=instrument == ENGINE):
            yield from _values(instrument, metrics, engines, labels)

    def collect_all(self) -> dict[Instrument, list[tuple[Labels, Value]]]:
        """Return the present values of every instrument, with each store and task read once."""
        samples: dict[Instrument, list[tuple[Labels, Value]]] = {instrument: [] for instrument in INSTRUMENTS}
        for metrics, engines, labels in self._readings(engines=True):
            for instrument, values in samples.items():
                values.extend(_values(instrument, metrics, engines, labels))
        return samples

    def _readings(self, *, engines: bool) -> Iterator[tuple[StoreMetrics | TaskMetrics, Mapping[str, int], Labels]]:
        """Metrics of every task and store, with the figures of the store's engine, and labels."""
        with self._lock:
            self._entries = entries = [entry for entry in self._entries if entry.is_here()]
        for entry in entries:
            source = entry.source()
            if source is None:
                continue
            try:
                metrics = source.metrics
            except StoreClosedError:
                continue  # It is the parent's, and this is a child of a fork.
            figures: Mapping[str, object] = {}
            if engines and self._engines:
                # The store is being closed, or fails: its counts are still reported.
                with suppress(StoreError):
                    figures = source.engine_metrics()
            labels = {**_own_labels(metrics), **entry.labels}
            if isinstance(metrics, StoreMetrics):
                yield metrics, _numbers(figures), labels
                continue
            yield metrics, {}, labels
            for name, store in metrics.stores.items():
                yield store, _numbers(figures.get(name, {})), {**labels, **_own_labels(store)}


def _own_labels(metrics: StoreMetrics | TaskMetrics) -> dict[str, str]:
    if isinstance(metrics, StoreMetrics):
        return {"store": metrics.store, "backend": metrics.backend}
    return {"application": metrics.application, "task": metrics.task}


def _numbers(figures: object) -> Mapping[str, int]:
    return figures if isinstance(figures, Mapping) else {}


def _values(
    instrument: Instrument, metrics: StoreMetrics | TaskMetrics, engines: Mapping[str, int], labels: Labels
) -> Iterator[tuple[Labels, Value]]:
    if instrument.scope != (STORE if isinstance(metrics, StoreMetrics) else TASK):
        return
    value = engines if instrument == ENGINE else getattr(metrics, instrument.name, None)
    if isinstance(value, Mapping):
        assert instrument.measure.label is not None
        for key, number in value.items():
            yield {**labels, instrument.measure.label: str(key)}, number
    elif value is not None:
        yield labels, value
