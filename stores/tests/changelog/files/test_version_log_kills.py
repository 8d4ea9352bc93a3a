"""A killed writer, or one whose disk is full, leaves a log that is whole, and that the next one continues."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from stores.changelog.files import Header
from stores.changelog.files.partition_log import FAILPOINTS
from stores.errors import StoreUnavailableError
from stores.tests.changelog.files.log_model import (
    append,
    changes,
    header,
    opened,
    restored,
    snapshot,
    state_at,
    with_rows,
)
from stores.tests.forked_call import was_killed
from stores.tests.store_process import kill_at

LAST = 5


def write(path: Path, failpoint: str) -> None:
    """Write versions, until this process reaches the failpoint in the last one, and is killed."""
    log = opened(path, snapshot_versions=2, keep_versions=2).partition(0)
    for version in range(LAST + 1):
        if version == LAST:
            kill_at(failpoint, 1)
        own = with_rows(log, header(version), [version])
        if log.append(own, changes(version)).id == own.id and log.snapshot_due(log.listing()):
            log.write_snapshot(Header("snapshot", own.id, 0, version), snapshot(version))
        log.remove_old(log.listing())


@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_a_killed_writer_leaves_a_version_whole_or_not_at_all(tmp_path: Path, failpoint: str) -> None:
    assert was_killed(write, tmp_path, failpoint)
    log = opened(tmp_path, snapshot_versions=2, keep_versions=2).partition(0)
    newest = log.listing().newest
    assert newest in (LAST - 1, LAST)
    assert restored(log, None, newest) == state_at(newest)
    for version in range(newest + 1, LAST + 3):
        append(log, version)
    log.remove_old(log.listing())
    assert restored(log, None, LAST + 2) == state_at(LAST + 2)
    listing = log.listing()
    assert listing.asides == []
    assert all(version >= LAST + 2 for version, _ in listing.rows)


@pytest.mark.parametrize("seed", range(3))
def test_a_full_disk_leaves_nothing_of_a_version(tmp_path: Path, seed: int) -> None:
    log = opened(tmp_path).partition(0)
    append(log, 0)
    before = sorted(tmp_path.rglob("*"))
    limit = Random(seed).randrange(1, 1000)
    with file_size_limit(limit), pytest.raises(StoreUnavailableError):
        log.append(header(1), changes(1))
    assert sorted(tmp_path.rglob("*")) == before
    append(log, 1)
    assert restored(log, None, 1) == state_at(1)


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
