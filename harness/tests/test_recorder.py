"""Every operation on files is seen, in order, with its bytes; and a fault strikes at the one it was planned for."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from harness.crash_states.files import Tree
from harness.io_trace import recorder
from harness.io_trace.recorder import NOT_COUNTED, IoOperation, Kind, read_recording
from harness.processes.fork_server import CallOutcome, ForkServer
from stores.errors import ConfigError
from stores.interface import Durability
from stores.registry import backends

WORK = "harness.tests.operations_work:"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


def run(fork_server: ForkServer, function: str, root: Path, **arguments: Any) -> tuple[CallOutcome, list[IoOperation]]:
    recording = root.with_name("recording")
    outcome = fork_server.run(
        WORK + function, {"root": str(root), "recording": str(recording), **arguments}, deadline_s=60
    )
    return outcome, read_recording(recording)


def replayed(operations: list[IoOperation], root: Path, base: Tree | None = None) -> dict[str, bytes | None]:
    """Return the tree that the operations make of an empty folder, or of ``base``."""
    tree = base or Tree()
    for operation in operations:
        tree.apply(operation)
    folder = root.with_name("replayed")
    folder.mkdir()
    tree.write_into(folder)
    return on_disk(folder)


def on_disk(root: Path) -> dict[str, bytes | None]:
    """Every path below ``root`` with its bytes; None for a folder."""
    return {str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in root.rglob("*")}


def counted(operations: list[IoOperation]) -> list[IoOperation]:
    return [operation for operation in operations if operation.kind not in NOT_COUNTED]


def names_mapped(operations: list[IoOperation]) -> set[str]:
    """Files written through maps: what such a file holds is not seen."""
    return {Path(operation.path).name for operation in operations if operation.kind is Kind.MAP_WRITABLE}


def small(backend: str) -> dict[str, object]:
    """Options that make it flush and compact within a few commits, where it has any such."""
    options = backends()[backend].options
    return {name: 8 << 10 for name in options if name.endswith("write_buffer_size_bytes")}


PERSISTENT = [
    (name, level)
    for name, backend in backends().items()
    if backend.persistent
    for level in Durability
    if level in backend.durabilities
]


@pytest.mark.parametrize(("backend", "level"), PERSISTENT)
def test_a_whole_recording_replayed_gives_the_folder_byte_for_byte(
    fork_server: ForkServer, root: Path, backend: str, level: Durability
) -> None:
    outcome, operations = run(
        fork_server, "fill_store", root, backend=backend, durability=level, options=small(backend)
    )
    assert outcome.status == 0, outcome
    unseen = names_mapped(operations)
    kept, made = on_disk(root), replayed(operations, root)
    assert len(kept) > len(unseen) + 2
    assert set(kept) == set(made)
    assert [path for path in kept if kept[path] != made[path] and Path(path).name not in unseen] == []
    assert [operation.index for operation in counted(operations)] == list(range(len(counted(operations))))
    if small(backend):
        flushed = [
            operation.path
            for operation in operations
            if operation.kind is Kind.CREATE and operation.path.endswith(".sst")
        ]
        compacted = [
            operation.path
            for operation in operations
            if operation.kind is Kind.UNLINK and operation.path.endswith(".sst")
        ]
        assert len(flushed) >= 4
        assert compacted


@pytest.mark.parametrize(("backend", "level"), [each for each in PERSISTENT if each[1] is Durability.DISK])
def test_a_store_killed_at_an_operation_leaves_exactly_the_operations_before_it(
    fork_server: ForkServer, root: Path, backend: str, level: Durability
) -> None:
    arguments = {"backend": backend, "durability": level, "options": small(backend), "num_commits": 10}
    _, whole = run(fork_server, "fill_store", root, **arguments)
    for number, at in enumerate(range(3, len(counted(whole)) - 5, len(counted(whole)) // 6)):
        fresh = root.with_name(f"case {number}") / "root"
        fresh.mkdir(parents=True)
        outcome, operations = run(fork_server, "fill_store", fresh, **arguments, plan=["KillAt", at])
        assert outcome.signal == signal.SIGKILL
        assert not outcome.timed_out
        assert len(counted(operations)) == at
        kept, made = on_disk(fresh), replayed(operations, fresh)
        unseen = names_mapped(operations)
        assert set(kept) == set(made)
        assert [path for path in made if kept[path] != made[path] and Path(path).name not in unseen] == []


def test_every_form_of_call_is_one_operation_with_its_bytes(fork_server: ForkServer, root: Path) -> None:
    outcome, operations = run(fork_server, "write_some", root)
    assert outcome.error == ""
    assert outcome.result == len(operations) == len(counted(operations))
    assert on_disk(root) == replayed(operations, root)
    assert [(operation.kind, operation.path) for operation in operations] == [
        (Kind.MKDIR, "a"),
        (Kind.MKDIR, "b"),
        (Kind.CREATE, "a/one"),
        *[(Kind.WRITE, "a/one")] * 5,
        (Kind.TRUNCATE, "a/one"),
        (Kind.ALLOCATE, "a/one"),
        (Kind.SYNC, "a/one"),
        (Kind.DATASYNC, "a/one"),
        (Kind.TRUNCATE, "a/one"),
        (Kind.SYNC, ""),
        (Kind.CREATE, "two"),
        *[(Kind.WRITE, "two")] * 2,
        (Kind.LINK, "two"),
        (Kind.RENAME, "two"),
        (Kind.WRITE, "a/three"),
        (Kind.RENAME, "a"),
        (Kind.WRITE, "c/three"),
        (Kind.WRITE, ""),
        (Kind.TRUNCATE, "c/three"),
        (Kind.CREATE, "c/four"),
        (Kind.WRITE, "c/four"),
        (Kind.CREATE, "c/five"),
        (Kind.WRITE, "c/five"),
        (Kind.UNLINK, "c/five"),
        (Kind.UNLINK, "c/four"),
        (Kind.RMDIR, "b"),
        (Kind.CREATE, "c/six"),
        (Kind.WRITE, "c/six"),
        (Kind.UNLINK, "c/six"),
        (Kind.SYNC_ALL, ""),
    ]
    assert [(operation.offset, operation.data) for operation in operations if operation.kind is Kind.WRITE][:7] == [
        (0, b"written"),
        (20, b"by position"),
        (7, b" in parts"),
        (40, b"parts there"),
        (16, b" through a copy"),
        (0, b"first"),
        (5, b"appended all the same"),
    ]
    made = [operation.file for operation in operations if operation.kind in (Kind.CREATE, Kind.MKDIR)]
    assert len(set(made)) == len(made) == 7
    assert {operation.file for operation in operations if operation.synchronous} == {
        operation.file for operation in operations if operation.path == "two"
    }
    assert {operation.target for operation in operations if operation.target} == {"a/three", "a/one", "c"}


def test_a_kill_leaves_exactly_the_first_operations_at_every_place(fork_server: ForkServer, root: Path) -> None:
    _, whole = run(fork_server, "write_some", root)
    for at in range(len(whole)):
        fresh = root.with_name(f"case {at}") / "root"
        fresh.mkdir(parents=True)
        outcome, operations = run(fork_server, "write_some", fresh, plan=["KillAt", at])
        assert outcome.signal == signal.SIGKILL
        assert operations == whole[:at]
        assert on_disk(fresh) == replayed(whole[:at], fresh)


@pytest.mark.parametrize("num_bytes", [0, 1, 4, 100])
def test_a_torn_write_is_its_first_bytes_and_nothing_after_it(
    fork_server: ForkServer, root: Path, num_bytes: int
) -> None:
    _, whole = run(fork_server, "write_some", root)
    for path in list(root.iterdir()):
        path.rename(root.with_name(f"old {path.name}"))
    outcome, operations = run(fork_server, "write_some", root, plan=["Tear", 5, num_bytes])
    assert outcome.signal == signal.SIGKILL
    assert operations[:5] == whole[:5]
    assert whole[5].data == b" in parts"
    assert [operation.data for operation in operations[5:]] == ([whole[5].data[:num_bytes]] if num_bytes else [])
    assert on_disk(root) == replayed(operations, root)


def test_what_is_no_write_is_not_torn_but_killed_at(fork_server: ForkServer, root: Path) -> None:
    outcome, operations = run(fork_server, "write_some", root, plan=["Tear", 8, 5])
    assert outcome.signal == signal.SIGKILL
    assert len(operations) == 8


def test_a_call_fails_once_and_does_nothing(fork_server: ForkServer, root: Path) -> None:
    calls = ["write", "fsync", "rename", "mkdir", "posix_fallocate", "ftruncate", "open", "unlink", "unlink not there"]
    fine: list[int | None] = [6, *[None] * 7, errno.ENOENT]
    for number, call in enumerate(calls[:-1]):
        fresh = root.with_name(call) / "root"
        fresh.mkdir(parents=True)
        outcome, operations = run(fork_server, "attempts", fresh, plan=["Fail", number + 1, errno.EIO])
        answers, fired = outcome.result
        expected = [errno.EIO if i == number else answer for i, answer in enumerate(fine)]
        if call == "rename":
            # The next but some unlinks what was not renamed.
            expected[calls.index("unlink")] = errno.ENOENT
        assert answers == expected
        assert fired == 1
        assert on_disk(fresh) == replayed(operations, fresh)


def test_a_lasting_error_meets_every_later_operation(fork_server: ForkServer, root: Path) -> None:
    outcome, operations = run(fork_server, "attempts", root, plan=["Fail", 2, errno.ENOSPC, True])
    answers, fired = outcome.result
    # What would fail anyway, and what is no operation, is left as it is: there is no "renamed" to unlink.
    assert answers == [6, *[errno.ENOSPC] * 6, errno.ENOENT, errno.ENOENT]
    assert fired == 6
    assert [operation.kind for operation in operations] == [Kind.CREATE, Kind.WRITE, Kind.SYNC_FAILED]
    assert on_disk(root) == {"file": b"123456"}


def test_an_engine_pauses_only_briefly_after_a_failed_call(fork_server: ForkServer, root: Path) -> None:
    """RocksDB's threads wait for a second before they try again."""
    outcome, _ = run(fork_server, "pause", root, plan=["Fail", 0, errno.ENOSPC, True], microseconds=900_000)
    before, after = outcome.result
    assert before >= 0.9
    assert after < 0.5


def test_a_short_write_says_how_much_it_did(fork_server: ForkServer, root: Path) -> None:
    outcome, operations = run(fork_server, "attempts", root, plan=["Short", 1, 4])
    answers, fired = outcome.result
    assert answers[0] == 4
    assert answers[1:] == [None] * 7 + [errno.ENOENT]
    assert fired == 1
    assert operations[1].data == b"1234"
    assert on_disk(root) == replayed(operations, root)


def test_a_lasting_short_write_meets_every_later_write(fork_server: ForkServer, root: Path) -> None:
    outcome, _ = run(fork_server, "write_thrice", root, plan=["Short", 2, 4, True])
    assert outcome.result == [[10, 4, 4, 3], 2]


def test_no_short_write_of_what_is_no_write(fork_server: ForkServer, root: Path) -> None:
    outcome, _ = run(fork_server, "attempts", root, plan=["Short", 2, 4])
    assert outcome.result == [[6, *[None] * 7, errno.ENOENT], 0]


def test_operations_and_notes_of_several_threads_have_one_order(fork_server: ForkServer, root: Path) -> None:
    _, operations = run(fork_server, "write_from_threads", root)
    assert on_disk(root) == replayed(operations, root)
    assert [operation.index for operation in counted(operations)] == list(range(201))
    written: list[str] = []
    count = 0
    for operation in operations:
        if operation.kind is Kind.WRITE:
            written.append(operation.data.decode().strip())
        elif operation.kind is Kind.NOTE:
            assert operation.index == count
            # Its own write lies before it, and is its thread's last.
            assert [line for line in written if line.split()[0] == operation.text.split()[0]][-1] == operation.text
        count += operation.kind is not Kind.NOTE
    assert len(written) == 200


def test_a_note_is_never_beside_the_operation_that_it_says_it_precedes(fork_server: ForkServer, root: Path) -> None:
    _, operations = run(fork_server, "note_beside_writes", root)
    count, misplaced = 0, 0
    for operation in operations:
        misplaced += operation.index != count
        count += operation.kind is not Kind.NOTE
    assert (misplaced, count, len(operations)) == (0, 6002, 12002)


@pytest.mark.parametrize(("at", "failed"), [(10, "a/one"), (13, ""), (4, None)])
def test_after_a_failed_call_the_process_is_killed_and_a_failed_sync_is_reported(
    fork_server: ForkServer, root: Path, at: int, failed: str | None
) -> None:
    outcome, operations = run(fork_server, "write_some", root, plan=["FailThenKill", at, errno.EIO])
    assert len(counted(operations)) == at
    assert [operation.path for operation in operations if operation.kind is Kind.SYNC_FAILED] == (
        [] if failed is None else [failed]
    )
    assert outcome.signal == signal.SIGKILL or outcome.error.startswith("OSError")


@pytest.mark.parametrize(("error", "unkept"), [(errno.EIO, True), (errno.ENOSPC, False)])
def test_an_io_error_of_a_synchronous_write_is_of_its_sync_and_leaves_what_it_wrote(
    fork_server: ForkServer, root: Path, error: int, unkept: bool
) -> None:
    outcome, operations = run(fork_server, "write_synchronously", root, plan=["Fail", 2, error])
    assert outcome.result == [error, 1]
    assert on_disk(root) == replayed(operations, root) == {"file": b"one" + b"two" * unkept + b"three"}
    assert [
        (operation.data, operation.synchronous, operation.unkept)
        for operation in operations
        if operation.kind is Kind.WRITE
    ] == [
        (b"one", True, False),
        *([(b"two", False, True)] if unkept else []),
        (b"three", True, False),
    ]


def test_notes_lie_in_order_among_a_stores_operations(fork_server: ForkServer, root: Path) -> None:
    backend, level = PERSISTENT[0]
    _, operations = run(fork_server, "fill_store", root, backend=backend, durability=level, options={}, num_commits=4)
    notes = [operation.text for operation in operations if operation.kind is Kind.NOTE]
    assert notes == [f"{what} {i}" for i in range(4) for what in ("attempt", "ack")]


def test_files_that_were_there_before_are_found_by_their_names(fork_server: ForkServer, root: Path) -> None:
    (root / "folder").mkdir()
    (root / "folder" / "file").write_text("contents")
    (root / "gone").write_text("going")
    (root / "link").write_text("two names")
    os.link(root / "link", root / "linked")
    base = Tree.read(root)
    _, operations = run(fork_server, "change_a_base", root)
    assert on_disk(root) == replayed(operations, root, base)
    assert on_disk(root)["link"] == b"two"
    assert root.with_name("outside").read_text() == "not ours"
    assert b"not ours" not in [operation.data for operation in operations]
    assert (
        len({operation.file for operation in operations if operation.path in ("moved/file", "new", "gone", "linked")})
        == 4
    )


def test_a_shared_writable_map_is_reported_and_no_place_for_a_fault(fork_server: ForkServer, root: Path) -> None:
    _, operations = run(fork_server, "map_shared", root)
    assert [(operation.index, operation.kind, operation.path) for operation in operations] == [
        (0, Kind.MAP_WRITABLE, "file"),
        (0, Kind.DATASYNC, "file"),
        (1, Kind.MAP_WRITABLE, "file"),
    ]


def test_a_sync_of_everything_can_fail_too(fork_server: ForkServer, root: Path) -> None:
    outcome, operations = run(fork_server, "sync_everything", root, plan=["Fail", 0, errno.EIO])
    assert (outcome.result, operations) == (1, [])


def test_what_cannot_be_recorded_is_refused(fork_server: ForkServer, root: Path) -> None:
    outcome = fork_server.run(WORK + "refused", {"root": str(root)}, deadline_s=10)
    assert len(outcome.result) == 10
    assert on_disk(root) == {"from": b"bytes"}
    assert not (root.parent / "elsewhere").exists()


def test_other_processes_are_not_watched(fork_server: ForkServer, root: Path) -> None:
    outcome, operations = run(fork_server, "start_a_child_that_writes", root)
    assert outcome.error == ""
    assert [operation.path for operation in operations] == ["own"]
    assert set(on_disk(root)) == {"own", "foreign", "forked"}


def test_a_process_is_watched_once(fork_server: ForkServer, root: Path) -> None:
    outcome = fork_server.run(WORK + "begin_twice", {"root": str(root)}, deadline_s=10)
    assert outcome.error.startswith("ConfigError")


def test_a_recordings_torn_tail_is_dropped(fork_server: ForkServer, root: Path, tmp_path: Path) -> None:
    _, operations = run(fork_server, "write_some", root)
    raw = root.with_name("recording").read_bytes()
    cut = tmp_path / "cut"
    lengths = set()
    for size in range(len(raw)):
        cut.write_bytes(raw[:size])
        read = read_recording(cut)
        assert read == operations[: len(read)]
        lengths.add(len(read))
    assert lengths == set(range(len(operations)))
    cut.write_bytes(b"something else")
    with pytest.raises(ConfigError):
        read_recording(cut)


@pytest.mark.parametrize(
    "plan",
    [
        recorder.KillAt(-1),
        recorder.Tear(0, -1),
        recorder.Fail(0, 0),
        recorder.Short(0, 0),
        recorder.FailThenKill(0, 0),
    ],
)
def test_a_plan_that_cannot_be_done_is_refused(fork_server: ForkServer, root: Path, plan: recorder.Plan) -> None:
    told = [type(plan).__name__, *(getattr(plan, name) for name in plan.__dataclass_fields__)]
    outcome = fork_server.run(WORK + "write_some", {"root": str(root), "plan": told}, deadline_s=10)
    assert outcome.error.startswith("ConfigError")
    assert on_disk(root) == {}


def test_a_recording_below_the_folder_it_records_is_refused(fork_server: ForkServer, root: Path) -> None:
    arguments = {"root": str(root), "recording": str(root / "recording")}
    assert fork_server.run(WORK + "write_some", arguments, deadline_s=10).error.startswith("ConfigError")


def test_without_the_recorder_nothing_is_watched(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        recorder.begin(tmp_path)
