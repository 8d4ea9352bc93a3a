"""No room left: a typed error, nothing lost, and it goes on once there is room. A limit on file sizes takes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stores import (
    CommitFailedError,
    Durability,
    IsolationLevel,
    StoreError,
    StoreUnavailableError,
    TopicPartition,
)
from stores.tests.conformance.cases import Case
from stores.tests.store_process import StoreProcess

LOG, INPUT = TopicPartition("changelog", 0), TopicPartition("input", 0)
VALUE = b"v" * 10_000
NUMBERS = range(200)
NO_LIMIT = 1 << 40


def expected(*, committed: int | None) -> list[tuple[bytes, bytes]]:
    """Return the pairs after the first or the second commit, or before both."""
    if committed is None:
        return []
    large = [(b"%08d" % number, VALUE) for number in NUMBERS] if committed == 2 else []
    return sorted([(b"first", b"1"), *large])


def open_limited(process: StoreProcess, case: Case, path: Path) -> None:
    """Open, commit once, and leave room for 20,000 bytes more in any file."""
    process.call("open", case.backend.name, path, case.durability, case.options)
    process.call("put", b"first", b"1")
    process.call("commit", {LOG: 1})
    sizes = [file.stat().st_size for file in path.rglob("*") if file.is_file()]
    process.call("limit", "RLIMIT_FSIZE", max(sizes, default=0) + 20_000)


def put_all_of_them(process: StoreProcess) -> None:
    """Stage pairs. If one can't be spilled, report that those before it are staged, make room and repeat it."""
    try:
        process.call("put_many", NUMBERS.start, NUMBERS.stop, VALUE)
    except CommitFailedError as error:
        if error.reopen:
            raise
        staged, rest = divmod(process.call("approximate_num_uncommitted_bytes"), 8 + len(VALUE))
        assert (staged in NUMBERS, rest) == (True, 0)
        assert process.call("get_many", [b"%08d" % (staged - 1), b"%08d" % staged]) == [VALUE if staged else None, None]
        assert process.call("committed_offset", LOG) == 1
        process.call("limit", "RLIMIT_FSIZE", NO_LIMIT)
        process.call("put_many", staged, NUMBERS.stop, VALUE)


@pytest.mark.every_durability
def test_a_disk_that_fills_in_a_commit_loses_nothing(case: Case, path: Path, process: StoreProcess) -> None:
    """The error says whether the commit can be tried again, once there is room, or the store must be opened again."""
    open_limited(process, case, path)
    process.call("advance_position", INPUT, 7)
    failure: CommitFailedError | None = None
    try:
        put_all_of_them(process)
        process.call("commit", {LOG: 2})
    except CommitFailedError as error:
        failure = error
    if failure is not None and not failure.reopen:
        assert process.call("committed_offset", LOG) == 1
        assert process.call("position", IsolationLevel.READ_COMMITTED) == {}
        assert process.call("position", IsolationLevel.READ_UNCOMMITTED) == {INPUT: 7}
        assert process.call("get", b"%08d" % NUMBERS[0]) == VALUE
        assert process.call("approximate_num_uncommitted_bytes") == len(NUMBERS) * (8 + len(VALUE))
        with pytest.raises(CommitFailedError):
            process.call("commit", {LOG: 2})
        process.call("limit", "RLIMIT_FSIZE", NO_LIMIT)
        process.call("commit", {LOG: 2})
        assert process.call("scan") == expected(committed=2)
        assert process.call("position", IsolationLevel.READ_COMMITTED) == {INPUT: 7}
        process.call("close")
    elif failure is not None:
        try:
            process.call("close")
        except StoreError:
            process.kill()
    else:
        process.call("limit", "RLIMIT_FSIZE", NO_LIMIT)
        process.call("close")
    if case.backend.persistent:
        with case.open(path) as store:
            if store.transactional:
                offset = store.committed_offset(LOG)
                assert list(store.all()) == expected(committed=offset)
                if failure is None or not failure.reopen:
                    assert offset == 2
                elif case.durability is not Durability.CHANGELOG:
                    assert offset in (1, 2)
            else:
                assert set(store.all()) <= set(expected(committed=2))
            store.put_all([(b"first", b"1"), *((b"%08d" % number, VALUE) for number in NUMBERS)])
            store.commit({LOG: 2})
            assert list(store.all()) == expected(committed=2)


def test_what_was_staged_when_the_disk_was_full_can_be_rolled_back(
    case: Case, path: Path, process: StoreProcess
) -> None:
    open_limited(process, case, path)
    try:
        process.call("put_many", NUMBERS.start, NUMBERS.stop, VALUE)
        process.call("commit", {LOG: 2})
    except CommitFailedError as failed:
        if not failed.reopen:
            process.call("rollback")
            assert process.call("approximate_num_uncommitted_bytes") == 0
            assert process.call("scan") == expected(committed=1)
            process.call("put", b"small", b"1")
            process.call("commit", {LOG: 3})
            assert process.call("committed_offset", LOG) == 3
    else:
        assert process.call("get", b"%08d" % NUMBERS[-1]) == VALUE


def test_a_store_that_finds_no_room_to_be_created_leaves_none_taken(
    case: Case, path: Path, process: StoreProcess
) -> None:
    process.call("load_backend", case.backend.name)
    process.call("limit", "RLIMIT_FSIZE", 0)
    open_it = ("open", case.backend.name, path, case.durability, case.options)
    if not case.backend.persistent:
        process.call(*open_it)
        return
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            process.call(*open_it)
        assert not path.exists()
    process.call("limit", "RLIMIT_FSIZE", NO_LIMIT)
    process.call(*open_it)
    process.call("put", b"key", b"value")
    process.call("commit")
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.every_durability
def test_a_disk_that_fills_before_the_close_leaves_a_commit_whole(
    case: Case, path: Path, process: StoreProcess
) -> None:
    """Offsets are never kept without their data; and the same process may open the store again."""
    process.call("open", case.backend.name, path, case.durability, case.options)
    process.call("put_many", NUMBERS.start, NUMBERS.stop, VALUE)
    process.call("commit", {LOG: 1})
    process.call("limit", "RLIMIT_FSIZE", 200_000)
    process.call("drop")
    process.call("limit", "RLIMIT_FSIZE", NO_LIMIT)
    process.call("open", case.backend.name, path, case.durability, case.options)
    if process.call("get_fact", "transactional"):
        complete = [(b"%08d" % number, VALUE) for number in NUMBERS]
        offset = process.call("committed_offset", LOG)
        assert process.call("scan") == (complete if offset == 1 else [])
        assert offset == 1 or case.durability is Durability.CHANGELOG
    process.call("put", b"new", b"1")
    process.call("commit")
    process.call("close")
