"""Faults, as plain values that a trial injects."""

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
    has_flush_pressure,
    steps,
)
from harness.faults.registry import FAULTS, from_json, name_of, to_json
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
