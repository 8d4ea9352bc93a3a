"""Changelog records become what the store keeps: the value alone, or with the record's time before it.

A store whose description was refused goes on for its caller, and leaves its folder to the next opening.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stores import open_store
from stores.changelog.interface import Record
from stores.errors import StoreClosedError, StoreIncompatibleError, StoreLockedError
from stores.records import BYTES, INT64, STR, KeyValue, TimestampedKeyValue, ValueAndTimestamp, Window
from stores.records.expiry import STREAM_TIME
from stores.records.pieces import Pairs, in_pieces
from stores.records.record_kind import RecordKind, UnfitRecordError
from stores.records.segment_values import LOG_FORM, STREAMS_FORM


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
        copy = kind.over(store)
        assert list(copy.all()) == [(b"b", ValueAndTimestamp(b"2", 200)), (b"c", ValueAndTimestamp(b"3", 150))]
        # Nothing newer: stream time stays.
        converter = kind.converter(store)
        store.restore(converter.convert(Record(4, b"e", b"4", 100)), {}, marks=converter.marks())
        assert kind.over(store).get(b"e") is None


MINUTES = Window(key=STR, value=INT64, size_ms=60_000, retention_ms=3_600_000)
BYTES_MINUTES = Window(key=BYTES, value=INT64, size_ms=60_000, retention_ms=3_600_000)


@pytest.fixture(params=["rocksdb-indexed-batch", "lmdb-native", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    chosen: str = request.param
    with MINUTES.over(open_store(chosen, tmp_path / "store")) as store:
        store.put("a", 1, 60_000)
        store.commit()
    return chosen


def test_the_folder_of_a_refused_store_can_be_opened_again_at_once(backend: str, tmp_path: Path) -> None:
    with pytest.raises(StoreIncompatibleError):
        BYTES_MINUTES.over(open_store(backend, tmp_path / "store"))
    with MINUTES.over(open_store(backend, tmp_path / "store")) as store:
        assert store.fetch_one("a", 60_000) == 1


def test_a_refused_store_goes_on_until_its_folder_is_opened_again(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_store = open_store(backend, tmp_path / "store")
    with pytest.raises(StoreIncompatibleError):
        KeyValue(STR, INT64).over(other_store)
    assert other_store.is_open
    assert len(list(other_store.all())) == 1
    monkeypatch.chdir(tmp_path)
    with MINUTES.over(open_store(backend, "store")):
        with pytest.raises(StoreClosedError):
            other_store.all()


def test_a_store_that_was_not_refused_keeps_its_folder(backend: str, tmp_path: Path) -> None:
    with MINUTES.over(open_store(backend, tmp_path / "store")) as store:
        with pytest.raises(StoreLockedError):
            open_store(backend, tmp_path / "store")
        assert store.fetch_one("a", 60_000) == 1


def test_a_piece_ends_once_it_has_its_size() -> None:
    steps: list[Pairs] = [[(b"k", b"v")], [(b"l", b"v"), (b"m", None)], [(b"long", b"value")], [(b"n", None)]]
    assert list(in_pieces(steps, 4)) == [[*steps[0], *steps[1]], steps[2], steps[3]]
    assert list(in_pieces(steps[2:3], 4)) == [steps[2]]
    assert list(in_pieces([], 4)) == []


def test_a_key_that_ends_with_zero_bytes_shows_no_form_by_itself() -> None:
    """It may be one of Kafka Streams for the time 0, or none of a window."""
    kind = Window(BYTES, BYTES, size_ms=10, retention_ms=60_000)
    at_zero = Record(1, b"k" + bytes(12), b"v", 0)
    with pytest.raises(UnfitRecordError):
        converted(kind, at_zero)
    at_five = Record(0, b"k" + bytes(7) + b"\5" + bytes(4), b"v", 5)
    assert converted(kind, at_five, at_zero) == [
        (bytes(8) + b"k\0" + bytes(7) + b"\5", b"v"),
        (bytes(8) + b"k\0" + bytes(8), b"v"),
    ]


@pytest.mark.parametrize("form", [None, STREAMS_FORM])
def test_a_window_s_record_has_expired_by_the_time_in_its_key_in_the_form_of_the_changelog(form: bytes | None) -> None:
    kind = Window(BYTES, BYTES, size_ms=10, retention_ms=60_000)
    with open_store("memory-indexed-batch", "unused") as store:
        store.restore([], {}, marks={LOG_FORM: form, STREAM_TIME: (100_000).to_bytes(8, "big")})
        is_expired = kind.expired_records(store)
        ours, theirs = (
            [is_expired(begin + time_ms.to_bytes(8, "big") + end) for time_ms in (40_000, 40_001)]
            for begin, end in ((b"k\0", b""), (b"k", bytes(4)))
        )
    assert (ours, theirs) == ([form is None, False], [form is not None, False])
