"""A process that is paused while it sends a snapshot, and wakes after another one has its task, does no harm."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

from stores import failpoints
from stores.changelog import SqliteChangelog
from stores.errors import ProducerFencedError
from stores.snapshots import taking
from stores.tests.snapshots.snapshotting import (
    RECORDS,
    WITHIN_S,
    commit,
    lose,
    objects_in,
    pairs_of,
    reopened,
    send,
    settings,
    snap,
    snapping,
)
from stores.tests.store_process import forked
from stores.tests.tasks.setup import INDEXED, logged

FENCED = "fenced"


def pause() -> None:
    """Stop this process once, until it is continued."""
    failpoints.disarm()
    os.kill(os.getpid(), signal.SIGSTOP)


def be_paused(path: Path, backend: str, failpoint: str) -> None:
    """Own the task, and be stopped while a snapshot is sent; then send it, and find another owner at the commit."""
    with SqliteChangelog(path / "log.sqlite") as log:
        task = snapping(path / "zombie", log, backend, settings(path))
        task.open()
        failpoints.arm(failpoint, pause)
        try:
            while True:
                send(log, pairs_of(range(5), b"zombie"))
                commit(task)
        except ProducerFencedError:
            (path / FENCED).touch()


def await_pause(pid: int) -> None:
    deadline = time.monotonic() + WITHIN_S
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline, "the process was not stopped"
        time.sleep(0.01)


@pytest.mark.parametrize("backend", [INDEXED, "lmdb-native", "sqlite-indexed-batch"])
@pytest.mark.parametrize("failpoint", [taking.PART_SENT, taking.SENT])
def test_a_paused_owner_that_wakes_later_does_no_harm(tmp_path: Path, backend: str, failpoint: str) -> None:
    snapshots = settings(tmp_path)
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        for topic in ("input", "output"):
            log.create_topic(topic)
        send(log, pairs_of(range(RECORDS)))
    zombie = forked(be_paused, tmp_path, backend, failpoint)
    assert zombie.pid is not None
    try:
        await_pause(zombie.pid)
        with (
            SqliteChangelog(tmp_path / "log.sqlite") as log,
            closing(snapping(tmp_path, log, backend, snapshots)) as owner,
        ):
            owner.open()
            send(log, pairs_of(range(10, 20), b"owner"))
            offsets = [snap(owner, log), snap(owner, log)]
            os.kill(zombie.pid, signal.SIGCONT)
            zombie.join(WITHIN_S)
            assert zombie.exitcode == 0
            assert (tmp_path / FENCED).exists()
            # What it had begun is there: the commit that it made when it owned the task.
            found = [name.offset for name in objects_in(snapshots).indexes()]
            assert found[0] == offsets[-1]
            assert any(offset < offsets[0] for offset in found)
            offsets.append(snap(owner, log))
            expected = logged(log, "s")
        lose(tmp_path)
        with SqliteChangelog(tmp_path / "log.sqlite") as log:
            restored, report = reopened(tmp_path, log, backend, snapshots)
            assert (restored, report.snapshot_offset) == (expected, offsets[-1])
            # Also from the files of the zombie alone.
            lose(tmp_path)
            objects = objects_in(snapshots)
            for name in objects.indexes():
                if name.offset >= offsets[0]:
                    objects.remove("index", str(name))
            restored, report = reopened(tmp_path, log, backend, snapshots)
            assert restored == expected
            assert report.snapshot_offset is not None
            assert report.snapshot_offset < offsets[0]
    finally:
        zombie.kill()
        zombie.join()
