"""A typed store's content as plain pairs of bytes, the same on every backend: what end states are compared as."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from stores.records import RecordKind, Session, ValueAndTimestamp, Windowed


def plain_pairs(kind: RecordKind | None, view: Any) -> Iterator[tuple[bytes, bytes]]:
    """Every pair of ``view``, the read-only view of a store of ``kind``, None for bytes, which stay as they are.

    A key is text, such as ``JFK`` or, with its window or session, ``JFK@0-3600000``. A value is JSON without blanks,
    such as ``[1,2]`` or, with its timestamp, ``[1,2]@1357034400000``. Keys and values of the store must be JSON's.
    """
    with view.fetch_range(None, None) if isinstance(kind, Session) else view.all() as pairs:
        for key, value in pairs:
            yield (key, value) if kind is None else (_key(key), _value(value))


def _key(key: Any) -> bytes:
    return (f"{key.key}@{key.start_ms}-{key.end_ms}" if isinstance(key, Windowed) else str(key)).encode()


def _value(value: Any) -> bytes:
    if isinstance(value, ValueAndTimestamp):
        return b"%b@%d" % (_value(value.value), value.timestamp_ms)
    return json.dumps(value, separators=(",", ":")).encode()
