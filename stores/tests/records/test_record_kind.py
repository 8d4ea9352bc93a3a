"""Changelog records become what the store keeps: the value alone, or with the record's time before it."""

from __future__ import annotations

from stores import open_store
from stores.changelog.interface import Record
from stores.records import BYTES, KeyValue, TimestampedKeyValue, ValueAndTimestamp
from stores.records.record_kind import RecordKind


def converted(kind: RecordKind, *records: Record) -> list[tuple[bytes, bytes | None]]:
    with open_store("memory-indexed-batch", "unused") as store:
        converter = kind.converter(store)
        return [pair for record in records for pair in converter.convert(record)]


def test_a_plain_value_stays_as_it_is() -> None:
    records = [Record(0, b"a", b"1", 5), Record(1, b"b", None, 6), Record(2, None, b"no key", 7)]
    assert converted(KeyValue(BYTES, BYTES), *records) == [(b"a", b"1"), (b"b", None)]


def test_a_timestamped_value_gets_the_time_of_its_record_and_a_tombstone_stays_one() -> None:
    records = [Record(0, b"a", b"1", 5), Record(1, b"b", None, 6), Record(2, None, b"", 7), Record(3, b"c", b"", -1)]
    expected = [(b"a", b"\0\0\0\0\0\0\0\x051"), (b"b", None), (b"c", b"\xff" * 8)]
    assert converted(TimestampedKeyValue(BYTES, BYTES), *records) == expected


def test_what_is_restored_is_what_was_put() -> None:
    kind = TimestampedKeyValue(BYTES, BYTES, ttl_ms=100)
    records = [
        Record(0, b"a", b"1", 5),
        Record(1, b"b", b"2", 200),
        Record(2, b"c", b"3", 150),
        Record(3, b"d", None, 900),
    ]
    with open_store("memory-indexed-batch", "unused") as store:
        kind.prepare(store)
        converter = kind.converter(store)
        store.restore(
            [pair for record in records[:1] for pair in converter.convert(record)], {}, marks=converter.marks()
        )
        converter = kind.converter(store)
        store.restore(
            [pair for record in records[1:] for pair in converter.convert(record)], {}, marks=converter.marks()
        )
        restored = kind.over(store)
        assert list(restored.all()) == [(b"b", ValueAndTimestamp(b"2", 200)), (b"c", ValueAndTimestamp(b"3", 150))]
        # Nothing newer: stream time stays.
        converter = kind.converter(store)
        store.restore(converter.convert(Record(4, b"e", b"4", 100)), {}, marks=converter.marks())
        assert kind.over(store).get(b"e") is None
