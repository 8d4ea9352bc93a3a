"""Stands before an object and counts how often anybody reads or writes an attribute of it."""

from __future__ import annotations

from typing import Any


class Touched:
    """Passes on to ``inner``; ``count`` is in its own ``vars``."""

    def __init__(self, inner: object) -> None:
        vars(self).update(inner=inner, count=0)

    def __getattr__(self, name: str) -> Any:
        vars(self)["count"] += 1
        return getattr(vars(self)["inner"], name)

    def __setattr__(self, name: str, value: object) -> None:
        vars(self)["count"] += 1
        setattr(vars(self)["inner"], name, value)
