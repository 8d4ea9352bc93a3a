"""Stores that the topology no longer names: kept, reported, and removed after a delay."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stores.files.creation import is_store
from stores.interface import TopicPartition
from stores.registry import open_store
from stores.tasks import (
    StateDirectory,
    Subtopology,
    TaskConfig,
    Topology,
    relocate,
)
from stores.tasks.directory.entry_files import CheckpointFile, Origin, OriginFile
from stores.tests.tasks.directory.relocating import (
    FORMER,
    PARTITION,
    lay_out,
    log_topic,
    task_id,
)


def test_a_store_that_is_no_longer_named_is_kept_and_reported_and_removed_after_the_delay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The delay begins when it is first missed, not with its last use before: a slip in the topology can be mended."""
    lay_out(tmp_path)
    for entry in tmp_path.rglob("*"):
        os.utime(entry, (1e9, 1e9))
    fewer = Topology({2: Subtopology(("counts",)), 3: Subtopology(("totals",)), 4: Subtopology(("rates",))})
    config = TaskConfig("app", tmp_path, topology=fewer, state_cleanup_delay_s=600.0)
    path = tmp_path / str(task_id(2)) / "lmdb" / "names"
    with caplog.at_level("WARNING", "stores.tasks"):
        relocation = relocate(tmp_path, fewer)
    assert relocation.unnamed == (("names", path),)
    assert len(caplog.records) == 1
    young = tmp_path / str(task_id(2)) / "lmdb" / "counts" / "store.json"
    young.touch()
    for number in (3, 4):
        (tmp_path / str(task_id(number)) / "lmdb").joinpath(
            FORMER.subtopologies[number].stores[0], "store.json"
        ).touch()
    assert config.clean() == []
    assert path.is_dir()
    since = json.loads((tmp_path / ".unnamed").read_text())
    assert list(since) == ["2_14/lmdb/names"]
    (tmp_path / ".unnamed").write_text(json.dumps(dict.fromkeys(since, 1e9)))
    # Named again meanwhile: then it is not missed any more.
    relocate(tmp_path, FORMER)
    relocate(tmp_path, fewer)
    config.clean()
    assert path.is_dir()
    (tmp_path / ".unnamed").write_text(json.dumps(dict.fromkeys(since, 1e9)))
    config.clean()
    assert not path.exists()
    assert CheckpointFile(tmp_path / str(task_id(2)) / ".checkpoint").read() == {
        TopicPartition(log_topic("counts"), PARTITION): len("counts")
    }
    assert OriginFile(tmp_path / str(task_id(2)) / ".origin").read(()) == {"counts": Origin.CLEAN}
    assert young.exists()


def test_an_unnamed_store_that_is_open_or_has_foreign_files_stays(tmp_path: Path) -> None:
    from stores.tasks.directory.unnamed_stores import clean_stores

    folder = tmp_path / str(task_id(0)) / "lmdb"
    state_directory = StateDirectory(tmp_path)
    open_store("lmdb", folder / "mine").close()
    (folder / "mine" / "letter").write_text("dear")
    (folder / "strange").mkdir()
    (folder / "strange" / "letter").write_text("dear")
    # The unfinished upgrade of a store belongs to it: the two go together, or stay together.
    open_store("lmdb", folder / "half").close()
    (folder / "half.prepare").mkdir()
    (folder / "half.prepare" / "letter").write_text("dear")
    with open_store("lmdb", folder / "open"):
        assert clean_stores(state_directory, FORMER, -1.0) == []
    # Also while its task is open, which does not have it.
    lock = state_directory.lock(task_id(0), "somebody")
    assert clean_stores(state_directory, FORMER, -1.0) == [folder / "open"]
    lock.release()
    assert {entry.name for entry in folder.iterdir()} == {"mine", "strange", "half", "half.prepare"}
    assert all(is_store(folder / name) for name in ("mine", "half"))
