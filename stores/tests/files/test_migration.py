"""An older store is migrated to the present format on opening, a newer one is refused, and readers never write."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stores import (
    Durability,
    StoreCorruptedError,
    StoreTooNewError,
    StoreUnavailableError,
    TopicPartition,
    open_store,
)
from stores.engines.engine import Writes
from stores.failpoints import arm, disarm
from stores.files import store_directory as directory
from stores.files.identity import STEPS, Identity, OpenEngine, present_version, read_identity
from stores.files.locks import take
from stores.files.store_directory import MIGRATION_FAILPOINTS, STEP_NOTED, wipe

BACKEND = "sqlite-indexed-batch"
BACKENDS = ["rocksdb-indexed-batch", "lmdb-indexed-batch", BACKEND]
CHANGELOG = TopicPartition("changelog", 0)
OLD = {b"a": b"1", b"b": b"2", b"c": b""}


class Stop(Exception):
    """Raised where a process would have died."""


def stop() -> None:
    raise Stop


def stamp(folder: Path, open_engine: OpenEngine) -> None:
    """Put a ``2`` before each value, in a write of its own, where there is none yet."""
    engine = open_engine(folder / "data")
    try:
        scan = engine.scan(None, None)
        pairs = scan.fetch()
        scan.close()
        for key, value in pairs:
            if not value.startswith(b"2:"):
                engine.write([Writes((), {key: b"2:" + value})], {})
    finally:
        engine.close()


def add_mark(folder: Path, open_engine: OpenEngine) -> None:
    (folder / "data" / "mark").write_text("3")


@pytest.fixture
def steps() -> Iterator[list[object]]:
    """Steps that a test adds, for as long as it runs."""
    before = list(STEPS)
    yield STEPS  # type: ignore[misc]
    STEPS[:] = before
    disarm()


def made(path: Path, backend: str = BACKEND) -> None:
    with open_store(backend, path) as store:
        store.put_all(OLD.items())
        store.commit({CHANGELOG: 7})


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_older_store_is_migrated_step_by_step_on_opening(path: Path, steps: list[object], backend: str) -> None:
    """Source: KIP-892, "Upgrading"."""
    made(path, backend)
    before = present_version()
    assert read_identity(path) == Identity(backend, before)
    steps += [stamp, add_mark]
    with open_store(backend, path) as store:
        assert dict(store.all()) == {key: b"2:" + value for key, value in OLD.items()}
        assert store.committed_offset(CHANGELOG) == 7
    assert read_identity(path) == Identity(backend, before + 2)
    assert (path / "data" / "mark").read_text() == "3"


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("failpoint", MIGRATION_FAILPOINTS)
def test_a_migration_that_is_cut_short_is_gone_on_with(
    path: Path, steps: list[object], failpoint: str, durability: Durability
) -> None:
    made(path)
    before = present_version()
    steps.append(stamp)
    arm(failpoint, stop)
    with pytest.raises(Stop):
        open_store(BACKEND, path, durability=durability)
    disarm()
    assert read_identity(path).format_version == before + (failpoint == STEP_NOTED)
    with open_store(BACKEND, path, durability=durability) as store:
        assert dict(store.all()) == {key: b"2:" + value for key, value in OLD.items()}


def test_a_disk_that_refuses_the_migration_is_reported_and_the_store_stays_as_old_as_it_is(
    path: Path, steps: list[object]
) -> None:
    made(path)
    before = present_version()

    def refuse(folder: Path, open_engine: OpenEngine) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    steps.append(refuse)
    with pytest.raises(StoreUnavailableError):
        open_store(BACKEND, path)
    assert read_identity(path).format_version == before
    steps[-1] = stamp
    open_store(BACKEND, path).close()


def test_a_newer_store_is_refused_and_nothing_of_it_is_touched(path: Path, steps: list[object]) -> None:
    """Source: KIP-892, "Downgrading"."""
    steps.append(add_mark)
    made(path)
    assert read_identity(path).format_version == present_version()
    steps.pop()
    before = contents(path)
    with pytest.raises(StoreTooNewError) as refused:
        open_store(BACKEND, path)
    assert str(path) in str(refused.value)
    assert contents(path) == before
    wipe(path)
    open_store(BACKEND, path).close()
    assert read_identity(path).format_version == present_version()


@pytest.mark.parametrize("version", ["0", "-1", '"one"', "null"])
def test_a_version_that_never_was_is_damage(path: Path, version: str) -> None:
    made(path)
    (path / "store.json").write_text(f'{{"backend": "{BACKEND}", "format_version": {version}}}')
    with pytest.raises(StoreCorruptedError):
        open_store(BACKEND, path)


def test_readers_write_nothing_not_even_a_migration(path: Path, steps: list[object]) -> None:
    """A reader is had of an open store only; what is there then stays, whatever is read."""
    made(path)
    steps.append(stamp)
    with open_store(BACKEND, path) as store:
        before = contents(path)
        reader = store.read_only()
        assert dict(reader.all()) == {key: b"2:" + value for key, value in OLD.items()}
        assert reader.get(b"a") == b"2:1"
        # A memory map of SQLite's own, of which its log is the truth.
        assert {name: kept for name, kept in contents(path).items() if not name.endswith("-shm")} == {
            name: kept for name, kept in before.items() if not name.endswith("-shm")
        }


def test_a_store_that_another_process_migrated_meanwhile_is_not_migrated_again(
    path: Path, steps: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    made(path)
    ran = []

    def count(folder: Path, open_engine: OpenEngine) -> None:
        ran.append(folder)

    steps.append(count)

    def migrated_before(file: Path) -> int:
        (path / "store.json").write_text(Identity(BACKEND, present_version()).text())
        return take(file)

    monkeypatch.setattr(directory, "take", migrated_before)
    open_store(BACKEND, path).close()
    assert ran == []


def test_who_opens_an_older_store_twice_migrates_it_once(path: Path, steps: list[object]) -> None:
    made(path)
    ran = []

    def count(folder: Path, open_engine: OpenEngine) -> None:
        ran.append(folder)

    steps.append(count)
    for _ in range(2):
        open_store(BACKEND, path).close()
    assert ran == [path]
