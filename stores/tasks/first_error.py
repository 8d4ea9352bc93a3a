"""A collector of the first error: all steps are taken, even after errors, and the first error is raised at the end."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class FirstError:
    """Steps, one for each ``step``. ``reraise`` raises the first exception of them; a BaseException is not held back.

    Source: Kafka Streams, ``ProcessorStateManager``: a store that fails does not keep the others from their part.
    """

    def __init__(self) -> None:
        self._first: Exception | None = None

    @property
    def failed(self) -> bool:
        """True if a step has raised an exception so far."""
        return self._first is not None

    def step(self) -> Self:
        """Take a step in a ``with`` block, and keep the error that it raises."""
        return self

    def __enter__(self) -> None:
        """Do nothing: a commit of a task takes a step for each store, so this must be cheap."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        if self._first is None:
            self._first = error
        elif error is not self._first:
            self._first.add_note(f"Then {type(error).__name__} was raised, too: {error}")
        return True

    def reraise(self) -> None:
        """Raise the first error, if there was one."""
        if self._first is not None:
            raise self._first
