"""The durability levels in the order of a report: the weakest promise first."""

from __future__ import annotations

LEVELS = ("CHANGELOG", "PROCESS", "DISK")
MEANING = """\
| level | a commit survives by itself |
| --- | --- |
| CHANGELOG | nothing: after a crash the store is at some earlier commit, whole, and the changelog's tail is replayed |
| PROCESS | a killed process |
| DISK | power loss, by fsync in every commit |
"""
"""The levels as a table in Markdown."""


def level_order(level: str) -> tuple[int, str]:
    """Return the sort key of a level: the weakest promise first, unknown levels last."""
    return (LEVELS.index(level) if level in LEVELS else len(LEVELS)), level
