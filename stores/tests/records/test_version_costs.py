"""The questions that a versioned store asks of the store of bytes below: they do not grow with the history of a key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stores import open_store
from stores.interface import IsolationLevel
from stores.records import INT64, STR, Versioned, VersionedStore
from stores.registry import backends
from stores.strategies.store import Store
from stores.tests.records.segmented import Logged, LoggingStaging

KIND = Versioned(STR, INT64, 1_000_000)
SIZES = (10, 100, 10_000)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The calls of stores of bytes, and the pairs that their scans have yielded."""
    asked: Counter[str] = Counter()

    def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            asked[name] += 1
            answer = method(*given, **named)
            if name == "range_many":
                return [Yielding(scan, asked) for scan in answer]
            return Yielding(answer, asked) if "range" in name else answer

        return call

    for name in ("get", "get_many", "range", "reverse_range", "range_many", "all"):
        monkeypatch.setattr(Store, name, counted(name, getattr(Store, name)))
    return asked


class Yielding:
    """A scan that counts its pairs."""

    def __init__(self, scan: Any, asked: Counter[str]) -> None:
        self._scan, self._asked = scan, asked

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        pair = next(self._scan)
        self._asked["pairs"] += 1
        return pair

    def __enter__(self) -> Yielding:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._scan.close()


def filled(path: Path, number: int, backend: str = "memory") -> VersionedStore[str, int]:
    versions = KIND.over(open_store(backend, path))
    versions.put_many(["k"] * number, list(range(number)), list(range(0, 10 * number, 10)))
    versions.commit()
    return versions


@pytest.mark.parametrize("number", SIZES)
def test_a_lookup_is_one_and_one_of_the_history_reads_one_pair(path: Path, number: int, asked: Counter[str]) -> None:
    with filled(path, number) as versions:
        last_ms = 10 * (number - 1)
        asked.clear()
        assert versions.get("k") == (number - 1, last_ms)
        assert asked == {"get": 1}
        assert versions.get("k", last_ms + 5) == (number - 1, last_ms)
        assert asked == {"get": 2}
        asked.clear()
        assert versions.get("k", last_ms // 2) == (last_ms // 2 // 10, last_ms // 2 // 10 * 10)
        assert asked == {"get": 2, "reverse_range": 1, "pairs": 1}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("number", SIZES)
def test_versions_of_a_time_cost_no_more_than_there_are(
    path: Path, number: int, asked: Counter[str], reverse: bool
) -> None:
    with filled(path, number) as versions:
        asked.clear()
        found = [record.value for record in versions.get_versions("k", 25, 35, reverse=reverse)]
        assert found == ([3, 2] if reverse else [2, 3])
        assert asked["pairs"] <= 6
        asked.clear()
        with versions.get_versions("k", reverse=reverse) as records:
            next(records)
        assert asked["pairs"] <= 4


@pytest.mark.parametrize("number", SIZES)
def test_a_put_writes_a_fixed_number_of_pairs_and_rewrites_no_history(
    path: Path, number: int, asked: Counter[str]
) -> None:
    log: list[Logged] = []
    with open_store("memory", path) as store:
        KIND.prepare(store)
        versions = KIND.staged(LoggingStaging(store, log))
        versions.put_many(["k"] * number, list(range(number)), list(range(0, 10 * number, 10)))
        store.commit()
        for time_ms, pairs, logged in ((10 * number, 3, 1), (15, 3, 2), (10 * number + 1, 3, 1)):
            log.clear()
            asked.clear()
            before = store.approximate_num_uncommitted_bytes()
            versions.put("k", 7, time_ms)
            assert asked == {"get": 1}
            assert len(log) == logged
            assert store.approximate_num_uncommitted_bytes() - before < 40 * pairs
        log.clear()
        versions.delete("k", 10 * number + 20)
        assert len(log) == 1


@pytest.mark.parametrize("backend", backends())
def test_a_key_with_a_long_history_is_read_and_written_at_each_level(path: Path, backend: str) -> None:
    with filled(path, SIZES[-1], backend) as versions:
        for level in IsolationLevel:
            view = versions.read_only(level)
            assert view.get("k", 55_555) == (5_555, 55_550)
            assert [tuple(each) for each in view.get_versions("k", 49_995, 50_004)] == [
                (4_999, 49_990, 50_000),
                (5_000, 50_000, 50_010),
            ]
        assert not versions.put("k", -1, 55_555)
        assert versions.get("k", 55_559) == (-1, 55_555)
        assert versions.get("k") == (9_999, 99_990)
