"""The files of a version log hold what was written, in pieces of bounded size, however the records are mixed."""

from __future__ import annotations

from contextlib import suppress
from io import BytesIO

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

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
from stores.errors import ChangelogError

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
    stores = {**MIXED, "counts": StoreChanges({b"k": b"3"})}
    changes, target = {name: stores[name] for name in names}, BytesIO()
    write_records(target, HEADER, records_of(changes))
    _, reader = read_header(BytesIO(target.getvalue()), "the file")
    assert list(changes_in(reader, "the file")) == [changes]


def test_large_values_are_written_in_several_pieces() -> None:
    changes = {"blobs": StoreChanges({b"%d" % number: bytes(1 << 20) for number in range(40)})}
    _, reader = read_header(BytesIO(encoded(HEADER, changes)), "the file")
    pieces = list(batches_of(reader, "the file"))
    assert len(pieces) == 3
    assert max(piece.nbytes for piece in pieces) <= 17 << 20


some_bytes = st.sampled_from([b"a", b"b", b"", b"\xff", b"a\xe4"])


@given(
    rows=st.lists(st.tuples(some_bytes, st.booleans(), some_bytes, st.none() | some_bytes), max_size=4),
    nulls=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=2),
)
@example(rows=[(b"a", False, b"a", b"a")], nulls={(0, 0)})
@example(rows=[(b"a", False, b"a", b"a")], nulls={(1, 0)})
@example(rows=[(b"a", False, b"a", b"a")], nulls={(2, 0)})
def test_records_of_any_bytes_are_read_or_refused(
    rows: list[tuple[bytes, bool, bytes, bytes | None]], nulls: set[tuple[int, int]]
) -> None:
    """Names of stores and marks may be no UTF-8: Arrow does not look when it reads."""
    columns = [
        pa.array(
            [None if (at, number) in nulls else row[at] for number, row in enumerate(rows)],
            pa.bool_() if at == 1 else pa.binary(),
        )
        for at in range(4)
    ]
    columns[0] = columns[0].view(pa.string())
    batch = pa.record_batch(columns, names=["store", "mark", "key", "value"])
    target = BytesIO()
    with pa.ipc.new_stream(target, batch.schema) as writer:
        writer.write_batch(batch)
    with suppress(ChangelogError):
        changes = all_changes_in(pa.ipc.open_stream(target.getvalue()), "the file")
        assert all(isinstance(store, str) for store in changes)
        assert all(isinstance(key, bytes) for each in changes.values() for key in each.pairs)
        assert sum(len(each.pairs) + len(each.marks) for each in changes.values()) <= len(rows)
