"""Typed stores over persistent stores of other packages: plain values stay plain, unless a store takes timestamps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stores import IsolationLevel
from stores.errors import ConfigError
from stores.interface import Timestamps
from stores.records import STR, KeyValue, TimestampedKeyValue, ValueAndTimestamp
from stores.tests.minimal_store import KINDS, Direct, InMemory, Transactional


class WithTimestamps(Transactional):
    """Says that it keeps timestamps."""

    @property
    def timestamps(self) -> Timestamps:
        return Timestamps(self)


@pytest.fixture
def plain(path: Path) -> Iterator[Direct]:
    with Transactional(path, name="plain") as store:
        yield store


def test_a_value_that_was_there_has_the_time_minus_one(plain: Direct) -> None:
    plain.put(b"old", b"value")
    plain.commit()
    times = TimestampedKeyValue(STR, STR).over(plain)
    assert times.get("old") == ("value", -1)
    assert times.get_many(["old", "none"]) == [("value", -1), None]
    assert list(times.all()) == list(times.reverse_prefix_scan("o")) == [("old", ValueAndTimestamp("value", -1))]
    view = times.read_only(IsolationLevel.READ_UNCOMMITTED)
    assert view.get("old") == ("value", -1)
    assert view.plain().get("old") == "value"


def test_a_write_leaves_its_time_out(plain: Direct) -> None:
    times = TimestampedKeyValue(STR, STR).over(plain)
    times.put("a", "one", 10)
    times.put_all([("b", "two", 20), ("c", "three", 30), ("c", None, 40)])
    assert times.put_if_absent("d", "", 50) is None
    assert list(plain.all()) == [(b"a", b"one"), (b"b", b"two"), (b"d", b"")]
    shown = [("a", "one"), ("b", "two"), ("d", "")]
    assert list(times.all()) == [(key, ValueAndTimestamp(value, -1)) for key, value in shown]
    assert times.delete("d") == ("", -1)
    times.delete_range("a", "a")
    assert list(plain.all()) == [(b"b", b"two")]


@pytest.mark.parametrize("kind", [WithTimestamps, InMemory])
def test_a_store_that_takes_timestamps_or_has_no_disk_keeps_them(path: Path, kind: type[Direct]) -> None:
    with kind(path, name="own") as store:
        times = TimestampedKeyValue(STR, STR).over(store)
        times.put("a", "one", 10)
        assert times.get("a") == ("one", 10)
        assert times.read_only(IsolationLevel.READ_UNCOMMITTED).get("a") == ("one", 10)
        assert store.get(b"a") == b"\0\0\0\0\0\0\0\x0aone"


@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_records_do_not_expire_where_that_cannot_be_kept(path: Path, kind: type[Direct]) -> None:
    with kind(path, name="own") as store:
        with pytest.raises(ConfigError):
            TimestampedKeyValue(STR, STR, ttl_ms=1).over(store)
        assert list(store.all()) == []


def test_values_with_serdes_need_nothing_of_a_store(plain: Direct) -> None:
    texts = KeyValue(STR, STR).over(plain)
    texts.put("a", "é")
    texts.commit()
    assert list(plain.all()) == [(b"a", "é".encode())]
    assert texts.get("a") == "é"


def test_every_lookup_and_scan_of_plain_values_has_the_time_minus_one(plain: Direct) -> None:
    for key in (b"a", b"ab", b"b"):
        plain.put(key, b"value of " + key)
    plain.commit()
    times = TimestampedKeyValue(STR, STR).over(plain)
    shown = [(key, ValueAndTimestamp(f"value of {key}", -1)) for key in ("a", "ab", "b")]
    for reads in (times, times.read_only(IsolationLevel.READ_UNCOMMITTED)):
        assert reads.get("ab") == ("value of ab", -1)
        assert reads.get_many(["a", "ab", "b"]) == [value for _, value in shown]
        assert list(reads.all()) == list(reads.range("a", "b")) == list(reads.prefix_scan("")) == shown
        assert list(reads.reverse_all()) == list(reads.reverse_range("a", "b")) == shown[::-1]
        assert list(reads.prefix_scan("a")) == list(reads.range(None, "ab")) == shown[:2]
        assert list(reads.reverse_prefix_scan("a")) == list(reads.reverse_range(None, "ab")) == shown[1::-1]
