"""A store that begins from files and changes is whole, whatever the backend, or there is none."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stores.changelog import Changelog
from stores.command import main
from stores.errors import StoreUnavailableError
from stores.registry import backend_named, open_store
from stores.snapshots import Snapshots
from stores.snapshots.objects import FILES, StoreObjects
from stores.snapshots.restoring import make_store
from stores.tests.snapshots.snapping_store import (
    CHANGING,
    over_each_changing_backend,
    put,
    restored,
    snapping_store,
)
from stores.tests.snapshots.snapshotting import (
    lose,
    objects_in,
    pairs_of,
    reopened,
    send,
    settings,
    snap,
    snapping,
    store_path,
)
from stores.tests.tasks.setup import INDEXED, logged


@pytest.mark.parametrize("backend", ["lmdb-native", "sqlite-indexed-batch"])
@pytest.mark.parametrize("damage", ["zeros", "count", "no key"])
def test_a_damaged_file_of_changes_makes_no_store(
    tmp_path: Path, backend: str, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it had been sent with the damage."""
    with snapping_store(tmp_path, backend) as snapping:
        snapping.put_and_snap(range(5_000), b"x" * 100)
        snapping.put_and_snap(range(10), b"y")
        index = snapping.newest()
        [[part]] = [file.parts for file in index.changes]
        path = tmp_path / "snapshots" / snapping.objects.path(FILES, part)
        content = path.read_bytes()
        at = content.rindex(b"K") + 1
        path.write_bytes(
            {
                "zeros": bytes(len(content)),
                "count": content[:at] + b"\xff" * 4 + content[at + 4 :],
                "no key": content[: at + 4] + bytes(4) + content[at + 8 :],
            }[damage]
        )

        def unverified(self: StoreObjects, part: object, write: Any) -> None:
            write(0, memoryview(self.folder.read(self.path(FILES, part))))

        monkeypatch.setattr(StoreObjects, "fetch", unverified)
        with pytest.raises(StoreUnavailableError, match="remove the snapshot"):
            restored(snapping, index, tmp_path / "restored")
        assert not (tmp_path / "restored" / "format.json").exists()


@over_each_changing_backend
def test_a_task_of_another_backend_begins_from_files_and_changes(tmp_path: Path, log: Changelog, backend: str) -> None:
    snapshots: Snapshots = settings(tmp_path)
    with closing(snapping(tmp_path, log, backend, snapshots)) as task:
        task.open()
        send(log, pairs_of(range(3_000)))
        snap(task, log)
        send(log, [*pairs_of(range(50), b"later"), *((key, b"") for key, _ in pairs_of(range(100, 120)))])
        offset = snap(task, log)
    objects = objects_in(snapshots)
    assert objects.index(objects.indexes()[0]).changes
    for other in (backend, INDEXED, CHANGING[0]):
        lose(tmp_path)
        contents, report = reopened(tmp_path, log, other, snapshots)
        assert (contents, report.snapshot_offset) == (logged(log, "s"), offset)


@over_each_changing_backend
def test_damaged_changes_lead_to_the_snapshot_before(tmp_path: Path, log: Changelog, backend: str) -> None:
    snapshots = settings(tmp_path)
    with closing(snapping(tmp_path, log, backend, snapshots)) as task:
        task.open()
        send(log, pairs_of(range(3_000)))
        offsets = [snap(task, log)]
        for number in range(2):
            send(log, pairs_of(range(50), b"later %d" % number))
            offsets.append(snap(task, log))
    objects = objects_in(snapshots)
    for changed, offset in zip(offsets[:0:-1], offsets[-2::-1], strict=True):
        [index] = [index for name in objects.indexes() if (index := objects.index(name)).offset == changed]
        path = tmp_path / "snapshots" / objects.path(FILES, index.changes[-1].parts[-1])
        path.write_bytes(path.read_bytes()[::-1])
        lose(tmp_path)
        contents, report = reopened(tmp_path, log, backend, snapshots)
        assert (contents, report.snapshot_offset) == (logged(log, "s"), offset)
        assert [file.name for file in store_path(tmp_path, backend).parent.iterdir()] == ["s"]


@over_each_changing_backend
def test_marks_that_were_removed_stay_so(tmp_path: Path, backend: str) -> None:
    with snapping_store(tmp_path, backend) as snapping:
        put(snapping.store, range(1_000), b"x")
        for name in ("kept", "removed"):
            snapping.store.set_mark(name, b"value")
        snapping.commit()
        snapping.snap()
        snapping.store.set_mark("removed", None)
        snapping.commit()
        snapping.snap()
        assert snapping.newest().changes
        restored(snapping, snapping.newest(), tmp_path / "restored")
    with open_store(backend, tmp_path / "restored") as store:
        assert [store.mark(name) for name in ("kept", "removed")] == [b"value", None]


class EndedError(Exception):
    """A restore is to end."""


@over_each_changing_backend
def test_a_restore_tells_of_its_progress_and_can_be_ended_while_changes_are_applied(
    tmp_path: Path, backend: str
) -> None:
    with snapping_store(tmp_path, backend) as snapping:
        snapping.put_and_snap(range(5_000), b"x")
        snapping.put_and_snap(range(1_000), b"y")
        index, expected = snapping.newest(), dict(snapping.store.all())
    told: list[int] = []

    def tell(num_bytes: int) -> None:
        told.append(num_bytes)
        if told.count(index.num_bytes) == 5:
            raise EndedError

    with pytest.raises(EndedError):
        make_store(snapping.objects, index, tmp_path / "restored", backend_named(backend), 2, tell)
    assert told == sorted(told)
    assert [path.name for path in (tmp_path / "restored").iterdir()] == ["lock"]
    assert restored(snapping, index, tmp_path / "restored") == (expected, index.offset)


def test_the_commands_count_files_of_changes_and_restore_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with snapping_store(tmp_path, "lmdb-indexed-batch") as snapping:
        snapping.put_and_snap(range(1_000), b"x")
        snapping.put_and_snap(range(10), b"y")
        expected = dict(snapping.store.all())
    location = str(tmp_path / "snapshots")
    assert main(["snapshots", "list", location, "--json"]) == 0
    assert [json.loads(line)["files"] for line in capsys.readouterr().out.splitlines()] == [2, 1]
    assert main(["snapshots", "verify", location]) == 0
    assert main(["snapshots", "restore", location, "changelog-0", str(tmp_path / "looked at")]) == 0
    with open_store("lmdb-indexed-batch", tmp_path / "looked at") as store:
        assert dict(store.all()) == expected


@over_each_changing_backend
def test_changes_are_in_large_parts_and_need_room_twice(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with snapping_store(tmp_path, backend) as snapping:
        snapping.put_and_snap(range(1_000), b"x" * 10_000)
        snapping.put_and_snap(range(300), b"y" * 10_000)
        index, expected = snapping.newest(), dict(snapping.store.all())
    [file] = index.changes
    assert [len(file.parts), file.num_bytes > 3_000_000] == [1, True]
    needed = index.num_bytes + file.num_bytes
    free = needed - 1
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    with pytest.raises(StoreUnavailableError, match="make room"):
        restored(snapping, index, tmp_path / "restored")
    free = needed
    assert restored(snapping, index, tmp_path / "restored") == (expected, index.offset)
