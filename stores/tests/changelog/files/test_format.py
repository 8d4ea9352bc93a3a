"""The files of a version log hold what was written, in pieces of bounded size, however the records are mixed."""

from __future__ import annotations

from io import BytesIO

import pytest

from stores.changelog.files.format import (
    Header,
    StoreChanges,
    all_changes_in,
    batches_of,
    changes_in,
    encoded,
    read_header,
    records_of,
    write_records,
)

HEADER = Header("version", "0123456789abcdef", 0, 7, 6)
MANY = {b"%d" % number: None if number % 3 == 0 else b"v%d" % number for number in range(40_000)}
MIXED = {
    "a": StoreChanges({b"k": b"1", b"gone": None}, {"mark": b"m", "no mark": None}),
    "b": StoreChanges({b"k": b"2", b"empty": b""}),
    "only marks": StoreChanges(marks={"mark": b""}),
}


@pytest.mark.parametrize("changes", [{}, {"counts": StoreChanges(dict(MANY))}, MIXED])
def test_changes_are_read_as_they_were_written(changes: dict[str, StoreChanges]) -> None:
    header, reader = read_header(BytesIO(encoded(HEADER, changes)), "the file")
    assert header == HEADER
    assert all_changes_in(reader, "the file") == changes


@pytest.mark.parametrize("names", [("a", "b", "only marks"), ("b", "counts")])
def test_records_of_several_stores_in_one_piece_are_kept_apart(names: tuple[str, ...]) -> None:
    known = {**MIXED, "counts": StoreChanges({b"k": b"3"})}
    changes, target = {name: known[name] for name in names}, BytesIO()
    write_records(target, HEADER, records_of(changes))
    _, reader = read_header(BytesIO(target.getvalue()), "the file")
    assert list(changes_in(reader, "the file")) == [changes]


def test_large_values_are_written_in_several_pieces() -> None:
    changes = {"blobs": StoreChanges({b"%d" % number: bytes(1 << 20) for number in range(40)})}
    _, reader = read_header(BytesIO(encoded(HEADER, changes)), "the file")
    pieces = list(batches_of(reader, "the file"))
    assert len(pieces) == 3
    assert max(piece.nbytes for piece in pieces) <= 17 << 20
