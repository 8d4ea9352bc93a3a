"""Checks of arguments whose wrong type Python would only refuse further inside, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from stores.errors import ReadOnlyViewError

WRITES = frozenset(
    {"put", "put_all", "put_if_absent", "put_with_marks", "delete", "delete_range", "remove"}
    | {"set_mark", "commit", "rollback", "restore", "flush", "advance_position"}
)
"""The names of the methods of a store that a view does not have."""
TIME_BOUND_MS = 1 << 62
"""Above every time, in milliseconds since the Unix epoch."""


def check_pairs(pairs: object) -> None:
    """Check the argument of a ``put_all``: a mapping yields its keys alone. Raises: TypeError."""
    if isinstance(pairs, Mapping):
        raise TypeError(f"put_all takes pairs of a key and a value, not a {type(pairs).__name__}: pass its items()")
    if not isinstance(pairs, Iterable) or isinstance(pairs, str | bytes):
        raise TypeError(
            f"put_all takes pairs of a key and a value, not {type(pairs).__name__}: write put_all([(key, value)])"
        )


def check_pair(pair: object) -> None:
    """Check one element of the argument of a ``put_all``. Raises: TypeError."""
    if not isinstance(pair, Sequence) or isinstance(pair, str | bytes) or len(pair) != 2:
        raise TypeError(f"put_all takes pairs of a key and a value, not {type(pair).__name__}: write [(key, value)]")


def check_keys(keys: object) -> None:
    """Check the argument of a ``get_many``: bytes or text would be taken for its elements. Raises: TypeError."""
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise TypeError(f"get_many takes a list of keys, not {type(keys).__name__}: write get_many([key])")


def check_offsets(offsets: object) -> None:
    """Check the offsets of a commit or restore. Raises: TypeError."""
    if not isinstance(offsets, Mapping):
        raise TypeError(
            f"changelog offsets are a mapping of TopicPartition to offset, not {type(offsets).__name__}: write "
            "commit({TopicPartition('topic', 0): 41})"
        )


def check_time_ms(what: str, given: object) -> int:
    """Return ``given`` if it is a time: an int from 0 to below 2**62, in ms. Raises: TypeError, ValueError."""
    if type(given) is not int:
        raise TypeError(f"{what} is an int, in milliseconds, not {type(given).__name__}")
    if not 0 <= given < TIME_BOUND_MS:
        raise ValueError(f"{what} is 0 or more, and below 2**62 milliseconds, not {given}")
    return given


class OnlyReads:
    """A base of views. The call of a method that writes raises an error that says where to write."""

    def __getattr__(self, name: str) -> NoReturn:
        if name in WRITES:
            raise ReadOnlyViewError(
                f"a view only reads, it has no {name}(): write to the store itself, on the thread that opened it"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
