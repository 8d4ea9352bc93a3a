"""Every persistent backend keeps its promises under faults below the process: some points of each case."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from harness.checkers.prefix import Demand, Found, PrefixFinding, Promised
from harness.crash_states.files import Tree
from harness.experiments.iofaults import workload
from harness.experiments.iofaults.case import IoFaultCase
from harness.experiments.iofaults.damage import Damage, damage, plan
from harness.experiments.iofaults.fault import IO_FAULTS as FAULTS
from harness.experiments.iofaults.fault import Plan, Row
from harness.experiments.iofaults.power import UnseenWritesError, check_maps
from harness.experiments.iofaults.subjects import (
    CHANGELOG,
    CHECKPOINT,
    LAYOUT_CHANGE,
    OFFSET_IMPORTS,
    ONLINE_UPGRADE,
    PUNCTUATION,
    RELOCATION,
    TASKS,
    UPGRADE,
    shown,
    subjects,
)
from harness.experiments.iofaults.workshop import Life, Workshop
from harness.io_trace.recorder import IoOperation, Kind
from harness.processes.fork_server import CallOutcome, ForkServer
from harness.tests.exploring import SEED, explore, rows_of
from stores.errors import ConfigError

pytestmark = pytest.mark.usefixtures("own_recordings")

COMMITS = 6
BACKENDS = sorted({name for name, _ in subjects()} - (set(TASKS[2:]) - {PUNCTUATION, ONLINE_UPGRADE}))
"""Two pairs of engines are enough for tasks here: a run tries the others as well."""
AT_DISK = [name for name, level in subjects() if level == "DISK" and name in BACKENDS]


def broken(rows: list[Row]) -> list[Mapping[str, Any]]:
    return [row for row in rows if not row["expected"]]


@pytest.mark.parametrize("name", BACKENDS)
def test_a_kill_anywhere_leaves_a_commit_that_was_promised(name: str, fork_server: ForkServer) -> None:
    # "PROCESS" comes last of the three: a kill has most to show there.
    level = max(level for subject, level in subjects() if subject == name)
    rows = explore(fork_server, IoFaultCase(name, level, "kill", commits=COMMITS), places=7)
    assert len(rows) == 7
    assert broken(rows) == []


TYPED = (
    ("window", "sqlite-native"),
    ("session", "lmdb-indexed-batch"),
    ("timestamped-key-value", "rocksdb-dual-store"),
)


# Each fault and each kind once: what expires is dropped above the engines.
@pytest.mark.parametrize(
    ("kind", "name", "fault"),
    [
        pytest.param(*typed, fault, marks=[] if at_kind == at_fault % len(TYPED) else pytest.mark.long)
        for at_fault, fault in enumerate(("kill", "power", "error", "damage"))
        for at_kind, typed in enumerate(TYPED)
    ],
)
def test_typed_stores_whose_records_expire_keep_the_same_promises(
    kind: str, name: str, fault: str, fork_server: ForkServer
) -> None:
    case = IoFaultCase(name, "DISK", fault, records=kind, commits=COMMITS, states_per_position=2)
    rows = explore(fork_server, case, places=4)
    assert len(rows) >= 4
    assert {row["records"] for row in rows} == {kind}
    assert broken(rows) == []


@pytest.mark.parametrize(("fault", "variant"), [("kill", ""), ("damage", "missing")])
def test_a_task_whose_store_is_upgraded_twice_in_its_background_keeps_its_promises(
    fault: str, variant: str, fork_server: ForkServer
) -> None:
    """The second swap comes at a commit. Without its changelog the upgraded store is not passed off as whole."""
    rows = explore(fork_server, IoFaultCase(ONLINE_UPGRADE, "DISK", fault, variant), places=20)
    assert len(rows) == 20
    assert broken(rows) == []


@pytest.mark.parametrize("name", [RELOCATION, LAYOUT_CHANGE])
def test_a_missing_file_of_stores_that_move_is_detected_or_harmless(name: str, fork_server: ForkServer) -> None:
    with Workshop(IoFaultCase(name, "DISK", "damage", "missing"), SEED, fork_server) as shop:
        rows = list(shop.explore(shop.points()))
    assert Found.DETECTED in {row["result"] for row in rows}
    assert broken(rows) == []


def test_what_a_store_with_a_retention_shows_changes_with_each_commit_by_what_passed() -> None:
    shows = [shown("sqlite-native", state, "window") for state in workload.models(SEED, 5)]
    brief = [sorted(key for key in state if key.startswith(b"brief")) for state in shows]
    assert brief[0] == []
    assert brief[2] == [b"brief-1", b"brief-2"]
    assert brief[5] == [b"brief-3", b"brief-4", b"brief-5"]


@pytest.mark.parametrize(("name", "kind"), [("lmdb-indexed-batch", "windows"), (CHECKPOINT, "window")])
def test_a_kind_of_store_that_a_subject_does_not_have_is_refused(name: str, kind: str) -> None:
    with pytest.raises(ConfigError):
        IoFaultCase(name, "DISK", "kill", records=kind)


def test_a_kill_between_the_commit_of_an_offset_import_and_its_checksum_is_no_damage(fork_server: ForkServer) -> None:
    """The store was closed cleanly before, when its meta pages must fit, and the offset import is repeated."""
    case = IoFaultCase(OFFSET_IMPORTS[0], "DISK", "kill", commits=COMMITS)
    with Workshop(case, SEED, fork_server) as shop:
        recording = shop.recording()
        moved = next(operation.index for operation in recording if operation.target.endswith("/005"))
        page = next(operation.index for operation in recording if operation.index > moved and operation.synchronous)
        rows = list(shop.explore(range(page, page + 3)))
    assert broken(rows) == []


LONG = {"stream-task", PUNCTUATION}
"""The tasks whose power loss takes longest: that of another task is tried as well."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LONG else []) for name in AT_DISK]
)
def test_power_loss_at_disk_takes_no_acknowledged_commit(name: str, fork_server: ForkServer) -> None:
    case = IoFaultCase(name, "DISK", "power", commits=COMMITS, states_per_position=3)
    rows = explore(fork_server, case, places=4, width=4)
    assert len(rows) >= 4
    assert broken(rows) == []


def test_power_that_goes_again_during_recovery_takes_nothing_more(fork_server: ForkServer) -> None:
    case = IoFaultCase("sqlite-indexed-batch", "DISK", "power_twice", commits=2)
    with Workshop(case, SEED, fork_server) as shop:
        acknowledged = next(operation.index for operation in shop.recording() if operation.text == "ack 1")
        rows = list(shop.explore(range(acknowledged, acknowledged + 1)))
    assert len(rows) >= 10
    assert broken(rows) == []


@pytest.mark.parametrize("name", ["sqlite-indexed-batch", CHANGELOG, CHECKPOINT])
def test_what_is_built_on_a_failed_sync_does_not_fall_with_it(name: str, fork_server: ForkServer) -> None:
    case = IoFaultCase(name, "DISK", "failed_sync", commits=3)
    rows = explore(fork_server, case, places=4)
    assert len(rows) >= 10
    assert broken(rows) == []
    again = list(
        rows_of(case, range(rows[-1]["point"], rows[-1]["point"] + 1), SEED, rows[-1]["only"], fork_server=fork_server)
    )
    assert [row["description"] for row in again] == [rows[-1]["description"]]


def test_a_state_after_a_failed_sync_is_checked_once_against_the_same_promises(fork_server: ForkServer) -> None:
    case = IoFaultCase("sqlite-indexed-batch", "DISK", "failed_sync", commits=3)
    rows = [row for row in explore(fork_server, case, places=3) if row["digest"]]
    checked = {(row["point"], row["digest"], row["acknowledged"], row["attempted"]) for row in rows}
    assert len(rows) == len(checked) >= 4


def test_a_store_that_is_wiped_before_its_first_commit_has_an_empty_changelog(fork_server: ForkServer) -> None:
    case = IoFaultCase(UPGRADE, "PROCESS", "failed_sync", "names", commits=3, states_per_position=2)
    rows = list(rows_of(case, range(3, 4), SEED, fork_server=fork_server))
    assert (Found.DETECTED, 0) in {(row["result"], row["attempted"]) for row in rows}
    assert broken(rows) == []


def test_power_that_goes_again_is_repeated_alone_and_held_to_the_same(fork_server: ForkServer) -> None:
    """The bounds come from the positions at which the first state is legal, and not from its own position."""
    case = IoFaultCase(CHECKPOINT, "DISK", "power_twice", commits=3)
    with Workshop(case, SEED, fork_server) as shop:
        points = shop.points()
        rows = list(shop.explore(points[len(points) // 2 :][:6]))
        row = next(row for row in rows if json.loads(row["only"])[1] + 1 < json.loads(row["only"])[2])
        alone = list(shop.explore(range(row["point"], row["point"] + 1), row["only"]))
        assert [each | {"states": 1} for each in alone] == [row | {"states": 1}]
        promises = json.loads(row["only"])
        said_more = json.dumps([promises[0], promises[1], points[-1], promises[3]])
        (harder,) = shop.explore(range(row["point"], row["point"] + 1), said_more)
    assert (harder["acknowledged"], harder["result"]) == (3, Found.LOST)
    assert row["acknowledged"] < 3


def test_a_store_torn_by_power_loss_says_so_and_is_restored(fork_server: ForkServer) -> None:
    case = IoFaultCase("lmdb-indexed-batch", "PROCESS", "power", commits=COMMITS, states_per_position=3)
    with Workshop(case, SEED, fork_server) as shop:
        recording = shop.recording()
        opened = next(operation.index for operation in recording if operation.text == "ack 1")
        rows = list(shop.explore(range(opened, opened + 4)))
    assert {row["result"] for row in rows} == {Found.DETECTED}
    assert broken(rows) == []


@pytest.mark.parametrize("variant", ["EIO once", "ENOSPC lasting", "SHORT once"])
def test_a_failing_call_at_disk_loses_and_invents_nothing(variant: str, fork_server: ForkServer) -> None:
    rows = explore(
        fork_server, IoFaultCase("sqlite-indexed-batch", "DISK", "error", variant, commits=COMMITS), places=8
    )
    found = {row["result"] for row in rows}
    assert len(rows) == 8
    assert not found & {Found.LOST, Found.TORN, Found.PHANTOM, Found.DEADLY, Found.HANGING, Found.HARNESS_ERROR}


def test_a_killed_recovery_is_recovered_from_in_turn(fork_server: ForkServer) -> None:
    with Workshop(IoFaultCase("rocksdb-dual-store", "DISK", "kill_twice", commits=2), SEED, fork_server) as shop:
        last = next(operation.index for operation in shop.recording() if operation.text == "attempt 2") + 3
        rows = list(islice(shop.explore(range(last, last + 1)), 12))
        again = [int(row["only"]) for row in rows]
        passed_over = next(number for number in range(again[-1]) if number not in again)
        (alone,) = shop.explore(range(last, last + 1), str(passed_over))
    assert again == sorted(again)
    assert again[0] == 0
    assert broken([*rows, alone]) == []
    # What is passed over changes nothing: whoever is killed there leaves what one does who is killed next.
    following = next(row for row in rows if int(row["only"]) > passed_over)
    assert (alone["result"], alone["state"]) == (following["result"], following["state"])


def test_of_kills_that_leave_the_same_the_last_is_the_one_whose_recovery_is_killed(fork_server: ForkServer) -> None:
    with Workshop(IoFaultCase(CHECKPOINT, "DISK", "kill_twice", commits=2), SEED, fork_server) as shop:
        synced = next(operation for operation in shop.recording() if operation.kind is Kind.SYNC)
        around = range(synced.index, synced.index + 2)
        points = [{row["point"] for row in shop.explore(some)} for some in (around[:1], around)]
    assert points == [{synced.index + 1}] * 2


def test_a_recovery_that_fails_without_a_kill_is_an_error(
    monkeypatch: pytest.MonkeyPatch, fork_server: ForkServer
) -> None:
    died = CallOutcome(None, signal.SIGSEGV, False, None, "", "")
    monkeypatch.setattr(Workshop, "recover", lambda *given, **named: died)
    rows = list(
        islice(
            rows_of(
                IoFaultCase(CHECKPOINT, "DISK", "kill_twice", commits=2), range(6, 7), SEED, fork_server=fork_server
            ),
            3,
        )
    )
    assert [(row["result"], row["expected"]) for row in rows] == [(Found.DEADLY, False)]


def test_a_writer_that_gives_up_though_nothing_failed_breaks_a_promise(fork_server: ForkServer) -> None:
    ended = CallOutcome(
        0, None, False, {"gave_up": True, "fired": 0, "operations": 9, "error": "ConfigError: no"}, "", ""
    )
    with Workshop(IoFaultCase(CHECKPOINT, "DISK", "kill", commits=2), SEED, fork_server) as shop:
        promises = shop.promises(Life(ended, ("open 0",), killed=False))
        assert promises.broken is not None
        assert promises.broken[0] is Found.UNUSABLE
        assert shop.promises(Life(ended, ("open 0",), killed=True)).broken is None


def test_a_find_in_a_full_folder_is_no_verdict(monkeypatch: pytest.MonkeyPatch, fork_server: ForkServer) -> None:
    case = IoFaultCase(CHECKPOINT, "DISK", "power", commits=2, mutant="unsynced-rename")
    with Workshop(case, SEED, fork_server) as shop:
        lost = next(row for row in shop.explore(shop.points()) if row["result"] == Found.LOST)
        usage = shutil.disk_usage(shop.root)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=4096))
        point = range(lost["point"], lost["point"] + 1)
        results = [row["result"] for row in shop.explore(point, lost["only"])]
    assert results == [Found.HARNESS_ERROR]


def test_memory_is_worked_in_only_where_it_has_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("harness.folders._MEMORY", tmp_path)
    monkeypatch.delenv("TMPDIR", raising=False)
    usage = shutil.disk_usage(tmp_path)
    for free, inside in ((64 << 20, False), (1 << 30, True)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: usage._replace(free=free))
        with Workshop(IoFaultCase(CHECKPOINT, "DISK", "kill"), SEED) as shop:
            assert shop.root.is_relative_to(tmp_path / shop.root.parent.name) is inside


def test_a_writer_that_was_too_late_once_is_killed_once_more_before_its_recovery_is(
    monkeypatch: pytest.MonkeyPatch, fork_server: ForkServer
) -> None:
    def late(shop: Workshop, plan: Plan, recording: Path | None = None) -> Life:
        life = writer(shop, plan, recording)
        if recording is not None:
            return life
        lives.append(life)
        outcome = replace(life.outcome, timed_out=True)
        return life._replace(outcome=outcome, killed=False) if len(lives) <= often else life

    writer, lives, often = Workshop.writer, list[Life](), 1
    monkeypatch.setattr(Workshop, "writer", late)
    with Workshop(IoFaultCase(CHECKPOINT, "DISK", "kill_twice", commits=2), SEED, fork_server) as shop:
        rows = list(shop.explore(range(6, 7)))
        assert (len(lives), broken(rows)) == (2, [])
        lives, often = [], 2
        (row,) = shop.explore(range(6, 7))
    assert (row["result"], row["only"]) == (Found.HANGING, "")


@pytest.mark.parametrize(("instead", "arguments"), [("spin", {}), ("sleep", {"seconds": 1000})])
def test_a_store_that_spins_and_one_that_sleeps_for_ever_both_hang(
    monkeypatch: pytest.MonkeyPatch, instead: str, arguments: dict[str, Any], fork_server: ForkServer
) -> None:
    def run(fork_server: ForkServer, function: str, given: Mapping[str, Any], **how: Any) -> CallOutcome:
        if function == "harness.experiments.iofaults.processes:run_verifier":
            function, given = f"harness.tests.operations_work:{instead}", arguments
        return really(fork_server, function, given, **how)

    really = ForkServer.run
    with Workshop(IoFaultCase(CHECKPOINT, "DISK", "kill", commits=2), SEED, fork_server) as shop:
        shop.undisturbed()
        monkeypatch.setattr(ForkServer, "run", run)
        monkeypatch.setattr(shop, "_deadline_s", 0.1)
        (row,) = shop.explore(range(5, 6))
    assert (row["result"], row["expected"]) == (Found.HANGING, False)


def test_a_verifier_without_a_verdict_is_a_harness_error(fork_server: ForkServer) -> None:
    with Workshop(
        IoFaultCase(CHECKPOINT, "DISK", "kill", commits=2, mutant="unsynced-rename"), SEED, fork_server
    ) as shop:
        promises = shop.promises(shop.writer(["Nothing"]))
        shop.case = replace(shop.case, mutant="")
        object.__setattr__(shop.case, "mutant", "no such mutant")
        verdict = shop.verdict(promises)
    assert (verdict.found, verdict.expected) == (Found.HARNESS_ERROR, False)


def test_a_trial_that_is_too_late_twice_found_something_hanging(
    monkeypatch: pytest.MonkeyPatch, fork_server: ForkServer
) -> None:
    monkeypatch.setattr("harness.experiments.iofaults.workshop.DEADLINE_S", 0.0)
    [row] = rows_of(IoFaultCase(CHECKPOINT, "DISK", "kill", commits=2), range(1), SEED, fork_server=fork_server)
    assert (row["result"], row["expected"]) == (Found.HANGING, False)


def test_a_recording_of_a_writable_map_of_data_is_refused() -> None:
    check_maps([IoOperation(0, Kind.MAP_WRITABLE, 1, path="store/data/lock.mdb")])
    with pytest.raises(UnseenWritesError):
        check_maps([IoOperation(0, Kind.MAP_WRITABLE, 1, path="store/data/data.mdb")])


def test_every_commit_leaves_a_state_of_its_own() -> None:
    states = workload.models(SEED, workload.COMMITS)
    assert len({tuple(sorted(state.items())) for state in states}) == workload.COMMITS + 1
    given = workload.values_ever(SEED, workload.COMMITS)
    for number, state in enumerate(states):
        for key in given:
            assert [value for at, value in given[key] if at <= number][-1] == state.get(key)


def test_what_a_subject_shows_differs_wherever_the_model_does() -> None:
    for name in {name for name, _ in subjects()}:
        states = [shown(name, state) for state in workload.models(SEED, workload.COMMITS)]
        assert len({tuple(sorted(state.items())) for state in states}) == workload.COMMITS + 1


@pytest.mark.parametrize("variant", FAULTS["damage"].variants)
def test_each_damage_changes_one_file_and_is_checked(variant: str, fork_server: ForkServer) -> None:
    case = IoFaultCase("sqlite-indexed-batch", "DISK", "damage", variant, commits=COMMITS)
    with Workshop(case, SEED, fork_server) as shop:
        whole, tree = shop.points(), Tree.of(shop.recording())
        for planned in plan(variant, tree, SEED):
            damaged = damage(variant, tree, planned)
            changed = {path for path in tree.files if damaged.files.get(path) != tree.files[path]}
            assert changed == {planned.path}
        rows = list(shop.explore(whole[:3]))
    assert len(rows) == min(3, len(whole))
    assert {row["result"] for row in rows} <= {Found.VALID, Found.DETECTED}
    for row in rows:
        assert (row["noticed"] in ("open", "read", "verify", "afterwards")) is (row["result"] == Found.DETECTED)


@pytest.mark.parametrize("page", [0, 1])
def test_a_bit_that_takes_lmdb_back_by_one_commit_is_detected_when_it_is_opened(
    page: int, fork_server: ForkServer
) -> None:
    """Bit 1 of the transaction ID of either meta page changes which of the two is the newer one."""
    commits = COMMITS + 3
    with Workshop(
        IoFaultCase("lmdb-indexed-batch", "DISK", "damage", "flipped", commits=commits), SEED, fork_server
    ) as shop:
        tree = Tree.of(shop.recording())
        [path] = [path for path in tree.files if path.endswith("data.mdb")]
        damaged = damage("flipped", tree, Damage(path, 8 * (page * 4096 + 144) + 1))
        [before, after] = [
            [int.from_bytes(found.files[path].read()[at : at + 8], "little") for at in (144, 4096 + 144)]
            for found in (tree, damaged)
        ]
        assert abs(before[0] - before[1]) == abs(after[0] - after[1]) == 1
        assert (before[0] < before[1]) is not (after[0] < after[1])
        shop.place(damaged)
        verdict = shop.verdict(Promised(commits, commits))
    assert (verdict.found, verdict.detected_at) == (Found.DETECTED, "open")


def test_a_store_without_any_file_opens_empty(fork_server: ForkServer) -> None:
    with Workshop(IoFaultCase(CHECKPOINT, "DISK", "damage", "missing", commits=COMMITS), SEED, fork_server) as shop:
        (row,) = shop.explore(range(1))
    assert (row["result"], row["state"], row["acknowledged"]) == (Found.VALID, 0, 0)


def test_what_only_verifying_detects_is_read_without_it_as_well(
    monkeypatch: pytest.MonkeyPatch, fork_server: ForkServer
) -> None:
    asked = []

    def verdict(
        shop: Workshop, promises: Promised, demanded: Demand | None = None, *, boot: str = "", verify: bool = False
    ) -> PrefixFinding:
        asked.append(verify)
        return (
            PrefixFinding(Found.DETECTED, None, True, "", "verify")
            if verify
            else PrefixFinding(Found.DEADLY, None, False)
        )

    monkeypatch.setattr(Workshop, "verdict", verdict)
    with Workshop(IoFaultCase(CHECKPOINT, "DISK", "damage", "flipped", commits=COMMITS), SEED, fork_server) as shop:
        (row,) = shop.explore(range(1))
    assert asked == [True, False]
    assert (row["result"], row["expected"], row["noticed"], row["unverified"]) == ("detected", True, "verify", "deadly")
