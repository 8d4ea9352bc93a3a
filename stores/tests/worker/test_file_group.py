"""Members of a group of the embedded changelog: they share all partitions evenly, and what stays is not touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from stores.changelog import MemoryChangelog, SqliteChangelog, file_group
from stores.changelog.file_group import FileGroupMember
from stores.changelog.group import GroupMember
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


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_group, "BALANCE_S", 0.0)


@pytest.fixture
def log(tmp_path: Path) -> SqliteChangelog:
    changelog = SqliteChangelog(tmp_path / "log.sqlite")
    changelog.create_topic("a", len(ALL))
    return changelog


def joined(log: SqliteChangelog, listener: Listener, fingerprint: str = "f", server: str = "") -> GroupMember:
    return log.join_group("app", ["a"], listener, fingerprint=fingerprint, session_timeout_s=1, server=server)


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


def test_a_group_of_another_application_is_refused_and_left_as_it_was(log: SqliteChangelog) -> None:
    listener = Listener()
    member = joined(log, listener)
    settle(member)
    with pytest.raises(ChangelogError, match="another application"):
        joined(log, Listener(), fingerprint="g")
    settle(member)
    assert listener.held == set(ALL)
    member.close()
    member.close()
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
    left = listeners[0].held.copy()
    members[0].close()
    # Nobody has them for a moment.
    assert members[2].addresses() == dict.fromkeys(listeners[2].held, servers[2])
    settle(*members[1:])
    assert left <= listeners[1].held | listeners[2].held
    assert members[1].addresses() == dict.fromkeys(listeners[2].held, servers[2])
