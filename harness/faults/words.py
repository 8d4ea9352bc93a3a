"""A fault as reports name it."""

from __future__ import annotations

from harness.faults.fault import Abort, Fault, Kill, KillAfter, KillInRecovery, Step, Stop, steps
from harness.faults.registry import name_of


def fault_text(fault: Fault) -> str:
    """A fault in a few words that leave out its counts, so that trials of several seeds share them."""
    if isinstance(fault, KillInRecovery):
        return f"killed {len(steps(fault))} times"
    words = {Stop: "closed cleanly", Abort: "transaction aborted", KillAfter: "killed inside a transaction"}.get(
        type(fault), name_of(fault)
    )
    if isinstance(fault, Abort):
        words += {"close": ", task closed", "kill": ", process killed", "go_on": ", task goes on"}[fault.then]
    pressure = isinstance(fault, Abort | KillAfter) and fault.flush_pressure
    return words + ", after background flushes" * pressure


def failpoint_of(fault: Fault) -> str:
    """The failpoint that a fault is about, of several kills that of the second; empty where there is none."""
    about: Step = steps(fault)[1] if isinstance(fault, KillInRecovery) else fault
    return about.failpoint if isinstance(about, Kill) else ""
