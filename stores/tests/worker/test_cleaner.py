"""The clean-up of a worker: what is not used for the delay goes, whatever the system's time does; all else stays."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stores import failpoints
from stores.interface import TopicPartition
from stores.registry import open_store
from stores.tasks import DirectoryLayout, StateDirectory, Subtopology, TaskConfig, TaskId, Topology, change_layout
from stores.tasks.directory.state_directory import REMOVING, Watch, last_used
from stores.tasks.directory.store_places import LAYOUT_FILE
from stores.tasks.identifier import StorePartition
from stores.tests.tasks.directory.relocating import PARTITION, lay_out
from stores.tests.worker.counting_app import PARTITIONS
from stores.tests.worker.places import EmbeddedPlace, expected_counts
from stores.tests.worker.worker_process import WorkerProcess
from stores.tests.worker.worker_thread import ALL, await_counted, await_true, running
from stores.worker import local_copies
from stores.worker.local_copies import Cleaner
from stores.worker.standbys import StandbyCopy

HERE, ELSEWHERE = TaskId(0, 0), TaskId(0, 1)
TOPOLOGY = Topology({0: Subtopology(("counts",))})
DELAY_S = 600.0
DAY_S = 86_400.0
LATER_S = 4e9
"""A time after those of all files, in seconds since 1970."""


class Clock:
    """The worker's own clock."""

    def __init__(self) -> None:
        self.now_s = 1e6

    def __call__(self) -> float:
        return self.now_s


class Stage:
    """A state directory with two tasks, one of which this worker has."""

    def __init__(self, folder: Path) -> None:
        self.state = StateDirectory(folder)
        self.clock = Clock()
        for task_id in (HERE, ELSEWHERE):
            self.fill(task_id, "counts")
        self.cleaned = 0
        self.cleaner = self.started()

    def fill(self, task_id: TaskId, name: str) -> Path:
        """Write a store of a task; return its folder."""
        self.state.lock(task_id, "test").release()
        path = self.state.folder(task_id) / "lmdb" / name
        path.parent.mkdir(exist_ok=True)
        with open_store("lmdb", path, name=name) as store:
            store.put(b"k", b"v")
            store.commit({TopicPartition("log", 0): 1})
        return path

    def started(self) -> Cleaner:
        """A worker that has just begun."""

        def cleaned() -> None:
            self.cleaned += 1

        config = TaskConfig("app", self.state.path, state_cleanup_delay_s=DELAY_S, topology=TOPOLOGY)
        own = Cleaner(config, lambda: {HERE}, cleaned)
        own._watch = Watch(DELAY_S, self.clock)
        return own

    def look(self, after_s: float) -> None:
        """Let the time go by, and let the cleaner look."""
        self.clock.now_s += after_s
        self.cleaner.look()


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_a_folder_of_a_task_elsewhere_goes_after_the_delay_and_that_of_an_own_task_stays(stage: Stage) -> None:
    stage.look(0)
    stage.look(DELAY_S - 1)
    assert stage.state.tasks() == [HERE, ELSEWHERE]
    stage.look(1)
    assert stage.state.tasks() == [HERE]
    assert stage.cleaned == 1


def test_a_folder_that_was_used_meanwhile_stays_for_another_delay(stage: Stage) -> None:
    stage.look(0)
    os.utime(stage.state.folder(ELSEWHERE) / "lmdb" / "counts" / "store.json", (LATER_S, LATER_S))
    assert last_used(stage.state.folder(ELSEWHERE)) == LATER_S
    stage.look(DELAY_S)
    stage.look(DELAY_S - 1)
    assert stage.state.tasks() == [HERE, ELSEWHERE]
    stage.look(1)
    assert stage.state.tasks() == [HERE]


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S])
def test_a_jump_of_the_systems_time_neither_hastens_nor_delays_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    stage.look(0)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + jump_s)
    stage.look(DELAY_S - 1)
    assert stage.state.tasks() == [HERE, ELSEWHERE]
    stage.look(1)
    assert stage.state.tasks() == [HERE]


@pytest.mark.parametrize("written_s", [-DAY_S, DAY_S])
def test_a_folder_with_files_of_another_time_stays_for_the_delay_after_the_first_look(
    stage: Stage, written_s: float
) -> None:
    for entry in stage.state.folder(ELSEWHERE).rglob("*"):
        os.utime(entry, (time.time() + written_s,) * 2)
    stage.look(0)
    stage.look(DELAY_S - 1)
    assert stage.state.tasks() == [HERE, ELSEWHERE]
    stage.look(1)
    assert stage.state.tasks() == [HERE]


def test_a_folder_that_another_process_has_locked_stays_until_that_ends(stage: Stage) -> None:
    code = (
        "import sys; from pathlib import Path; from stores.tasks import StateDirectory, TaskId;"
        "StateDirectory(Path(sys.argv[1])).lock(TaskId(0, 1), 'me'); print('has it', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(stage.state.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "has it\n"
        stage.look(0)
        stage.look(2 * DELAY_S)
        assert stage.state.tasks() == [HERE, ELSEWHERE]
    finally:
        other.kill()
        other.communicate()
    stage.look(2 * DELAY_S)
    assert stage.state.tasks() == [HERE]


def test_a_store_that_the_application_no_longer_names_goes_after_the_delay_also_from_an_own_task(stage: Stage) -> None:
    former = stage.fill(HERE, "former")
    stage.look(0)
    stage.look(DELAY_S - 1)
    assert former.is_dir()
    stage.look(1)
    assert not former.exists()
    assert (stage.state.folder(HERE) / "lmdb" / "counts").is_dir()


def test_a_worker_that_was_killed_while_it_removed_a_folder_leaves_the_rest_to_the_next_one(stage: Stage) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    stage.look(0)
    failpoints.arm(REMOVING, die)
    try:
        with pytest.raises(KeyboardInterrupt):
            stage.look(DELAY_S)
    finally:
        failpoints.disarm(REMOVING)
    rest = stage.state.path / f"{ELSEWHERE}.removed"
    assert rest.is_dir()
    stage.cleaner = stage.started()
    stage.look(0)
    assert not rest.exists()
    assert stage.state.tasks() == [HERE]


def test_an_error_is_logged_once_and_the_next_look_goes_on(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.look(0)
    layout = stage.state.path / LAYOUT_FILE
    layout.write_text("damaged")
    for _ in range(2):
        stage.look(DELAY_S)
    assert [record.levelname for record in caplog.records if record.name == "stores.worker.local_copies"] == ["WARNING"]
    layout.unlink()
    stage.look(0)
    assert stage.state.tasks() == [HERE]


def test_stores_with_folders_of_their_own_go_by_themselves_unless_a_task_of_the_worker_needs_them(
    tmp_path: Path,
) -> None:
    lay_out(tmp_path)
    change_layout(tmp_path, DirectoryLayout.STORE_PARTITION)
    clock, needed = Clock(), StorePartition("counts", PARTITION)
    own = Cleaner(TaskConfig("app", tmp_path, state_cleanup_delay_s=DELAY_S), lambda: {needed})
    own._watch = Watch(DELAY_S, clock)
    own.look()
    clock.now_s += DELAY_S
    own.look()
    assert [str(entry.relative_to(tmp_path)) for entry in tmp_path.glob("*/[0-9]*")] == [str(needed)]


def test_a_worker_cleans_and_keeps_its_own_tasks_and_their_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_copies, "LOOK_S_MIN", 0.02)
    place = EmbeddedPlace(tmp_path)
    words = ["to", "be", "or", "not", "to", "be"]
    place.feed(words)
    state = StateDirectory(tmp_path / "state" / "counting")
    other = TaskId(0, 9)
    state.lock(other, "test").release()
    settings: dict[str, Any] = {"state.cleanup.delay.ms": "50"}
    with running(place, settings) as own:
        await_true(lambda: other not in state.tasks())
        assert own._needed_homes() >= {*ALL, *(StorePartition("counts", task_id.partition) for task_id in ALL)}
        assert state.tasks() == ALL
        place.feed(words)
        await_counted(place, 2 * len(words))
    assert Counter(place.counted()) == expected_counts(2 * words)


def test_a_worker_that_cleans_spares_the_folders_of_its_standby_copies_while_they_are_not_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies that are open are locked. One that waits for its next try, after an error, is not."""
    monkeypatch.setattr(local_copies, "LOOK_S_MIN", 0.02)
    monkeypatch.setattr(StandbyCopy, "step", lambda copy: False)
    place = EmbeddedPlace(tmp_path)
    place.feed([])
    state = StateDirectory(tmp_path / "state" / "counting")
    settings = {"num.standby.replicas": "1", "state.cleanup.delay.ms": "50"}
    other = {**place.properties(), **settings, "state.dir": str(tmp_path / "other")}
    with running(place, settings) as own, WorkerProcess(tmp_path, "other", other):
        await_true(lambda: len(own.status().standbys) == PARTITIONS // 2)
        copies = [copy.task_id for copy in own.status().standbys]
        # The last folder is the youngest: when it is removed, the others have been the same for longer.
        absent = TaskId(0, 9)
        for task_id in [*copies, absent]:
            state.lock(task_id, "test").release()
        await_true(lambda: absent not in state.tasks())
        assert set(copies) <= set(state.tasks())
