"""The marks of a store, of those stores that keep any."""

from __future__ import annotations

from typing import Any


def marked(store: Any) -> Any:
    """``store``, or where it keeps no marks, a stand-in that has none."""
    return store if hasattr(store, "mark") else _Unmarked()


class _Unmarked:
    keeps_marks = False

    def mark(self, name: str) -> bytes | None:
        return None
