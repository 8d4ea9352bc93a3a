"""The ways to keep the state of a streaming query that are compared: of this library, and of Spark itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from stores.registry import backend_named


@dataclass(frozen=True)
class StatefulSubject:
    """One way. Spark's own have no ``backend``."""

    name: str
    called: str
    """The function that is called, and for which piece of the data."""
    backend: str | None = None

    @property
    def full_backend(self) -> str | None:
        """The full name of the backend."""
        return None if self.backend is None else backend_named(self.backend).name


BY_RECORD, IN_ARROW = "each record", "Arrow"
"""The functions of ``stateful``: one reads and writes the state for each record, one counts in Arrow first."""
APPLY, PANDAS, ROWS, JVM = (
    "applyInPandasWithState",
    "transformWithStateInPandas",
    "transformWithState",
    "groupBy-count",
)
_ENGINES = ("rocksdb", "lmdb", "sqlite")
_ALL = (
    *(StatefulSubject(f"stateful-{engine}", f"`stateful`, {BY_RECORD}", engine) for engine in _ENGINES),
    *(StatefulSubject(f"stateful-{engine}-arrow", f"`stateful`, {IN_ARROW}", engine) for engine in _ENGINES),
    StatefulSubject(ROWS, "Python, rows of each key"),
    StatefulSubject(PANDAS, "Python, a DataFrame for each key"),
    StatefulSubject(APPLY, "Python, a DataFrame for each key"),
    StatefulSubject(JVM, "no Python"),
)
SUBJECTS: Mapping[str, StatefulSubject] = MappingProxyType({subject.name: subject for subject in _ALL})
OURS = "stateful-rocksdb"
"""The subject against which the others are compared: it touches the state for each record, as Spark's do."""
OURS_IN_ARROW = "stateful-rocksdb-arrow"
