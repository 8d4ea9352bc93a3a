"""Which trials below the process fail a run: a promise was broken, or there is no verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.checkers.prefix import Found

SILENT = (str(Found.LOST), str(Found.TORN), str(Found.PHANTOM))
"""Wrong content that nobody noticed."""


ENOUGH = 0.95
"""The share of its runs in which the default profile is to find each mutant."""
FAILS_NO_RUN = "strict"
"""The folder model that is only reported: it asks for more than file systems in use do."""


def is_wrong(row: Mapping[str, Any]) -> bool:
    """Whether a row of kind "effect" or "mutant" fails the run.

    No verdict is always wrong.
    """
    if row["expected"]:
        return False
    if row["result"] == Found.HARNESS_ERROR or row["kind"] == "mutant":
        return True
    return bool(row["variant"] != FAILS_NO_RUN)
