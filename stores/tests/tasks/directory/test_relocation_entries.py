"""The files beside the stores that move: the journal, checkpoints, origins and positions."""

from __future__ import annotations

from pathlib import Path

import pytest

from stores.errors import (
    StoreCorruptedError,
)
from stores.interface import TopicPartition
from stores.tasks import (
    Subtopology,
    Topology,
    relocate,
)
from stores.tasks.directory.entry_files import CheckpointFile, Origin, OriginFile
from stores.tasks.directory.replacement import RENAMED
from stores.tasks.directory.store_places import JOURNAL_FILE
from stores.tests.tasks.directory.relocating import (
    PARTITION,
    PRESENT,
    STORES,
    check_entries_are_beside_their_stores,
    content,
    lay_out,
    log_topic,
    task_id,
)
from stores.tests.tasks.setup import crashing_at


def test_a_damaged_journal_is_refused_and_without_it_stores_are_found_by_their_names(tmp_path: Path) -> None:
    lay_out(tmp_path)
    with crashing_at(RENAMED):
        relocate(tmp_path, PRESENT)
    journal = tmp_path / JOURNAL_FILE
    journal.write_bytes(journal.read_bytes().replace(b"counts", b"c0unts"))
    before = content(tmp_path)
    with pytest.raises(StoreCorruptedError):
        relocate(tmp_path, PRESENT)
    assert content(tmp_path) == before
    journal.unlink()
    relocate(tmp_path, PRESENT)
    check_entries_are_beside_their_stores(tmp_path)
    for name in STORES:
        assert (tmp_path / f"{PRESENT.subtopology_of(name)}_{PARTITION}" / "lmdb" / name / "data").is_dir()


def test_a_damaged_checkpoint_costs_its_own_entries_and_no_store(tmp_path: Path) -> None:
    lay_out(tmp_path)
    for name in (".checkpoint", ".origin"):
        (tmp_path / str(task_id(2)) / name).write_text("garbage")
    relocate(tmp_path, PRESENT)
    check_entries_are_beside_their_stores(tmp_path)
    assert CheckpointFile(tmp_path / str(task_id(2)) / ".checkpoint").read() == {
        TopicPartition(log_topic("totals"), PARTITION): len("totals")
    }
    assert OriginFile(tmp_path / str(task_id(3)) / ".origin").read(()) == {"names": Origin.AT_LEAST_ONCE}


def test_an_entry_of_the_target_that_speaks_of_an_earlier_copy_gives_way(tmp_path: Path) -> None:
    lay_out(tmp_path)
    stale = {TopicPartition(log_topic("names"), PARTITION): 99}
    totals = {TopicPartition(log_topic("totals"), PARTITION): len("totals")}
    CheckpointFile(tmp_path / str(task_id(3)) / ".checkpoint").write({**totals, **stale})
    CheckpointFile(tmp_path / str(task_id(2)) / ".checkpoint").write({})
    relocate(tmp_path, PRESENT)
    assert CheckpointFile(tmp_path / str(task_id(3)) / ".checkpoint").read() == {}


@pytest.mark.parametrize(("application_id", "kept"), [(None, False), ("app", True), ("app-a", False)])
def test_an_entry_that_may_be_of_two_stores_goes_with_neither_unless_the_application_is_known(
    tmp_path: Path, application_id: str | None, kept: bool
) -> None:
    """The topic app-a-b-changelog may be of the store a-b or b: losing its offset costs a restore, a wrong one more."""
    former = Topology({0: Subtopology(("b", "a-b"))})
    lay_out(tmp_path, former)
    relocate(tmp_path, Topology({1: Subtopology(("a-b",)), 0: Subtopology(("b",))}), application_id=application_id)
    offsets = CheckpointFile(tmp_path / str(task_id(1)) / ".checkpoint").read()
    assert offsets == ({TopicPartition(log_topic("a-b"), PARTITION): 3} if kept else {})


def test_the_position_file_of_kafka_s_follows_its_store(tmp_path: Path) -> None:
    lay_out(tmp_path)
    CheckpointFile(tmp_path / str(task_id(2)) / "names.position").write({TopicPartition("input", 0): 7})
    relocate(tmp_path, PRESENT)
    assert CheckpointFile(tmp_path / str(task_id(3)) / "names.position").read() == {TopicPartition("input", 0): 7}
    assert not (tmp_path / str(task_id(2)) / "names.position").exists()
