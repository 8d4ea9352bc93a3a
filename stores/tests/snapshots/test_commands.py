"""``txstores snapshots`` lists, verifies and removes the snapshots of all stores in a folder."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from stores import failpoints
from stores.changelog import Changelog
from stores.command import main
from stores.files.identity import present_version
from stores.interface import TopicPartition
from stores.registry import open_store
from stores.shell import snapshot_files
from stores.snapshots import restoring
from stores.snapshots.objects import FILES, folder_name, partition_of
from stores.tests.snapshots.snapshotting import CHANGELOG, objects_in, pairs_of, send, settings, snap, snapping
from stores.tests.tasks.setup import INDEXED


def run(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> list[dict[str, object]]:
    assert main(["snapshots", *map(str, arguments), "--json"]) == status
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def offsets(tmp_path: Path, log: Changelog) -> list[int]:
    """Three snapshots, as of these offsets."""
    with closing(snapping(tmp_path, log, INDEXED, settings(tmp_path, keep=9))) as task:
        task.open()
        taken = []
        for number in range(3):
            send(log, pairs_of(range(100), b"value %d" % number))
            taken.append(snap(task, log))
        return taken


def test_snapshots_are_listed(tmp_path: Path, offsets: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    location = tmp_path / "snapshots"
    for place in (location, location.as_uri()):
        lines = run(capsys, "list", place)
        assert [line["offset"] for line in lines] == offsets[::-1]
        assert {line["store"] for line in lines} == {"app-s-changelog-0"}
        assert {line["backend"] for line in lines} == {INDEXED}
        assert all(isinstance(line["bytes"], int) and line["bytes"] > 1_000 for line in lines)
    assert main(["snapshots", "list", str(location)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_verify_finds_a_damaged_snapshot(
    tmp_path: Path, offsets: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    location = tmp_path / "snapshots"
    assert {line["problem"] for line in run(capsys, "verify", location)} == {"none"}
    objects = objects_in(settings(tmp_path))
    newest, *older = [objects.index(name) for name in objects.indexes()]
    [part, *_] = set(newest.parts()) - {part for index in older for part in index.parts()}
    file = location / "app-s-changelog-0/files" / str(part)
    file.write_bytes(file.read_bytes()[:-1])
    problems = {line["offset"]: line["problem"] for line in run(capsys, "verify", location, status=1)}
    assert [problems[offset] == "none" for offset in offsets] == [True, True, False]
    (location / "app-s-changelog-0/index" / str(older[0].name)).write_bytes(b"{}")
    problems = {line["offset"]: line["problem"] for line in run(capsys, "verify", location, status=1)}
    assert [problems[offset] == "none" for offset in offsets] == [True, False, False]
    assert "problem" in run(capsys, "list", location)[1]


STORE = "app-s-changelog-0"


def damage(folder: Path, offset: int) -> None:
    """Cut a part that only the snapshot of this offset has."""
    objects = objects_in(settings(folder))
    indexes = [objects.index(name) for name in objects.indexes()]
    others = {part for index in indexes if index.offset != offset for part in index.parts()}
    [part, *_] = {part for index in indexes if index.offset == offset for part in index.parts()} - others
    file = folder / "snapshots" / objects.path(FILES, part)
    file.write_bytes(file.read_bytes()[:-1])


def values_in(path: Path) -> set[bytes]:
    """The first words of the values of all 100 records."""
    with open_store(INDEXED, path) as store:
        values = [value for key, value in store.all() if key.startswith(b"key")]
        assert len(values) == 100
        return {value[: len(b"value 0")] for value in values}


@pytest.mark.parametrize("number", [0, 1, 2, None])
def test_a_snapshot_is_restored_into_a_new_folder(
    tmp_path: Path, offsets: list[int], capsys: pytest.CaptureFixture[str], number: int | None
) -> None:
    place, wanted = tmp_path / "new", 2 if number is None else number
    chosen = () if number is None else ("--offset", offsets[number])
    [line] = run(capsys, "restore", tmp_path / "snapshots", STORE, place, *chosen)
    assert (line["store"], line["offset"], line["backend"]) == (STORE, offsets[wanted], INDEXED)
    assert values_in(place) == {b"value %d" % wanted}
    assert main(["verify", str(place)]) == 0


def test_a_damaged_snapshot_is_not_restored_but_the_one_before(
    tmp_path: Path, offsets: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    location, place = tmp_path / "snapshots", tmp_path / "new"
    damage(tmp_path, offsets[2])
    assert run(capsys, "restore", location, STORE, place, "--offset", offsets[2], status=1) == []
    assert main(["snapshots", "restore", str(location), STORE, str(place)]) == 0
    output = capsys.readouterr()
    assert f"The snapshot of offset {offsets[2]} was not used: " in output.err
    assert str(offsets[1]) in output.out
    assert values_in(place) == {b"value 1"}


def test_what_is_in_a_folder_is_not_replaced_by_a_snapshot(
    tmp_path: Path, offsets: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    location, place = tmp_path / "snapshots", tmp_path / "own"
    with open_store(INDEXED, place) as store:
        store.put(b"k", b"v")
        store.commit()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path in (place, tmp_path / "file", tmp_path / "link"):
        assert main(["snapshots", "restore", str(location), STORE, str(path)]) == 2
        assert "is there already" in capsys.readouterr().err
    with open_store(INDEXED, place) as store:
        assert store.get(b"k") == b"v"
    assert (tmp_path / "file").read_text() == "mine"


def test_a_restore_that_was_killed_is_begun_again(
    tmp_path: Path, offsets: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    begun, left = tmp_path / "begun", tmp_path / "left"

    def look() -> None:
        shutil.copytree(begun, left)

    failpoints.arm(restoring.FILES_FETCHED, look)
    try:
        run(capsys, "restore", tmp_path / "snapshots", STORE, begun)
    finally:
        failpoints.disarm()
    assert (left / "data").is_dir()
    run(capsys, "restore", tmp_path / "snapshots", STORE, left)
    assert values_in(left) == values_in(begun) == {b"value 2"}


def test_a_snapshot_of_another_format_is_not_restored(
    tmp_path: Path, offsets: list[int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_files, "present_version", lambda: present_version() + 1)
    place = tmp_path / "new"
    assert main(["snapshots", "restore", str(tmp_path / "snapshots"), STORE, str(place)]) == 1
    assert capsys.readouterr().err.count("was not used: it has the format version") == 3
    assert not place.exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["app-s-changelog-9"], "did you mean 'app-s-changelog-0'?"),
        ([STORE, "--offset", "7"], "no snapshot of offset 7"),
        ([STORE, "--offset", "x"], "invalid int value"),
    ],
)
def test_a_snapshot_that_is_not_there_is_refused_before_anything_is_made(
    tmp_path: Path, offsets: list[int], capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    store, *options = arguments
    try:
        status = main(["snapshots", "restore", str(tmp_path / "snapshots"), store, str(tmp_path / "new"), *options])
    except SystemExit as ended:
        status = int(str(ended.code))
    assert status == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_prune_keeps_the_newest(tmp_path: Path, offsets: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    location = tmp_path / "snapshots"
    [line] = run(capsys, "prune", location)
    assert (line["removed_snapshots"], line["removed_objects"]) == (0, 0)
    [line] = run(capsys, "prune", location, "--keep", 1, "--grace-s", 0)
    assert line["removed_snapshots"] == 2
    assert [line["offset"] for line in run(capsys, "list", location)] == offsets[-1:]
    assert {line["problem"] for line in run(capsys, "verify", location)} == {"none"}


def test_an_empty_folder_and_bad_arguments_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snapshots", "list", str(tmp_path)]) == 0
    assert "no snapshots" in capsys.readouterr().err
    assert main(["snapshots", "prune", str(tmp_path), "--keep", "0"]) == 2
    assert main(["snapshots", "list", "unknown://host/x"]) == 2


@pytest.mark.parametrize("partition", [CHANGELOG, TopicPartition("a-b", 12), TopicPartition("a/b%2F é", 0)])
def test_a_store_has_a_folder_of_its_own(partition: TopicPartition) -> None:
    assert "/" not in folder_name(partition)
    assert partition_of(folder_name(partition)) == partition
    assert partition_of("lost+found") is None
