from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import pytest

from harness.spark.meeting import Meeting, PartitionLeftError, meeting


@dataclass
class Info:
    address: str = "127.0.0.1:1"


class Stage:
    """A barrier stage of threads, as far as a meeting knows it."""

    def __init__(self, partitions: int, before_the_others: Callable[[int], object] = lambda port: None) -> None:
        self.partitions, self._before = partitions, before_the_others
        self._texts = [""] * partitions
        self._all = threading.Barrier(partitions)

    def run(self, work: Callable[[Meeting], Any]) -> list[Any]:
        """Call ``work`` in each partition, and return what it returns or raises."""

        def partition(number: int) -> Any:
            try:
                with meeting(cast(Any, Context(self, number))) as met:
                    return work(met)
            except PartitionLeftError as error:
                return error

        with ThreadPoolExecutor(self.partitions) as pool:
            return list(pool.map(partition, range(self.partitions)))

    def gather(self, number: int, text: str) -> list[str]:
        self._texts[number] = text
        if number == 0:
            self._before(json.loads(text)[0])
        self._all.wait(600)
        return self._texts


@dataclass
class Context:
    stage: Stage
    number: int

    def partitionId(self) -> int:
        return self.number

    def getTaskInfos(self) -> list[Info]:
        return [Info()] * self.stage.partitions

    def allGather(self, text: str) -> list[str]:
        return self.stage.gather(self.number, text)


@pytest.mark.parametrize("partitions", [1, 2, 4])
def test_each_partition_gets_the_texts_of_all_in_their_order(partitions: int) -> None:
    def work(met: Meeting) -> list[list[str]]:
        return [met.gather(f"{met.number} in round {number}\n") for number in range(20)]

    expected = [[f"{each} in round {number}\n" for each in range(partitions)] for number in range(20)]
    assert Stage(partitions).run(work) == [expected] * partitions


def test_no_partition_goes_on_before_all_have_come() -> None:
    came: list[int] = []

    def work(met: Meeting) -> int:
        came.append(met.number)
        met.wait()
        return len(came)

    assert Stage(3).run(work) == [3, 3, 3]


@pytest.mark.parametrize("leaver", [0, 2])
def test_the_others_do_not_wait_for_a_partition_that_has_ended(leaver: int) -> None:
    def work(met: Meeting) -> str:
        met.wait()
        if met.number != leaver:
            met.wait()
            met.wait()
        return "left"

    results = Stage(3).run(work)
    assert results.pop(leaver) == "left"
    assert [type(each) for each in results] == [PartitionLeftError] * 2


def test_who_does_not_know_the_secret_takes_no_part() -> None:
    strangers = []

    def connect(port: int) -> None:
        for said in (b'["guess", 1]\n', b"1\n", b"\xff{\n"):
            strangers.append(socket.create_connection(("127.0.0.1", port)))
            strangers[-1].sendall(said)

    assert Stage(2, connect).run(lambda met: met.gather(str(met.number))) == [["0", "1"]] * 2
    for each in strangers:
        each.close()
