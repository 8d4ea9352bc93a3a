"""Faults, as plain values that a trial injects."""

from harness.faults.fault import (
    FAULTS,
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
    from_json,
    has_flush_pressure,
    name_of,
    steps,
    to_json,
)
from harness.faults.words import failpoint_of, fault_text

__all__ = [
    "FAULTS",
    "Abort",
    "Fault",
    "Fence",
    "Kill",
    "KillAfter",
    "KillInRecovery",
    "Step",
    "Stop",
    "Timeout",
    "Truncate",
    "failpoint_of",
    "fault_text",
    "from_json",
    "has_flush_pressure",
    "name_of",
    "steps",
    "to_json",
]
