"""The standby copies of each worker follow from the members of the group, and few move when one comes or goes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from stores.changelog.group import Peer
from stores.interface import TopicPartition
from stores.worker.standbys import standby_holders, standby_partitions

ALL = [TopicPartition("words", number) for number in range(60)]
Copies = dict[str, frozenset[TopicPartition]]


def peers(directories: Sequence[str | None]) -> list[Peer]:
    """Members, one for each directory, that share all partitions in turn."""
    return [
        Peer(f"m{number}", directory, frozenset(ALL[number :: len(directories)]), False)
        for number, directory in enumerate(directories)
    ]


def seen_by(name: str, members: Iterable[Peer]) -> list[Peer]:
    return [member._replace(is_self=member.name == name) for member in members]


def copies(members: Sequence[Peer], replicas: int) -> Copies:
    """Return the copies that each member computes, by its name."""
    return {member.name: standby_partitions(seen_by(member.name, members), replicas, ()) for member in members}


def count_of(found: Copies, partition: TopicPartition) -> int:
    return sum(partition in each for each in found.values())


@pytest.mark.parametrize(("directories", "replicas"), [("ab", 1), ("abc", 1), ("abcd", 2), ("abcde", 4)])
def test_each_partition_has_its_number_of_copies_and_none_is_that_of_its_owner(directories: str, replicas: int) -> None:
    members = peers(list(directories))
    by_member = copies(members, replicas)
    assert all(count_of(by_member, partition) == replicas for partition in ALL)
    assert not any(by_member[member.name] & member.partitions for member in members)
    if replicas < len(directories) - 1:
        # No worker has all of them.
        assert max(map(len, by_member.values())) < 2 * len(ALL) * replicas / len(directories)


@pytest.mark.parametrize("directories", ["ab", "abc", "aabcd", "ab."])
def test_all_members_know_who_keeps_the_copies(directories: str) -> None:
    members = peers([None if each == "." else each for each in directories])
    by_member = copies(members, 2)
    for partition in ALL:
        holders = [peer.name for peer in standby_holders(members, partition, 2)]
        assert sorted(holders) == [name for name, each in by_member.items() if partition in each]
    assert standby_holders(members, TopicPartition("words", len(ALL)), 2) == []


def test_fewer_directories_than_copies_have_one_each() -> None:
    by_member = copies(peers(["a", "b"]), 5)
    assert all(count_of(by_member, partition) == 1 for partition in ALL)
    assert copies(peers(["a"]), 1) == {"m0": frozenset()}


def test_workers_of_one_directory_have_no_copies_for_each_other() -> None:
    members = peers(["a", "a", "b"])
    by_member = copies(members, 2)
    assert by_member["m0"] == members[2].partitions
    assert by_member["m1"] == frozenset()
    assert by_member["m2"] == members[0].partitions | members[1].partitions


def test_workers_without_copies_get_none_and_their_partitions_have_some() -> None:
    members = peers(["a", None, "b"])
    by_member = copies(members, 2)
    assert by_member["m1"] == frozenset()
    assert members[1].partitions <= by_member["m0"] & by_member["m2"]


def test_a_worker_that_leaves_moves_no_copies_but_its_own() -> None:
    directories = ["a", "b", "c", "d"]
    members = peers(directories)
    before = copies(members, 1)
    others = [member for member in members if member.directory != "d"]
    after = copies(others, 1)
    for member in others:
        owned = {partition for each in others for partition in each.partitions}
        assert after[member.name] >= before[member.name] & owned
        assert after[member.name] - before[member.name] <= before["m3"]


def test_a_copy_stays_while_its_partition_has_no_owner() -> None:
    members = seen_by("m0", peers(["a", "b"]))
    due = standby_partitions(members, 1, ())
    assert due == members[1].partitions
    alone = [members[0]]
    assert standby_partitions(alone, 1, due) == due
    assert standby_partitions(alone, 1, ()) == frozenset()
    assert standby_partitions([members[0]._replace(partitions=frozenset(ALL))], 1, due) == frozenset()


def test_a_worker_missing_from_the_group_keeps_its_standby_partitions() -> None:
    members = peers(["a", "b"])
    assert standby_partitions(members, 1, ALL[:3]) == frozenset(ALL[:3])
