"""LMDB's meta pages have checksums of ours: damage to them is detected, and no crash is taken for damage."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from stores import CommitFailedError, Durability, StoreCorruptedError, TopicPartition, open_store
from stores.engines.lmdb import LmdbEngine
from stores.engines.lmdb.meta_pages import Checksums, check_meta_pages, keep_meta_pages
from stores.strategies.store import Store

LOG = TopicPartition("changelog", 0)
BACKENDS = ("lmdb-indexed-batch", "lmdb-native")
PAGE_BYTES, USED_BYTES, CHECKSUM = 4096, 152, range(192, 208)
FITTING = CHECKSUM.stop


def state(number: int) -> list[tuple[bytes, bytes]]:
    """Return the pairs after commit ``number``: keys come and go, so that the free list changes in each."""
    return [(b"%04d" % key, b"%d " % number * 300) for key in range(40 + number % 3 * 20)]


def commit(store: object, number: int) -> None:
    store.delete_range(None, None)  # type: ignore[attr-defined]
    store.put_all(state(number))  # type: ignore[attr-defined]
    store.commit({LOG: number})  # type: ignore[attr-defined]


def filled(path: Path, commits: int, backend: str = BACKENDS[0]) -> Path:
    with open_store(backend, path) as store:
        for number in range(1, commits + 1):
            commit(store, number)
    return path / "data" / "data.mdb"


def meta_pages(file: Path) -> list[bytes]:
    content = file.read_bytes()
    return [content[at : at + FITTING] for at in (0, PAGE_BYTES)]


def put_at(file: Path, at: int, content: bytes) -> None:
    with file.open("r+b") as stream:
        stream.seek(at)
        stream.write(content)


@contextmanager
def killed(path: Path, *, lacking: bool, commits: int, backend: str = BACKENDS[0]) -> Iterator[Path]:
    """The folder of a store that was killed behind a commit; before its checksum was written, if ``lacking``."""
    copy = path.with_name("killed")
    with open_store(backend, path) as store:
        for number in range(1, commits):
            commit(store, number)
        with pytest.MonkeyPatch.context() as patch:
            if lacking:
                patch.setattr(Checksums, "note", lambda self, transaction_id: None)
            commit(store, commits)
            shutil.copytree(path, copy)
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


def test_every_flipped_bit_of_a_closed_store_s_meta_pages_is_detected(path: Path) -> None:
    file = filled(path, 3)
    pages = file.read_bytes()[: 2 * PAGE_BYTES]
    undetected = []
    for page, byte, bit in product((0, PAGE_BYTES), (*range(USED_BYTES), *CHECKSUM), range(8)):
        at = page + byte
        put_at(file, at, bytes([pages[at] ^ 1 << bit]))
        try:
            LmdbEngine.check_closed(file.parent)
            undetected.append((page, byte, bit))
        except StoreCorruptedError:
            pass
        put_at(file, at, pages[at : at + 1])
    assert undetected == []
    LmdbEngine.check_closed(file.parent)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("commits", range(1, 5))
def test_a_meta_page_that_takes_a_store_back_by_one_commit_is_detected(path: Path, backend: str, commits: int) -> None:
    """One bit of the transaction ID makes the older page the newer one, or the other way round."""
    file = filled(path, commits, backend)
    for page in (0, PAGE_BYTES):
        at = page + USED_BYTES - 8
        low = file.read_bytes()[at]
        put_at(file, at, bytes([low ^ 2]))
        for _ in range(2):
            with pytest.raises(StoreCorruptedError):
                open_store(backend, path)
        put_at(file, at, bytes([low]))
    with open_store(backend, path) as store:
        assert list(store.all()) == state(commits)


@pytest.mark.parametrize("lacking", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_kill_before_or_behind_a_checksum_loses_nothing(path: Path, backend: str, lacking: bool) -> None:
    for commits in (1, 2, 5):
        with killed(path.with_name(f"{commits}"), lacking=lacking, commits=commits, backend=backend) as copy:
            with open_store(backend, copy) as store:
                assert list(store.all()) == state(commits)
                assert store.committed_offset(LOG) == commits
                store.verify()
            LmdbEngine.check_closed(copy / "data")


@pytest.mark.parametrize("commits", [1, 2, 6])
def test_a_kill_inside_the_write_of_a_checksum_loses_nothing(path: Path, commits: int) -> None:
    with killed(path.with_name("lacking"), lacking=True, commits=commits) as copy:
        old = meta_pages(copy / "data" / "data.mdb")
    with killed(path, lacking=False, commits=commits) as copy:
        new = meta_pages(copy / "data" / "data.mdb")
        [place] = [place for place in (0, 1) if new[place] != old[place]]
        for torn_at in CHECKSUM[1:]:
            trial = copy.with_name("trial")
            shutil.copytree(copy, trial)
            put_at(trial / "data" / "data.mdb", place * PAGE_BYTES, new[place][:torn_at] + old[place][torn_at:])
            with open_store(BACKENDS[0], trial) as store:
                assert list(store.all()) == state(commits)
                assert store.committed_offset(LOG) == commits
                store.verify()
            LmdbEngine.check_closed(trial / "data")
            shutil.rmtree(trial)


def test_a_kill_inside_the_write_of_the_older_page_s_checksum_is_not_taken_for_damage(path: Path) -> None:
    with killed(path, lacking=False, commits=6) as copy:
        file = copy / "data" / "data.mdb"
        older = min((0, PAGE_BYTES), key=lambda at: file.read_bytes()[at + USED_BYTES - 8 : at + USED_BYTES])
        put_at(file, older + CHECKSUM[8], b"torn")
        with open_store(BACKENDS[0], copy) as store:
            assert list(store.all()) == state(6)
        LmdbEngine.check_closed(copy / "data")


def test_a_meta_page_that_is_torn_inside_of_a_sector_is_a_whole_commit_or_detected(path: Path) -> None:
    """Torn at each multiple of 64 bytes, its front new or its rest: the transaction ID is at its end."""
    detected = 0
    for commits in range(5, 9):
        with killed(path.with_name(f"{commits}"), lacking=True, commits=commits) as copy:
            file = copy / "data" / "data.mdb"
            new = meta_pages(file)
            before = filled(path.with_name(f"{commits} before"), commits - 1)
            with before.open("rb") as stream:
                content = stream.read()
            old = [content[at : at + FITTING] for at in (0, PAGE_BYTES)]
            [torn] = [place for place in (0, 1) if new[place][:USED_BYTES] != old[place][:USED_BYTES]]
            for at, front_is_new in product((64, 128), (True, False)):
                mixed = new[torn][:at] + old[torn][at:] if front_is_new else old[torn][:at] + new[torn][at:]
                trial = copy.with_name("trial")
                shutil.copytree(copy, trial)
                put_at(trial / "data" / "data.mdb", torn * PAGE_BYTES, mixed)
                try:
                    store = open_store(BACKENDS[0], trial)
                except StoreCorruptedError:
                    detected += 1
                else:
                    with store:
                        assert list(store.all()) in (state(commits), state(commits - 1))
                        store.verify()
                        commit(store, commits + 1)
                        store.verify()
                shutil.rmtree(trial)
    assert detected


def test_a_meta_page_that_could_not_be_written_is_not_taken_for_damage(path: Path) -> None:
    """LMDB then puts the old length and transaction ID behind the new roots, and the process may be killed."""
    with killed(path, lacking=False, commits=6) as copy:
        file = copy / "data" / "data.mdb"
        older = min((0, PAGE_BYTES), key=lambda at: file.read_bytes()[at + USED_BYTES - 8 : at + USED_BYTES])
        put_at(file, older + 48, b"\1")
        with open_store(BACKENDS[0], copy) as store:
            assert list(store.all()) == state(6)
            commit(store, 7)
        LmdbEngine.check_closed(copy / "data")


def test_a_compacted_store_gets_checksums_when_it_is_opened(path: Path) -> None:
    file = filled(path, 3)
    LmdbEngine.compact(file.parent, LmdbEngine.options)
    assert not any(any(page[CHECKSUM.start : CHECKSUM.stop]) for page in meta_pages(file))
    LmdbEngine.check_closed(file.parent)
    with open_store(BACKENDS[0], path) as store:
        assert list(store.all()) == state(3)
    assert all(any(page[CHECKSUM.start :]) for page in meta_pages(file))
    LmdbEngine.check_closed(file.parent)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_commit_whose_checksum_can_not_be_written_is_kept_and_the_next_one_waits_for_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    def refuse(descriptor: int, content: bytes, at: int) -> int:
        raise OSError(errno.EIO, "the disk refuses")

    with open_store(backend, path) as store:
        commit(store, 1)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", refuse)
            commit(store, 2)
            with pytest.raises(CommitFailedError):
                commit(store, 3)
            store.rollback()
            assert store.committed_offset(LOG) == 2
        commit(store, 4)
        assert list(store.all()) == state(4)
    LmdbEngine.check_closed(path / "data")


def test_checksums_are_synced_at_a_clean_close_at_disk_and_not_in_commits(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    pwrite, fsync = os.pwrite, os.fsync
    with open_store(BACKENDS[0], path, durability=Durability.DISK) as store:
        [file] = path.rglob("data.mdb")
        status = file.stat()

        def seen_pwrite(descriptor: int, content: bytes, at: int) -> int:
            done.append("write")
            return pwrite(descriptor, content, at)

        def seen_fsync(descriptor: int) -> None:
            if os.path.samestat(os.fstat(descriptor), status):
                done.append("sync")
            fsync(descriptor)

        monkeypatch.setattr(os, "pwrite", seen_pwrite)
        monkeypatch.setattr(os, "fsync", seen_fsync)
        commit(store, 1)
        commit(store, 2)
        assert done == ["write", "write"]
    assert done[-2:] == ["write", "sync"]


def test_a_write_of_nothing_leaves_the_checksums_as_they_are(path: Path) -> None:
    """LMDB writes no page for it: a checksum of its transaction ID would be one of another page."""
    copy = path.with_name("killed")
    with open_store(BACKENDS[0], path) as store:
        commit(store, 1)
        commit(store, 2)
        assert isinstance(store, Store)
        before = meta_pages(path / "data" / "data.mdb")
        for _ in range(3):
            store.staging.engine.write([], {})
        assert meta_pages(path / "data" / "data.mdb") == before
        shutil.copytree(path, copy)
    with open_store(BACKENDS[0], copy) as store:
        assert list(store.all()) == state(2)


def test_a_file_that_lacks_its_last_page_is_checked_before_it_is_mapped(path: Path) -> None:
    file = filled(path, 3)
    newest = max(meta_pages(file), key=lambda page: page[USED_BYTES - 8 : USED_BYTES][::-1])
    last_page = int.from_bytes(newest[USED_BYTES - 16 : USED_BYTES - 8], "little")
    for pages, checked in ((last_page + 1, False), (last_page, True)):
        os.truncate(file, pages * PAGE_BYTES)
        assert check_meta_pages(file.parent).check_structure is checked


@pytest.mark.parametrize("held_max", [0, 1])
def test_checksums_give_their_descriptors_back(path: Path, monkeypatch: pytest.MonkeyPatch, held_max: int) -> None:
    """One that is kept at the end, and where too many are kept already one after each commit."""
    monkeypatch.setattr("stores.engines.lmdb.meta_pages._HELD_MAX", Checksums._held + held_max)
    held, before = Checksums._held, len(os.listdir("/proc/self/fd"))
    with open_store(BACKENDS[0], path) as store:
        assert Checksums._held == held + held_max
        commit(store, 1)
        descriptors = len(os.listdir("/proc/self/fd"))
        commit(store, 2)
        assert len(os.listdir("/proc/self/fd")) == descriptors
    assert (Checksums._held, len(os.listdir("/proc/self/fd"))) == (held, before)


def test_meta_pages_that_are_to_be_kept_are_synced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = filled(path, 2)
    content, status, fsync, synced = file.read_bytes(), file.stat(), os.fsync, []

    def seen(descriptor: int) -> None:
        synced.append(os.path.samestat(os.fstat(descriptor), status))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", seen)
    keep_meta_pages(file.parent, PAGE_BYTES)
    assert (synced, file.read_bytes()) == ([True], content)


def test_a_flipped_bit_in_a_constant_field_is_detected_before_a_checksum_covers_it(path: Path) -> None:
    """The version, the size of a page and flags: both pages have the same."""
    with killed(path, lacking=True, commits=6) as copy:
        file = copy / "data" / "data.mdb"
        at = max((0, PAGE_BYTES), key=lambda at: file.read_bytes()[at + USED_BYTES - 8 : at + USED_BYTES][::-1])
        whole = file.read_bytes()
        for byte, bit in product((*range(20, 24), *range(40, 46), *range(88, 94)), range(8)):
            put_at(file, at + byte, bytes([whole[at + byte] ^ 1 << bit]))
            with pytest.raises(StoreCorruptedError):
                check_meta_pages(file.parent)
            put_at(file, at + byte, whole[at + byte : at + byte + 1])
        with open_store(BACKENDS[0], copy) as store:
            assert list(store.all()) == state(6)


def test_before_a_commit_a_part_of_its_meta_page_is_no_damage_and_the_newer_page_must_fit(path: Path) -> None:
    """An import of offsets checks a closed store, and may have been stopped in its own commit before."""
    file = filled(path, 3)
    closed = file.read_bytes()
    after = filled(path.with_name("after"), 4).read_bytes()
    older = min((0, PAGE_BYTES), key=lambda at: closed[at + USED_BYTES - 8 : at + USED_BYTES])
    differing = [at for at in range(older, older + USED_BYTES - 8) if closed[at] != after[at]]
    assert differing
    for torn_at in differing:
        put_at(file, older, after[older : torn_at + 1] + closed[torn_at + 1 : older + USED_BYTES])
        LmdbEngine.check_before_commit(file.parent)
        with pytest.raises(StoreCorruptedError):
            LmdbEngine.check_closed(file.parent)
    newer = PAGE_BYTES - older
    put_at(file, newer + 48, bytes([closed[newer + 48] ^ 1]))
    with pytest.raises(StoreCorruptedError):
        LmdbEngine.check_before_commit(file.parent)
    put_at(file, 0, closed[: 2 * PAGE_BYTES])
    for byte, bit in product(range(USED_BYTES), range(8)):
        put_at(file, newer + byte, bytes([closed[newer + byte] ^ 1 << bit]))
        with pytest.raises(StoreCorruptedError):
            LmdbEngine.check_before_commit(file.parent)
        put_at(file, newer + byte, closed[newer + byte : newer + byte + 1])
    LmdbEngine.check_before_commit(file.parent)
