"""Files of an ingestion that failed stay beside the database, and an opening puts them back where it lacks them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stores.engines.ingesting import ingested_name
from stores.engines.rocksdb import RocksDBEngine
from stores.engines.rocksdb import engine as engine_module
from stores.engines.rocksdb.kept_files import kept_files, with_kept_files
from stores.errors import CommitFailedError, StoreCorruptedError, StoreError, StoreUnavailableError, must_reopen
from stores.tests.strategies.test_sst_ingest import LOG, SEVERAL_FILES, opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.mark.parametrize("several", [False, True])
def test_files_that_rocksdb_removes_after_its_manifest_names_them_are_put_back(
    path: Path, tmp_path: Path, several: bool
) -> None:
    """RocksDB does so if the sync of the manifest fails: the record of the ingestion is there all the same."""
    options = SEVERAL_FILES if several else {}
    copy, pairs = tmp_path / "copy", [(b"%06d" % number, bytes(100)) for number in range(200)]
    with opened(path, **options) as store:
        store.put(b"a", b"before")
        store.commit({LOG: 1})
        before = set((path / "data").glob("*.sst"))
        for key, value in pairs:
            store.put(key, value)
        store.commit({LOG: 2})
        shutil.copytree(path, copy)
        ingested = sorted(set((path / "data").glob("*.sst")) - before)
    assert (len(ingested) > 1) is several
    _remove_ingested(copy, [file.name for file in ingested])
    with opened(copy, **options) as store:
        assert list(store.all()) == [*pairs, (b"a", b"before")]
        assert store.committed_offset(LOG) == 2
        store.verify()
        store.put(b"b", b"after")
        store.commit({LOG: 3})
    assert not (copy / "data.tmp").exists()
    with opened(copy, **options) as store:
        assert store.committed_offset(LOG) == 3


def _remove_ingested(path: Path, names: list[str]) -> None:
    (path / "data.tmp").mkdir(exist_ok=True)
    for number, name in enumerate(names):
        (path / "data" / name).rename(path / "data.tmp" / ingested_name("0" * 16, number))


def test_files_of_another_commit_are_not_put_in_place_of_a_missing_one(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with opened(path) as store:
        for number in (1, 2):
            store.put(b"%d" % number, b"v")
            store.commit({LOG: number})
        shutil.copytree(path, copy)
    names = sorted(file.name for file in (copy / "data").glob("*.sst"))
    files = {name: (copy / "data" / name).read_bytes() for name in names}
    _remove_ingested(copy, names[-1:])
    [kept] = (copy / "data.tmp").iterdir()
    kept.write_bytes(files[names[0]])
    with pytest.raises(StoreCorruptedError, match="No such file"):
        opened(copy)
    assert sorted(file.name for file in (copy / "data").glob("*.sst")) == names[:-1]
    kept.write_bytes(files[names[-1]])
    with opened(copy) as store:
        assert store.committed_offset(LOG) == 2


def test_files_of_an_ingestion_that_fails_stay_until_the_next_opening(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(family: Any, files: Sequence[Path]) -> None:
        raise must_reopen("it failed")

    with opened(path, **SEVERAL_FILES) as store:
        with monkeypatch.context() as patch:
            patch.setattr(engine_module, "take_over", fail)
            for number in range(200):
                store.put(b"%06d" % number, bytes(100))
            with pytest.raises(CommitFailedError):
                store.commit({LOG: 1})
        kept = sorted(file.name for file in (path / "data.tmp").glob("*.sst"))
    assert len(kept) > 1
    assert kept == [ingested_name(kept[0][:16], number) for number in range(len(kept))]
    with opened(path) as store:
        assert list(store.all()) == []
        assert not list((path / "data.tmp").glob("*.sst"))


def test_no_file_gets_a_number_below_one(tmp_path: Path) -> None:
    data, kept = tmp_path / "data", tmp_path / "data.tmp"
    data.mkdir()
    kept.mkdir()
    for number in range(3):
        (kept / ingested_name("a" * 16, number)).touch()
    met: set[str] = set()

    def open_() -> None:
        met.update(file.name for file in data.iterdir())
        raise StoreCorruptedError(f"While open a file: {data}/000002.sst: {os.strerror(errno.ENOENT)}")

    with pytest.raises(StoreCorruptedError):
        with_kept_files(data, open_)
    assert met == {f"{number:06}.sst" for number in range(1, 5)}


@pytest.mark.parametrize("named_first", [11, 12])
def test_kept_files_get_the_numbers_that_are_missing_and_replace_no_file(tmp_path: Path, named_first: int) -> None:
    data, kept = tmp_path / "data", tmp_path / "data.tmp"
    data.mkdir()
    kept.mkdir()
    (data / "000010.sst").write_bytes(b"another")
    for number in range(2):
        (kept / ingested_name("a" * 16, number)).write_bytes(b"%d" % number)

    def open_() -> list[bytes]:
        missing = next((n for n in (named_first, 11, 12) if not (data / f"{n:06}.sst").exists()), None)
        if missing is not None:
            raise StoreCorruptedError(f"While open a file: {data}/{missing:06}.sst: No such file or directory")
        return [(data / f"{n:06}.sst").read_bytes() for n in (10, 11, 12)]

    assert with_kept_files(data, open_) == [b"another", b"0", b"1"]


@pytest.fixture
def spilled(path: Path, tmp_path: Path) -> tuple[Path, list[Path]]:
    """A copy of a store whose last commit has several files, and these files, which lie beside the data too."""
    copy = tmp_path / "copy"
    with opened(path, **SEVERAL_FILES) as store:
        store.put(b"a", b"before")
        store.commit({LOG: 1})
        before = {file.name for file in (path / "data").glob("*.sst")}
        for number in range(200):
            store.put(b"%06d" % number, bytes(100))
        store.commit({LOG: 2})
        shutil.copytree(path, copy)
    files = sorted(file for file in (copy / "data").glob("*.sst") if file.name not in before)
    (copy / "data.tmp").mkdir(exist_ok=True)
    for number, file in enumerate(files):
        os.link(file, copy / "data.tmp" / ingested_name("b" * 16, number))
    assert len(files) > 2
    return copy, files


@pytest.mark.parametrize("removed", ["the first", "all but the last", "all, and links in wrong places"])
def test_a_kill_while_files_are_removed_or_put_back_is_no_obstacle(
    spilled: tuple[Path, list[Path]], removed: str
) -> None:
    copy, files = spilled
    kept = sorted((copy / "data.tmp").iterdir())
    for file in files[:1] if removed == "the first" else files[:-1] if removed == "all but the last" else files:
        file.unlink()
    if "wrong" in removed:
        for file, place in zip(kept, [*files[1:], files[-1].with_name("000099.sst")], strict=True):
            os.link(file, place)
    # Files of an older failure, which fit nowhere, are tried and left alone.
    (copy / "data.tmp" / ingested_name("a" * 16, 0)).write_bytes(b"another")
    with opened(copy) as store:
        assert store.committed_offset(LOG) == 2
        assert len(list(store.all())) == 201
        store.verify()
    assert not (copy / "data.tmp").exists()


@pytest.mark.parametrize(
    ("number", "expected"), [(errno.EPERM, StoreCorruptedError), (errno.ENOSPC, StoreUnavailableError)]
)
def test_files_that_can_not_be_linked_are_told_as_an_error_of_the_store(
    spilled: tuple[Path, list[Path]], monkeypatch: pytest.MonkeyPatch, number: int, expected: type[StoreError]
) -> None:
    def refuse(file: Path, place: Path) -> None:
        raise OSError(number, os.strerror(number), str(place))

    copy, files = spilled
    for file in files:
        file.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        with pytest.raises(expected):
            opened(copy)
    with opened(copy) as store:
        assert store.committed_offset(LOG) == 2


def test_a_folder_that_kept_files_do_not_complete_is_left_as_it_was(spilled: tuple[Path, list[Path]]) -> None:
    copy, files = spilled
    files[0].unlink()
    kept = sorted((copy / "data.tmp").iterdir())
    kept[0].write_bytes(b"damaged")
    names = sorted(file.name for file in (copy / "data").glob("*.sst"))
    with pytest.raises(StoreCorruptedError):
        opened(copy)
    assert sorted(file.name for file in (copy / "data").glob("*.sst")) == names
    assert sorted((copy / "data.tmp").iterdir()) == kept


def test_who_only_reads_is_told_that_an_opening_puts_files_in_their_places(spilled: tuple[Path, list[Path]]) -> None:
    copy, files = spilled
    files[0].unlink()
    with pytest.raises(StoreUnavailableError, match="open the store for writing"):
        RocksDBEngine.open_read_only(copy / "data", live=False)
    (copy / "data.tmp" / "000001.sst").write_bytes(b"a table of a staging store")
    assert [len(commit) for commit in kept_files(copy / "data")] == [len(files)]


def test_missing_files_are_named_in_the_system_s_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, kept = tmp_path / "data", tmp_path / "data.tmp"
    data.mkdir()
    kept.mkdir()
    (kept / ingested_name("a" * 16, 0)).touch()
    monkeypatch.setattr(os, "strerror", lambda number: "Nicht gefunden")

    def open_() -> bool:
        if not (data / "000007.sst").exists():
            raise StoreCorruptedError(f"While open a file: {data}/000007.sst: Nicht gefunden")
        return True

    assert with_kept_files(data, open_)
