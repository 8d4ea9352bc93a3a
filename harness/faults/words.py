"""The names of faults in reports."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from harness.faults.fault import (
    Abort,
    Fault,
    Fence,
    Kill,
    KillAfter,
    KillInRecovery,
    Step,
    Stop,
    Timeout,
    Truncate,
    name_of,
    steps,
)

_WORDS: Mapping[type[Fault], str] = MappingProxyType(
    {
        Stop: "closed cleanly",
        Abort: "transaction aborted",
        KillAfter: "killed inside a transaction",
        Timeout: "commit timed out",
        Fence: "taken over by another instance",
        Truncate: "changelog truncated",
    }
)


def fault_text(fault: Fault) -> str:
    """Return a fault in a few words without its counts, which trials of several seeds share."""
    if isinstance(fault, KillInRecovery):
        return f"killed {len(steps(fault))} times"
    words = _WORDS.get(type(fault), name_of(fault))
    if isinstance(fault, Abort):
        words += {"close": ", task closed", "kill": ", process killed", "go_on": ", task goes on"}[fault.then]
    if isinstance(fault, Truncate):
        words += {"close": " after a close", "kill": " after a kill"}[fault.then]
    pressure = isinstance(fault, Abort | KillAfter) and fault.flush_pressure
    return words + ", after background flushes" * pressure


def failpoint_of(fault: Fault) -> str:
    """Return the failpoint of a fault, or "". Of several kills it is that of the second."""
    about: Step = steps(fault)[1] if isinstance(fault, KillInRecovery) else fault
    return about.failpoint if isinstance(about, Kill) else ""
