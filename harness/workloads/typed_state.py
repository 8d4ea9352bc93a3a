"""A typed store's content as plain pairs of bytes, equal on every backend, for the comparison of end states."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from stores.records import RecordKind, Session, ValueAndTimestamp, Windowed


def plain_pairs(kind: RecordKind | None, view: Any) -> Iterator[tuple[bytes, bytes]]:
    """Yield every pair of ``view``, a view of a store of ``kind``; None is a store of bytes, left unchanged.

    A key becomes text, such as ``JFK`` or, with its window or session, ``JFK@0-3600000``. A value becomes JSON without
    blanks, such as ``[1,2]`` or, with its timestamp, ``[1,2]@1357034400000``. Values of the store must be JSON values.
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
