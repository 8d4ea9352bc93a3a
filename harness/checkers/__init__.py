"""Checkers: pure functions from evidence to verdict. None shares code with the stores that it checks."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from harness.checkers.atomicity import atomicity
from harness.checkers.bounded_restore import bounded_restore
from harness.checkers.convergence import convergence
from harness.checkers.durability import durability
from harness.checkers.evidence import Evidence
from harness.checkers.fallback import fallback
from harness.checkers.outputs import outputs
from harness.checkers.uncommitted import uncommitted
from harness.checkers.verdict import Result, Verdict, worst

CHECKERS: Mapping[str, Callable[[Evidence], Verdict]] = MappingProxyType(
    {
        "atomicity": atomicity,
        "durability": durability,
        "uncommitted": uncommitted,
        "convergence": convergence,
        "outputs": outputs,
        "bounded_restore": bounded_restore,
        "fallback": fallback,
    }
)

__all__ = ["CHECKERS", "Evidence", "Result", "Verdict", "worst"]
