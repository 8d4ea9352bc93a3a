"""The right to use a store: whether it is open, which thread writes, and which keys and values it accepts.

The store and its parts share one ``Access``, so that no part refers back to the store.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import RLock, get_ident
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from stores.errors import StoreClosedError, WrongThreadError
from stores.strategies.arguments import as_bytes
from stores.strategies.writer_thread import catch_up


class Access:
    """The checks of a store's calls. The writer is the thread that makes it."""

    def __init__(self, name: str, backend: str, max_key_bytes: int, max_value_bytes: int) -> None:
        self.name = name
        self._backend = backend
        self.max_key_bytes, self.max_value_bytes = max_key_bytes, max_value_bytes
        self.writer = get_ident()
        """The identifier of the writer's thread; 0 once the store is closed."""
        self.working = RLock()
        """Held while the writer's thread uses the engine for more than a lookup, and while the store is closed."""

    def check_open(self) -> None:
        """Raises: StoreClosedError."""
        if not self.writer:
            catch_up()
            raise StoreClosedError(f"store {self.name!r} is closed: open it again")

    def check_writer(self) -> None:
        """Check that this is the writer's thread. Raises: StoreClosedError, WrongThreadError."""
        if get_ident() != self.writer:
            self.check_open()
            raise WrongThreadError(
                f"store {self.name!r} is written by the thread that opened it: use read_only() on other threads"
            )

    def check_write(self, key: bytes, value: bytes | None) -> None:
        """Check a write. Raises: StoreClosedError, WrongThreadError, TypeError, ValueError."""
        self.check_writer()
        if not isinstance(key, bytes):
            as_bytes("key", key)
        if not key:
            raise ValueError("a key has at least one byte")
        if len(key) > self.max_key_bytes:
            raise ValueError(f"key of {len(key)} bytes: {self._backend} takes up to {self.max_key_bytes}")
        if value is not None:
            if not isinstance(value, bytes):
                as_bytes("value", value)
            if len(value) > self.max_value_bytes:
                raise ValueError(f"value of {len(value)} bytes: {self._backend} takes up to {self.max_value_bytes}")


class Accessed(Protocol):
    """A part of a store that has its access."""

    @property
    def access(self) -> Access:
        """The access of the store."""


Part = TypeVar("Part", bound=Accessed)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def while_open(
    method: Callable[Concatenate[Part, Arguments], Result],
) -> Callable[Concatenate[Part, Arguments], Result]:
    """Make a close on another thread wait until the writer's thread has finished ``method``.

    Raises: StoreClosedError if the store was closed first.
    """

    @wraps(method)
    def carried_out(self: Part, /, *args: Arguments.args, **named: Arguments.kwargs) -> Result:
        access = self.access
        # The check methods are called only if a check fails: each range delete and each list passes here.
        if get_ident() != access.writer:
            access.check_writer()
        with access.working:
            if not access.writer:
                access.check_open()
            return method(self, *args, **named)

    return carried_out
