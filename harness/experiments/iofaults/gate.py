"""The rows of fault injection that fail a run: a broken promise, or no verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.checkers.prefix import Found

SILENT = (str(Found.LOST), str(Found.TORN), str(Found.PHANTOM))
"""Wrong content that was not detected."""


ENOUGH = 0.95
"""The share of runs in which the default profile is to detect each mutant."""
STRICT = "strict"
"""The persistence model that promises less than file systems in use do."""
HELD_STRICTLY = ("power", "DISK")
"""The fault and level at which an anomaly under ``strict`` fails the run: each name that a commit relies on must be
synced by its folder. Elsewhere an anomaly under ``strict`` is only reported."""


def is_wrong(row: Mapping[str, Any]) -> bool:
    """Return True if a row of kind "effect" or "mutant" fails the run.

    No verdict is always wrong.
    """
    if row["expected"]:
        return False
    if row["result"] == Found.HARNESS_ERROR or row["kind"] == "mutant":
        return True
    return row["variant"] != STRICT or (row["fault"], row["durability"]) == HELD_STRICTLY
