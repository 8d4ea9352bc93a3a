"""Checks of arguments whose wrong type Python would only refuse further inside, or not at all."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import UnionType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from stores.errors import ConfigError, ReadOnlyViewError

Headers = tuple[tuple[str, bytes | None], ...]
"""The headers of a record: names, which may repeat, and contents, None for a header of Kafka without one."""
Key = TypeVar("Key")
Value = TypeVar("Value")
_BYTES = frozenset({bytes})

WRITES = frozenset(
    {"put", "put_all", "put_many", "put_if_absent", "put_with_marks", "update", "merge", "remove"}
    | {"delete", "delete_many", "delete_range", "set_mark", "commit", "rollback", "restore", "flush"}
    | {"advance_position"}
)
"""The names of the methods of a store that a view does not have."""
TIME_BOUND_MS = 1 << 62
"""Above every time, in milliseconds since the Unix epoch."""


def check_type(given: object, kind: type | UnionType, rule: str, advice: str = "") -> None:
    """Check the type of an argument; ``rule`` says what it is. A bool is no number. Raises: TypeError."""
    if not isinstance(given, kind) or (isinstance(given, bool) and kind is not bool):
        raise TypeError(f"{rule}, not {type(given).__name__}{advice}")


def check_number(name: str, given: object, rule: str, least: int, most: float = sys.float_info.max) -> None:
    """Check a whole number from ``least`` to ``most``, for which ``rule`` stands. Raises: TypeError, ConfigError."""
    check_type(given, int, f"{name} is an int")
    _check_range(name, given, rule, least, most)


def check_seconds(name: str, given: object, rule: str = "0 or more seconds") -> None:
    """Check a finite number of seconds, 0 or more. Raises: TypeError, ConfigError."""
    check_type(given, int | float, f"{name} is a number of seconds")
    _check_range(name, given, rule, 0, sys.float_info.max)


def check_share(name: str, given: object) -> None:
    """Check a finite number above 0. Raises: TypeError, ConfigError."""
    check_type(given, int | float, f"{name} is a number")
    _check_range(name, given, "a number above 0", sys.float_info.min, sys.float_info.max)


def _check_range(name: str, given: object, rule: str, least: float, most: float) -> None:
    if not least <= given <= most:  # type: ignore[operator]
        raise ConfigError(f"{name} is {rule}, not {given}")


def as_bytes(what: str, given: object) -> bytes:
    """Return ``given`` if it is bytes. Raises: TypeError."""
    if not isinstance(given, bytes):
        raise TypeError(f"a {what} is bytes, not {type(given).__name__}")
    return given


def check_pairs(pairs: object) -> None:
    """Check the argument of a ``put_all``: a mapping yields its keys alone. Raises: TypeError."""
    if isinstance(pairs, Mapping):
        raise TypeError(
            f"put_all takes pairs of a key and a value, not a {type(pairs).__name__}: pass its items(), or call "
            "put_many"
        )
    if not isinstance(pairs, Iterable) or isinstance(pairs, str | bytes):
        raise TypeError(f"writes are pairs of a key and a value, not {type(pairs).__name__}: write [(key, value)]")


def check_pair(pair: object) -> None:
    """Check one element of the argument of a ``put_all``. Raises: TypeError."""
    # Nearly all are tuples, and a check of an abstract class takes ten times as long.
    is_sequence = type(pair) is tuple or (isinstance(pair, Sequence) and not isinstance(pair, str | bytes))
    if not is_sequence or len(cast(Sequence[object], pair)) != 2:
        raise TypeError(f"writes are pairs of a key and a value, not {type(pair).__name__}: write [(key, value)]")


def timed_columns(records: Any, *, headers: bool = False) -> list[list[Any]]:
    """Return the keys, the values and the times of the argument of a ``put_all``, with ``headers`` also these.

    A record may leave its headers out. Raises: TypeError.
    """
    # Outside of the try: an error of the caller's iterator is none of its records.
    is_listed = isinstance(records, Iterable) and not isinstance(records, Mapping)
    listed: list[Any] = list(records) if is_listed else [None]
    with suppress(TypeError, KeyError):
        if headers:
            listed = [(*record, ()) if len(record) == 3 else record for record in listed]
        if set(map(len, listed)) <= {3 + headers}:
            return [[record[place] for record in listed] for place in range(3 + headers)]
    form = "(key, value, timestamp_ms, headers)" if headers else "(key, value, timestamp_ms)"
    raise TypeError(f"put_all takes such a tuple for each record: write [{form}]")


def as_pairs(pairs: Mapping[Key, Value] | Iterable[tuple[Key, Value]]) -> Iterable[tuple[Key, Value]]:
    """Return the pairs of the argument of a ``put_many``: a mapping's, or themselves."""
    return pairs.items() if isinstance(pairs, Mapping) else pairs


def check_keys(keys: object, call: str = "get_many", form: str = "key") -> None:
    """Check the argument of ``call``: bytes or text would be taken for its elements. Raises: TypeError."""
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise TypeError(f"{call} takes a list, not {type(keys).__name__}: write {call}([{form}])")


def as_key_list(keys: Iterable[bytes]) -> list[bytes]:
    """Return ``keys`` if each is bytes. Raises: TypeError."""
    listed = list(keys)
    # Without bytecode for each key; a subclass of bytes takes the longer way.
    return listed if _BYTES.issuperset(map(type, listed)) else [as_bytes("key", key) for key in listed]


def check_parts(parts: object, call: str, form: str) -> None:
    """Check an element of the argument of ``call``: a tuple like ``form``. Raises: TypeError."""
    if not isinstance(parts, tuple) or len(parts) != form.count(",") + 1:
        raise TypeError(f"{call} takes a list of {form}, not of {type(parts).__name__} {parts!r}")


def check_lengths(keys: Sequence[object], **columns: Sequence[object]) -> None:
    """Check that there is one element of each column for each key. Raises: TypeError, ValueError."""
    for name, column in {"keys": keys, **columns}.items():
        if not isinstance(column, Sequence) or isinstance(column, str | bytes):
            raise TypeError(f"{name} is a list, not {type(column).__name__}")
        if len(column) != len(keys):
            raise ValueError(f"{name} has {len(column):,} elements for {len(keys):,} keys")


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


def checked_headers(headers: Headers) -> Headers:
    """Return headers as a tuple of pairs.

    Raises: TypeError unless they are pairs of a name (str) and bytes or None; ValueError for a name that can't be
    encoded.
    """
    if headers == ():
        return ()
    if isinstance(headers, Mapping):
        raise TypeError("headers are pairs of a str and bytes, not a mapping: pass its items()")
    try:
        pairs = tuple((name, content) for name, content in headers)
    except (TypeError, ValueError) as error:
        raise TypeError(f"headers are pairs of a str and bytes, such as (('name', b'text'),): {error}") from error
    for name, content in pairs:
        if not isinstance(name, str) or not isinstance(content, bytes | None):
            raise TypeError("a header is a pair of a str, and bytes or None")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"the name {name!r} of a header can't be encoded in UTF-8: {error.reason}") from error
    return pairs


def check_function(name: str, function: object, *arguments: str) -> None:
    """Check that ``function`` can be called with so many arguments. Raises: TypeError.

    A callable whose signature Python does not know, such as one written in C, is accepted.
    """
    wanted = f"{name} is a function of {' and '.join(arguments)}"
    if not callable(function):
        raise TypeError(f"{wanted}, not {type(function).__name__}")
    called: Any = function
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise TypeError(f"{wanted}; this one does not take them: {error}") from None


class OnlyReads:
    """A base of views. The call of a method that writes raises an error that says where to write."""

    if not TYPE_CHECKING:  # A checker of types would take every name for an attribute.

        def __getattr__(self, name: str) -> NoReturn:
            if name in WRITES:
                raise ReadOnlyViewError(
                    f"a view only reads, it has no {name}(): write to the store itself, on the thread that opened it"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
