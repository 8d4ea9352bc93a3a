"""Counters that a task updates on its own thread. ``stores.metrics`` is read from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stores.metrics import none_early
from stores.strategies.counters import Counters


@dataclass(slots=True)
class TaskCounters(Counters):
    """The counters of a task."""

    rollback_records_total: int = 0
    punctuate_total: int = 0
    skipped_total: int = 0
    dead_letter_total: int = 0
    early_commit_total: dict[str, int] = field(default_factory=none_early)

    def committed_early(self, cause: str) -> None:
        """Count a commit that came before the interval was up, under its ``EarlyCommitCause``."""
        self.early_commit_total[cause] += 1

    def rolled_back(self, records: int) -> None:
        """Count a transaction with ``records`` input records that was rolled back."""
        self.rollback_total += 1
        self.rollback_records_total += records

    def read(self) -> dict[str, Any]:
        """Return the fields of ``TaskMetrics`` that are counted here."""
        return {
            **Counters.read(self),
            "rollback_records_total": self.rollback_records_total,
            "punctuate_total": self.punctuate_total,
            "skipped_total": self.skipped_total,
            "dead_letter_total": self.dead_letter_total,
            "early_commit_total": dict(self.early_commit_total),
        }
