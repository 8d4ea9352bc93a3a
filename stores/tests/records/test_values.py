"""A value with its time, as callers hold it: made by them, or found in a store."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from stores import open_store
from stores.records import BYTES, STR, TimestampedKeyValue, ValueAndTimestamp


def found(value: bytes, timestamp_ms: int) -> ValueAndTimestamp[bytes]:
    """As a store shows it."""
    with TimestampedKeyValue(STR, BYTES).over(open_store("memory-indexed-batch", "unused")) as store:
        store.put("key", value, timestamp_ms)
        shown = store.get("key")
    assert shown is not None
    return shown


@pytest.mark.parametrize("make", [found, ValueAndTimestamp])
def test_a_value_with_its_time_is_compared_unpacked_and_copied_by_both(make: Any) -> None:
    made = make(b"v", 5)
    assert isinstance(made, ValueAndTimestamp)
    assert (made.value, made.timestamp_ms) == (b"v", 5)
    value, timestamp_ms = made
    assert (value, timestamp_ms) == (b"v", 5)
    assert made == ValueAndTimestamp(b"v", 5) == found(b"v", 5) == (b"v", 5)
    assert hash(made) == hash(ValueAndTimestamp(b"v", 5)) == hash(found(b"v", 5)) == hash((b"v", 5))
    assert made not in (ValueAndTimestamp(b"v", 6), found(b"w", 5), b"v", 5, (b"v", 6))
    assert repr(made) == "ValueAndTimestamp(value=b'v', timestamp_ms=5)"
    assert pickle.loads(pickle.dumps(made)) == copy.copy(made) == made


@pytest.mark.parametrize("make", [found, ValueAndTimestamp])
def test_a_value_with_its_time_does_not_change(make: Any) -> None:
    for name in ("value", "timestamp_ms", "other"):
        with pytest.raises(AttributeError):
            setattr(make(b"v", 5), name, 1)
