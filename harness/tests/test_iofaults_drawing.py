"""Points where broken durability shows are drawn first, and some from all alike."""

from __future__ import annotations

import json
from random import Random

from harness.experiments.iofaults.fault import ALIKE_EVERY, IO_FAULTS, Guide, commits, drawn
from harness.tests.disk_script import Script

COMMITS = 5


def worked() -> Script:
    """A store is made, commits five times, each time with a log's sync, and once with a flush; then it is closed."""
    script = Script().create("log").sync()
    for number in range(1, COMMITS + 1):
        script.write("log", number, b"staged").note(f"attempt {number}")
        script.write("log", number, b"1")
        if number == 3:
            script.create("1.sst").write("1.sst", 0, b"2").sync("1.sst").rename("1.sst", "2.sst")
        script.datasync("log").note(f"ack {number}").write("LOG", number, b"text")
    return script.unlink("open").sync()


def test_the_power_is_cut_first_before_the_sync_behind_each_acknowledgement() -> None:
    script = worked()
    told, *others = IO_FAULTS["power"].guides(script.operations)
    kinds = {operation.index: operation.kind for operation in script.operations if operation.kind != "note"}
    ends = [commit.stop for commit in commits(script.operations)]
    assert len(ends) == COMMITS
    assert all(
        any(kinds[at] in ("sync", "datasync") for at in range(end, point + 1))
        for end, point in zip(ends, told.points, strict=False)
    )
    assert told.points[-1] == script.end
    assert all(group.weight <= told.weight for group in others)
    before_syncs = {index for index, kind in kinds.items() if kind in ("sync", "datasync")}
    names = {index for index, kind in kinds.items() if kind in ("rename", "unlink")}
    before = {*told.points, *(point for group in others[:-1] for point in group.points)}
    assert before == before_syncs | names | {script.end}
    assert {index + 1 for index in names} <= {*others[-1].points} | before


def test_calls_fail_first_that_every_commit_makes() -> None:
    script = worked()
    weights = {point: group.weight for group in IO_FAULTS["error"].guides(script.operations) for point in group.points}
    within = commits(script.operations)[0]
    flushed = next(operation.index for operation in script.operations if operation.path == "1.sst")
    assert all(weights[point] == 1 for point in within)
    assert weights[flushed] == 1 / COMMITS
    assert weights[0] < 1
    assert weights[script.end - 1] <= 1 / COMMITS


def test_rare_operations_get_the_same_share_of_points_as_frequent_ones() -> None:
    """Of the syncs and names within commits, and of those outside: however many kinds there are of them."""
    script = worked()
    told, *shared, _ = IO_FAULTS["power"].guides(script.operations)
    inside = {at for commit in commits(script.operations) for at in commit}
    within = [group.weight for group in shared if set(group.points) <= inside]
    outside = [group.weight for group in shared if not set(group.points) & inside]
    assert (len(within) > 1, len(outside) > 1) == (True, True)
    assert (sum(within), sum(outside)) == (told.weight, 1)
    assert (len(set(within)), len(set(outside))) == (1, 1)


def test_what_nothing_reads_is_no_role_of_a_commit() -> None:
    """RocksDB's own log, say: a fault in it shows nothing."""
    script = Script().note("attempt 1").write("db/log", 0, b"1").write("db/LOG", 0, b"text").note("ack 1")
    unread = {operation.index for operation in script.operations if operation.path == "db/LOG"}
    assert unread
    for fault in ("error", "tear"):
        assert not unread & {point for group in IO_FAULTS[fault].guides(script.operations) for point in group.points}


def test_only_writes_are_torn_and_syncs_failed_by_their_numbers() -> None:
    script = worked()
    by_index = [operation for operation in script.operations if operation.kind != "note"]
    torn = [point for group in IO_FAULTS["tear"].guides(script.operations) for point in group.points]
    assert torn
    assert all(by_index[point].kind == "write" for point in torn)
    number = sum(operation.kind in ("sync", "datasync") for operation in by_index)
    failed = sorted(point for group in IO_FAULTS["failed_sync"].guides(script.operations) for point in group.points)
    assert failed == list(range(number))


def test_every_point_is_drawn_once_and_each_fourth_is_one_of_all() -> None:
    first = Guide(2, range(40)), Guide(1, range(40, 60))
    order = drawn(range(1000), first, Random(1))
    assert sorted(order) == list(range(1000))
    guided = order[: 60 * ALIKE_EVERY // (ALIKE_EVERY - 1)]
    assert sum(point < 60 for point in guided) >= 58
    of_first = [point for point in order[:40] if point < 60]
    assert sum(point < 40 for point in of_first) in range(18, 24)
    assert any(point >= 60 for point in order[:12])


def test_the_order_depends_on_the_seed_alone() -> None:
    first = [Guide(1, [1, 2, 3]), Guide(1, [4, 5, 6])]
    # As a task of a run is told them.
    assert drawn(range(9), first, Random(1)) == drawn(range(9), json.loads(json.dumps(first)), Random(1))
    assert len({tuple(drawn(range(9), first, Random(seed))) for seed in range(9)}) > 5
    assert drawn(range(3), [Guide(1, [2, 7])], Random(1))[0] == 2


def test_a_commit_counts_from_its_attempt_to_its_acknowledgement_alone() -> None:
    """An attempt without an acknowledgement is no commit, nor are operations between two commits."""
    script = Script().note("attempt 1").write("log", 0, b"1").note("open 0").note("attempt 1")
    begun = script.end
    script.write("log", 0, b"1").note("ack 1").write("log", 1, b"2")
    assert commits(script.operations) == [range(begun, begun + 1)]


def test_damage_has_no_points_that_are_drawn_before_others() -> None:
    """Its points number places in files, and no operations."""
    assert IO_FAULTS["damage"].guides(worked().operations) == []


def test_a_write_that_is_a_sync_by_itself_counts_as_one_of_both_when_the_power_is_cut() -> None:
    """LMDB writes its meta page through a descriptor that was opened so."""
    script = Script().write("log", 0, b"staged").note("attempt 1").write("log", 0, b"1", synchronous=True)
    page = script.operations[-1].index
    script.note("ack 1")
    drawn_first = {point for group in IO_FAULTS["power"].guides(script.operations) for point in group.points}
    assert page in drawn_first
