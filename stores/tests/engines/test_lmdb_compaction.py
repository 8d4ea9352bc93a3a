"""A compacted LMDB file has all records of the one before, in full pages, or the one before is still there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stores.engines.engine import FETCH_BYTES_MAX, Writes, take
from stores.engines.families import BOTH, FAMILIES
from stores.engines.lmdb import environment
from stores.engines.lmdb.engine import LmdbEngine
from stores.errors import StoreCorruptedError, StoreUnavailableError
from stores.interface import Durability
from stores.ordered import WHOLE
from stores.tests.changelog.files.test_version_log_kills import file_size_limit

RECORDS = 20_000
Contents = dict[tuple[object, bytes], bytes]


def filled(path: Path, families: int = 1, **options: object) -> Contents:
    """Fill an engine by commits of records with random keys, and close it."""
    engine = LmdbEngine.open(path, Durability.CHANGELOG, {**LmdbEngine.options, **options})
    random = Random(1)
    if families == 2:
        engine.add_family()
        engine.write([], {FAMILIES: BOTH})
        engine.select_families()
    for _ in range(RECORDS // 1_000):
        for family in range(families):
            writes: dict[bytes, bytes | None] = {random.randbytes(16): random.randbytes(100) for _ in range(1_000)}
            engine.write([Writes((), {**writes, b"empty": b"", b"large": random.randbytes(100_000)}, family)], {})
        engine.write([], {b"offset": random.randbytes(8)})
    engine.close()
    return contents(path)


def contents(path: Path) -> Contents:
    engine = LmdbEngine.open(path, Durability.CHANGELOG, LmdbEngine.options)
    engine.verify()
    found: Contents = {("meta", name): entry for name, entry in engine.meta().items()}
    for family in range(engine.num_families):
        [scan] = engine.scans([WHOLE._replace(family=family)])
        while chunk := scan.fetch():
            found |= {(family, key): value for key, value in chunk}
    engine.close()
    return found


@pytest.mark.parametrize("families", [1, 2])
@pytest.mark.parametrize("checksums", [True, False])
def test_a_compaction_keeps_everything_and_fills_the_pages(tmp_path: Path, families: int, checksums: bool) -> None:
    before = filled(tmp_path, families, checksums=checksums)
    assert len(before) >= families * RECORDS
    num_bytes = sum(len(key) + len(value) for (_, key), value in before.items())
    file = tmp_path / "data.mdb"
    assert file.stat().st_size > 1.5 * num_bytes
    LmdbEngine.compact(tmp_path, LmdbEngine.options)
    assert file.stat().st_size < 1.25 * num_bytes
    assert contents(tmp_path) == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data.mdb", "lock.mdb"]


def test_an_empty_store_is_compacted(tmp_path: Path) -> None:
    LmdbEngine.open(tmp_path, Durability.CHANGELOG, LmdbEngine.options).close()
    LmdbEngine.compact(tmp_path, LmdbEngine.options)
    assert contents(tmp_path) == {}


def test_records_that_are_lost_on_the_way_are_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB keeps a count of them, which the new file would not have."""
    filled(tmp_path)
    content = (tmp_path / "data.mdb").read_bytes()

    def without_one(records: Iterator[Any], most: int) -> tuple[list[Any], bool]:
        next(records, None)
        return take(records, most)

    monkeypatch.setattr(environment, "take", without_one)
    with pytest.raises(StoreCorruptedError, match="other records"):
        LmdbEngine.compact(tmp_path, LmdbEngine.options)
    assert (tmp_path / "data.mdb").read_bytes() == content


def test_records_out_of_order_are_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    monkeypatch.setattr(environment, "take", lambda records, most: (list(records)[::-1], True))
    with pytest.raises(StoreCorruptedError, match="other records"):
        LmdbEngine.compact(tmp_path, LmdbEngine.options)


def test_a_compaction_takes_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    sizes: list[int] = []

    def watched(records: Iterator[Any], most: int) -> tuple[list[Any], bool]:
        piece, at_end = take(records, most)
        sizes.append(sum(len(key) + len(value) for key, value in piece))
        return piece, at_end

    monkeypatch.setattr(environment, "take", watched)
    LmdbEngine.compact(tmp_path, LmdbEngine.options)
    assert len(sizes) > 2
    assert max(sizes) < 2 * FETCH_BYTES_MAX


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    filled(tmp_path)
    content = (tmp_path / "data.mdb").read_bytes()
    with file_size_limit(1 << 20), pytest.raises(StoreUnavailableError, match="Make room"):
        LmdbEngine.compact(tmp_path, LmdbEngine.options)
    assert (tmp_path / "data.mdb").read_bytes() == content
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data.mdb", "lock.mdb"]
