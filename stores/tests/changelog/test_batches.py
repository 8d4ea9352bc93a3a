"""Record batches: all records come back, under their offsets, in a layout that another program can read."""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import pytest

from stores.changelog import batches
from stores.changelog.batches import BYTES_MAX, RECORDS_MAX, RecordBatch, batch_number, rows_of, rows_with
from stores.changelog.interface import Record, RecordColumns
from stores.tests.changelog.plain_batches import decoded

FIRST = 2**46 - 3_000
NUMBER = batch_number(2**17 - 1, FIRST)
"""The last partition that a changelog may have, near its last offset."""


class Untrue(bytes):
    """Bytes that are false, as a subclass may be."""

    def __bool__(self) -> bool:
        return False


def text(length: int | None) -> bytes | None:
    return None if length is None else b"x" * length


def records(keys: list[bytes | None], values: list[bytes | None], times: list[int], headers: list[Any]) -> list[Record]:
    return [Record(FIRST + at, *fields) for at, fields in enumerate(zip(keys, values, times, headers, strict=True))]


def in_columns(some: list[Record]) -> RecordColumns:
    return RecordColumns(*map(list, zip(*some, strict=True)))


def in_json(content: bytes | None) -> str | None:
    return None if content is None else content.decode("latin-1")


def lengths(*values: int | None) -> list[Record]:
    """Records whose values have these lengths."""
    count = len(values)
    return records([b"k"] * count, list(map(text, values)), [5] * count, [()] * count)


def times(*timestamps_ms: int) -> list[Record]:
    count = len(timestamps_ms)
    return records([b"k"] * count, [b"v"] * count, list(timestamps_ms), [()] * count)


def random_records(seed: int, count: int) -> list[Record]:
    random = Random(seed)
    some = [(), (("h", b"\xff"),), (("h", b""), ("\u0100", b"1"), ("none", None))]
    return records(
        [random.choice([None, random.randbytes(random.randrange(9))]) for _ in range(count)],
        [random.choice([None, b"", random.randbytes(random.randrange(300))]) for _ in range(count)],
        [random.randrange(-1, 2 ** random.randrange(64)) for _ in range(count)],
        [random.choice(some) for _ in range(count)],
    )


CASES = {
    "one record": lengths(3),
    "one of nothing": lengths(None),
    "nothing but nulls": lengths(None, None),
    "empty and null": lengths(0, None, 0),
    "empty": lengths(0, 0),
    "equal lengths": lengths(300, 300),
    "a null beside 255 bytes": lengths(255, None),
    **{f"{length:,} bytes": lengths(1, length) for length in (255, 256, 65_535, 65_536)},
    "no times": times(-1, -1),
    "times and none": times(2**63 - 1, -1),
    **{f"times {span:,} ms apart": times(7 + span, 7) for span in (255, 256, 65_536, 2**32 - 1, 2**32)},
    "bytes that are false": records([Untrue(b"k"), b"k"], [Untrue(b"v"), None], [5] * 2, [()] * 2),
    "headers": records([b"k"] * 3, [b"v"] * 3, [5] * 3, [(("h", b"1"),), (("h", b"1"),), ()]),
    "random": random_records(28, 400),
    "as many as a batch may have": random_records(29, RECORDS_MAX),
    "more": random_records(30, RECORDS_MAX + 1),
    "large ones": lengths(*[BYTES_MAX // 3] * 10),
    "one too large": lengths(3, 2 * BYTES_MAX, 3),
}


def fields(expected: list[Record]) -> list[Any]:
    return [field for record in expected for field in (*record[1:4], record.headers or None)]


@pytest.mark.parametrize("expected", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_records_come_back_as_they_were(
    expected: list[Record], byteorder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if byteorder == "big":
        # As on a machine of the other order, apart from the order itself: what was packed there is swapped.
        monkeypatch.setattr(sys, "byteorder", byteorder)
    rows = list(rows_of(NUMBER, 7, fields(expected)))
    assert [record for row in rows for record in RecordBatch(*row).columns().records()] == expected
    assert {row.transaction for row in rows} == {7}


@pytest.mark.parametrize("expected", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("removed", ["none", "each third", "all but the last"])
def test_a_program_without_the_library_reads_a_batch_with_and_without_gaps(
    expected: list[Record], removed: str
) -> None:
    rest = {"none": expected, "each third": [r for r in expected if r.offset % 3], "all but the last": expected[-1:]}
    appended = [rows_of(NUMBER, 7, fields(expected))] if removed == "none" else []
    for rows in (*appended, rows_with(NUMBER, 7, in_columns(rest[removed]))):
        assert [record for row in rows for record in decoded(*row)] == [
            (offset, time_ms, key, value, [[name, in_json(content)] for name, content in headers])
            for offset, key, value, time_ms, headers in rest[removed]
        ]


@pytest.mark.parametrize("expected", CASES.values(), ids=CASES.keys())
def test_a_batch_is_bounded_in_records_and_in_bytes_unless_it_is_one_record(expected: list[Record]) -> None:
    for rows in (rows_of(NUMBER, 0, fields(expected)), rows_with(NUMBER, 0, in_columns(expected[::2]))):
        for row in rows:
            assert row.num_records <= RECORDS_MAX
            assert row.num_records == 1 or len(row.content) <= BYTES_MAX


@pytest.mark.parametrize("expected", [CASES["headers"], lengths(1, None), times(5, 6), lengths(4)])
def test_each_bit_of_a_row_is_in_its_checksum(expected: list[Record]) -> None:
    for row in (*rows_of(NUMBER, 7, fields(expected)), *rows_with(NUMBER, 7, in_columns([expected[0], expected[-1]]))):
        for name in ("number", "num_records", "transaction", "time_ms"):
            for bit in range(63):
                with pytest.raises(batches.UnsoundBatchError):
                    RecordBatch(*row._replace(**{name: getattr(row, name) ^ 1 << bit}))
        for bit in range(8 * len(row.content)):
            damaged = bytearray(row.content)
            damaged[bit // 8] ^= 1 << bit % 8
            with pytest.raises(batches.UnsoundBatchError):
                RecordBatch(*row._replace(content=bytes(damaged)))


def test_a_batch_takes_no_more_bytes_than_it_needs() -> None:
    """Three quarters of the bytes are those of the keys and values: as many records as a small commit has."""
    [row] = rows_of(
        NUMBER, 0, fields(records([b"%09d" % at for at in range(100)], [b"123"] * 100, [5] * 100, [()] * 100))
    )
    assert len(row.content) == 4 + 2 + 1 + 1 + 100 * 12
    [row] = rows_of(NUMBER, 0, fields(lengths(3)))
    assert len(row.content) == 4 + 2 + 1 + 1 + 1 + 3
