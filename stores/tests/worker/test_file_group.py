"""Members of a group of the embedded changelog: they share all partitions evenly, and what stays is not touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from stores.changelog import MemoryChangelog, SqliteChangelog, file_group
from stores.changelog.file_group import LEFT_LOOKS, FileGroupMember
from stores.changelog.group import Copies, GroupMember
from stores.errors import ChangelogError
from stores.interface import TopicPartition

ALL = [TopicPartition("a", number) for number in range(5)]


class Listener:
    """Keeps the calls."""

    def __init__(self) -> None:
        self.held: set[TopicPartition] = set()
        self.told: list[tuple[str, set[TopicPartition]]] = []

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        assert not self.held & set(partitions)
        self.held |= set(partitions)
        self.told.append(("assign", set(partitions)))

    def revoke(self, partitions: Collection[TopicPartition]) -> None:
        assert self.held >= set(partitions)
        self.held -= set(partitions)
        self.told.append(("revoke", set(partitions)))

    def lose(self, partitions: Collection[TopicPartition]) -> None:
        raise AssertionError("locks are not lost")


class LocalCopies(Copies):
    """Copies of the partitions with these numbers, in the directory of that name."""

    def __init__(self, directory: str, progress: Mapping[int, int]) -> None:
        self._directory, self._progress = directory, progress

    @property
    def directory(self) -> str:
        return self._directory

    def progress(self) -> dict[TopicPartition, int]:
        return {ALL[number]: progress for number, progress in self._progress.items()}


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_group, "BALANCE_S", 0.0)


@pytest.fixture
def log(tmp_path: Path) -> SqliteChangelog:
    changelog = SqliteChangelog(tmp_path / "log.sqlite")
    changelog.create_topic("a", len(ALL))
    return changelog


def joined(
    log: SqliteChangelog,
    listener: Listener,
    fingerprint: str = "f",
    server: str = "",
    copies: Copies | None = None,
) -> GroupMember:
    return log.join_group(
        "app", ["a"], listener, fingerprint=fingerprint, session_timeout_s=1, server=server, copies=copies
    )


def numbers(listener: Listener) -> set[int]:
    return {partition.partition for partition in listener.held}


def settle(*members: GroupMember) -> None:
    for _ in range(4):
        for member in members:
            member.poll(0)


def test_members_share_all_partitions_and_a_partition_that_stays_is_not_touched(log: SqliteChangelog) -> None:
    listeners = [Listener() for _ in range(3)]
    members = []
    for listener in listeners:
        before = [set(each.held) for each in listeners]
        members.append(joined(log, listener))
        settle(*members)
        assert set.union(*(each.held for each in listeners)) == set(ALL)
        assert sum(len(each.held) for each in listeners) == len(ALL)
        for earlier, now in zip(before, listeners, strict=True):
            assert now is listener or now.held <= earlier
    assert sorted(len(each.held) for each in listeners) == [1, 2, 2]
    # The first member has given up three of five in two steps, and was told of nothing else.
    assert [kind for kind, _ in listeners[0].told] == ["assign", "revoke", "revoke"]
    members[1].close()
    settle(members[0], members[2])
    assert listeners[0].held | listeners[2].held == set(ALL)
    assert not listeners[1].held
    assert [kind for kind, _ in listeners[2].told] == ["assign", "assign"]


def test_more_members_than_partitions_leave_some_without_any(log: SqliteChangelog) -> None:
    listeners = [Listener() for _ in range(len(ALL) + 2)]
    members = [joined(log, listener) for listener in listeners]
    settle(*members)
    assert sorted(len(each.held) for each in listeners) == [0, 0, 1, 1, 1, 1, 1]


def test_the_partitions_of_a_killed_member_have_a_new_one(log: SqliteChangelog, tmp_path: Path) -> None:
    program = (
        "import os, sys, time\nfrom stores.changelog import SqliteChangelog\n"
        "from stores.tests.worker.test_file_group import Listener, joined, settle\n"
        "listener = Listener(); member = joined(SqliteChangelog(sys.argv[1]), listener); settle(member)\n"
        "print(len(listener.held), flush=True); time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "log.sqlite")],
        stdout=subprocess.PIPE,
        env=environment,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"5\n"
        listener = Listener()
        member = joined(log, listener)
        settle(member)
        assert not listener.held
        other.send_signal(signal.SIGKILL)
        other.wait()
        settle(member)
        assert listener.held == set(ALL)


def test_free_partitions_go_to_the_members_whose_copies_are_the_most_caught_up(log: SqliteChangelog) -> None:
    """Source: KIP-892, "Offsets for Consumer Rebalances"."""
    progress: list[dict[int, int]] = [{}, {0: 9, 1: 7, 3: 9, 4: 1}, {0: 10, 1: 7, 2: 3, 3: 2}]
    listeners = [Listener() for _ in progress]
    members = []
    for name, listener, each in zip("abc", listeners, progress, strict=True):
        members.append(joined(log, listener, copies=LocalCopies(name, each)))
        if name == "a":
            settle(*members)
    assert numbers(listeners[0]) == {0, 1, 2, 3, 4}
    members[0].close()
    # In whichever order they look: the second member may have three, the third one two.
    settle(members[2], members[1])
    assert numbers(listeners[1]) == {1, 3, 4}
    assert numbers(listeners[2]) == {0, 2}


def test_of_equal_copies_a_member_first_takes_those_without_another_copy(log: SqliteChangelog) -> None:
    first, second, third = Listener(), Listener(), Listener()
    owner = joined(log, first, copies=LocalCopies("a", {}))
    settle(owner)
    members = [
        joined(log, second, copies=LocalCopies("b", {0: 5, 1: 5, 2: 5, 3: 5})),
        joined(log, third, copies=LocalCopies("c", {0: 5, 1: 5, 4: 5})),
    ]
    owner.close()
    settle(*members)
    assert numbers(second) == {0, 2, 3}
    assert numbers(third) == {1, 4}


def test_a_released_partition_goes_to_the_better_copy_after_any_time_with_its_owner(log: SqliteChangelog) -> None:
    first, second, third = Listener(), Listener(), Listener()
    owner = joined(log, first, copies=LocalCopies("a", {}))
    settle(owner)
    better = joined(log, second, copies=LocalCopies("b", dict.fromkeys(range(5), 9)))
    member = joined(log, third, copies=LocalCopies("c", dict.fromkeys(range(5), 8)))
    for _ in range(LEFT_LOOKS):
        member.poll(0)
    owner.close()
    settle(member, better)
    assert numbers(second) == {0, 1, 2}
    assert numbers(third) == {3, 4}


def test_a_partition_is_left_to_a_member_that_hangs_for_a_limited_time(log: SqliteChangelog) -> None:
    first, second, third = Listener(), Listener(), Listener()
    owner = joined(log, first, copies=LocalCopies("a", {}))
    settle(owner)
    joined(log, second, copies=LocalCopies("b", dict.fromkeys(range(5), 9)))
    member = joined(log, third, copies=LocalCopies("c", dict.fromkeys(range(5), 8)))
    owner.close()
    for _ in range(LEFT_LOOKS):
        member.poll(0)
        assert not third.held
    member.poll(0)
    assert len(third.held) == 2
    assert not second.held


def test_a_new_member_gets_the_partitions_of_which_it_lacks_the_least(log: SqliteChangelog) -> None:
    listeners = [Listener(), Listener()]
    members = [joined(log, listeners[0], copies=LocalCopies("a", {0: 9, 1: 5, 2: 5, 3: 5, 4: 5}))]
    settle(*members)
    members.append(joined(log, listeners[1], copies=LocalCopies("b", {0: 4, 2: 4, 3: 5})))
    settle(*members)
    assert numbers(listeners[1]) == {2, 3}
    assert numbers(listeners[0]) == {0, 1, 4}


def test_members_with_copies_see_each_other_and_leave_no_notes(log: SqliteChangelog, tmp_path: Path) -> None:
    listeners = [Listener() for _ in range(3)]
    members = [
        joined(log, each, server=f"{name}:1", copies=LocalCopies(name, {}))
        for name, each in zip("ab", listeners, strict=False)
    ]
    members.append(joined(log, listeners[2]))
    settle(*members)
    assert members[2].peers() is None
    for number, member in enumerate(members[:2]):
        peers = member.peers()
        assert peers is not None
        assert [peer.directory for peer in peers] == ["a", "b", None]
        assert [peer.address for peer in peers] == ["a:1", "b:1", ""]
        assert [peer.partitions for peer in peers] == [listeners[0].held, listeners[1].held, set()]
        assert [peer.is_self for peer in peers] == [number == 0, number == 1, False]
    for member in members:
        member.close()
    assert list((tmp_path / ".log.sqlite.txstores-groups" / "app" / "copies").iterdir()) == []


def test_members_without_copies_write_no_notes(log: SqliteChangelog, tmp_path: Path) -> None:
    settle(joined(log, Listener()), joined(log, Listener()))
    assert not (tmp_path / ".log.sqlite.txstores-groups" / "app" / "copies").exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"directory": "x", "held": 5, "progress": []}', b"\xff"])
def test_a_note_that_can_not_be_read_counts_as_missing(log: SqliteChangelog, tmp_path: Path, content: bytes) -> None:
    listeners = [Listener(), Listener()]
    first = joined(log, listeners[0], copies=LocalCopies("a", {0: 1}))
    settle(first)
    [note] = (tmp_path / ".log.sqlite.txstores-groups" / "app" / "copies").iterdir()
    second = joined(log, listeners[1], copies=LocalCopies("b", {0: 2}))
    note.write_bytes(content)
    second.poll(0)
    peers = second.peers()
    assert peers is not None
    assert [peer.directory for peer in peers] == [None, "b"]


def test_a_group_of_another_application_is_refused_and_left_as_it_was(log: SqliteChangelog) -> None:
    listener = Listener()
    member = joined(log, listener)
    settle(member)
    with pytest.raises(ChangelogError, match="another application"):
        joined(log, Listener(), fingerprint="g")
    with pytest.raises(ChangelogError, match="another application"):
        log.check_group("app", fingerprint="g")
    settle(member)
    assert listener.held == set(ALL)
    member.close()
    member.close()
    log.check_group("app", fingerprint="g")
    assert isinstance(joined(log, Listener(), fingerprint="g"), FileGroupMember)


def test_a_topic_that_does_not_exist_and_a_log_of_one_process_have_no_group(log: SqliteChangelog) -> None:
    with pytest.raises(ChangelogError):
        log.join_group("app", ["missing"], Listener(), fingerprint="f", session_timeout_s=1)
    with pytest.raises(ChangelogError, match="SqliteChangelog"):
        MemoryChangelog().join_group("app", ["a"], Listener(), fingerprint="f", session_timeout_s=1)


def test_members_name_the_address_of_the_one_that_has_a_partition(log: SqliteChangelog) -> None:
    listeners = [Listener() for _ in range(3)]
    servers = ["127.0.0.1:10000", "", "127.0.0.1:2"]
    members = [joined(log, listener, server=server) for listener, server in zip(listeners, servers, strict=True)]
    settle(*members)
    expected = {
        partition: server
        for listener, server in zip(listeners, servers, strict=True)
        for partition in listener.held
        if server
    }
    assert len(expected) == len(ALL) - len(listeners[1].held)
    assert [member.addresses() for member in members] == [expected] * 3
    partitions = listeners[0].held.copy()
    members[0].close()
    # Nobody has them for a moment.
    assert members[2].addresses() == dict.fromkeys(listeners[2].held, servers[2])
    settle(*members[1:])
    assert partitions <= listeners[1].held | listeners[2].held
    assert members[1].addresses() == dict.fromkeys(listeners[2].held, servers[2])
