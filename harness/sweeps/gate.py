"""Which trials below the process fail a run: a promise was broken, or there is no verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.checkers.prefix import Found

SILENT = (str(Found.LOST), str(Found.TORN), str(Found.PHANTOM))
"""Wrong content that nobody noticed."""


ENOUGH = 0.95
"""The share of its runs in which the default profile is to find each mutant."""
STRICT = "strict"
"""The folder model that asks for more than file systems in use do."""
HELD_STRICTLY = ("power", "DISK")
"""The fault and level at which it fails a run: there each name that a commit relies on is to be synced by its folder.
Elsewhere it is only reported."""


def is_wrong(row: Mapping[str, Any]) -> bool:
    """Whether a row of kind "effect" or "mutant" fails the run.

    No verdict is always wrong.
    """
    if row["expected"]:
        return False
    if row["result"] == Found.HARNESS_ERROR or row["kind"] == "mutant":
        return True
    return row["variant"] != STRICT or (row["fault"], row["durability"]) == HELD_STRICTLY
