"""A proxy for a store of a task, while an upgrade may replace the store between two commits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class StoreProxy:
    """A proxy that looks up each attribute in the object that ``present`` returns at that time.

    A reference that a function or a reader keeps works before and after the swap.
    """

    def __init__(self, present: Callable[[], Any]) -> None:
        self._present = present

    def __getattr__(self, name: str) -> Any:
        return getattr(self._present(), name)
