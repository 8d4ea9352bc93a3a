"""A damaged store: a typed error that says so, or an earlier commit, whole. Never a crash, a hang, or made-up data."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from stores import StoreCorruptedError, StoreIncompatibleError, StoreUnavailableError, TopicPartition
from stores.tests.conformance.cases import Case
from stores.tests.damages import damages
from stores.tests.store_process import StoreProcess

LOG = TopicPartition("changelog", 0)
SEED = 20
States = dict[int | None, list[tuple[bytes, bytes]]]


def fill(case: Case, path: Path) -> States:
    """Some commits; the contents by committed offset."""
    states: States = {None: []}
    with case.open(path) as store:
        for commit in range(4):
            store.put_all([(b"%05d" % (number * 4 + commit), b"%d" % commit * 60) for number in range(200)])
            store.commit({LOG: commit})
            states[commit] = list(store.all())
    return states


@pytest.mark.as_is
@pytest.mark.closed_files
def test_a_damaged_file_is_detected_or_does_no_harm(case: Case, path: Path, process: StoreProcess) -> None:
    """Each file of the store in each way, opened, read and written in a process with a deadline. Seed: ``SEED``."""
    states = fill(case, path)
    for file in sorted(file for file in path.rglob("*") if file.is_file() and file.stat().st_size):
        for what, damage in damages(file.stat().st_size, SEED):
            copy = path.with_name("damaged")
            shutil.copytree(path, copy)
            damage(copy / file.relative_to(path))
            where = f"{file.relative_to(path)} {what}"
            try:
                process.call("open", case.backend.name, copy, case.durability, case.options)
            except (StoreCorruptedError, StoreUnavailableError, StoreIncompatibleError):
                pass
            else:
                try:
                    pairs, offset = process.call("scan"), process.call("committed_offset", LOG)
                    if process.call("get_fact", "manages_offsets"):
                        assert pairs == states[offset], where
                    else:
                        assert set(pairs) <= set(states[3]), where
                    process.call("put", b"new", b"1")
                    process.call("commit")
                    process.call("close")
                except (StoreCorruptedError, StoreUnavailableError):
                    process.call("drop")
            shutil.rmtree(copy)


@pytest.mark.as_is
@pytest.mark.closed_files
def test_a_file_that_has_become_a_folder_is_no_database(case: Case, path: Path, process: StoreProcess) -> None:
    fill(case, path)
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        copy = path.with_name("damaged")
        shutil.copytree(path, copy)
        (copy / file.relative_to(path)).unlink()
        (copy / file.relative_to(path)).mkdir()
        try:
            process.call("open", case.backend.name, copy, case.durability, case.options)
        except (StoreCorruptedError, StoreUnavailableError):
            pass
        else:
            with suppress(StoreCorruptedError, StoreUnavailableError):
                process.call("scan")
            process.call("drop")
        shutil.rmtree(copy)


@pytest.mark.as_is
def test_a_folder_without_its_database_is_no_new_store(case: Case, path: Path) -> None:
    fill(case, path)
    if case.backend.persistent:
        for entry in (path / "data").iterdir():
            entry.unlink()
        with pytest.raises(StoreCorruptedError):
            case.open(path)
        (path / "data").rmdir()
        with pytest.raises(StoreCorruptedError):
            case.open(path)
