"""Recent writes stay in memory while they are useful, within a limit that all stores share, and never go stale."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stores.batch import recent
from stores.batch.memory import PAIR_MEMORY_BYTES, bytes_of
from stores.batch.recent import RecentWrites
from stores.interface import TopicPartition
from stores.registry import backends, open_store
from stores.strategies.store import Store

LOG = TopicPartition("changelog", 0)
PAIR_BYTES = 8 + PAIR_MEMORY_BYTES
"""The memory of one of these pairs."""
FIRST, MOST = 20, 80
"""The pairs of the first room, and of all stores together."""


@pytest.fixture(autouse=True)
def few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    monkeypatch.setattr(recent, "_FIRST_BYTES", FIRST * PAIR_BYTES)
    monkeypatch.setattr(recent, "MAX_BYTES", MOST * PAIR_BYTES)
    monkeypatch.setattr(RecentWrites, "_holders", type(RecentWrites._holders)())


class Commits:
    """Commits of pairs of eight bytes, and what is recent after each."""

    def __init__(self, max_pairs: int = MOST) -> None:
        self.recent_writes = RecentWrites(max_pairs * PAIR_BYTES)
        self.recent: Mapping[bytes, bytes | None] = {}

    def commit(self, *numbers: int, value: int = 0) -> set[int]:
        """Write these keys; return those that are recent."""
        writes: dict[bytes, bytes | None] = {b"%04d" % number: b"%04d" % value for number in numbers}
        self.recent = self.recent_writes.after(writes, bytes_of(writes))
        return {int(key) for key in self.recent}


def test_writes_of_several_commits_are_recent_with_their_last_values() -> None:
    commits = Commits()
    assert commits.commit(1, 2, value=1) == {1, 2}
    assert commits.commit(2, 3, value=2) == {1, 2, 3}
    assert dict(commits.recent) == {b"0001": b"0001", b"0002": b"0002", b"0003": b"0002"}


def test_a_delete_is_recent_too() -> None:
    commits = Commits()
    commits.commit(1, 2)
    commits.recent = commits.recent_writes.after({b"0001": None}, 4)
    assert dict(commits.recent) == {b"0001": None, b"0002": b"0000"}


def test_keys_that_are_written_again_and_again_stay_however_often() -> None:
    commits, random = Commits(), Random(1)
    for value in range(1_000):
        held = commits.commit(*random.sample(range(FIRST), 5), value=value)
        assert held == set(range(FIRST)) or value < 100
    assert max(value or b"" for value in commits.recent.values()) == b"0999"


def test_where_no_key_is_written_again_only_the_last_commit_is_kept_most_of_the_time() -> None:
    commits = Commits()
    sizes = [len(commits.commit(number)) for number in range(10_000)]
    assert max(sizes) == FIRST
    assert sum(size > 1 for size in sizes) < len(sizes) / 6
    # It tries again.
    assert sum(size == FIRST for size in sizes) > 40


def test_an_attempt_comes_again_and_lasts_when_keys_are_written_again() -> None:
    commits = Commits()
    for number in range(1_000):
        commits.commit(number)
    for number in range(1_000):
        held = commits.commit(number % (FIRST // 2))
    assert held == set(range(FIRST // 2))


@pytest.mark.parametrize(("stores", "limit"), [(1, MOST), (2, MOST), (4, MOST), (16, MOST + MOST // 4)])
def test_all_stores_together_keep_to_the_limit(stores: int, limit: int) -> None:
    """Those that have begun alone give their writes away when they count them."""
    random = Random(1)
    several = [Commits() for _ in range(stores)]
    most = 0
    for _ in range(5_000):
        random.choice(several).commit(*(random.randrange(60) for _ in range(3)))
        most = max(most, sum(len(commits.recent) for commits in several))
    assert MOST // 3 < most <= limit
    assert sum(len(commits.recent) for commits in several) <= MOST


def test_a_store_of_large_commits_keeps_to_the_limit() -> None:
    commits, random = Commits(), Random(1)
    sizes = [len(commits.commit(*random.sample(range(50), 30))) for _ in range(1_000)]
    assert 30 < max(sizes) <= MOST


def test_more_keys_stay_once_they_have_proven_useful() -> None:
    commits, random = Commits(), Random(1)
    for number in range(2_000):
        held = commits.commit(*random.sample(range(min(MOST // 2 - 5, 10 + number // 10)), 5))
        assert number < 500 or held == set(range(MOST // 2 - 5))


def test_the_room_is_small_again_after_an_attempt_in_vain() -> None:
    commits, random = Commits(), Random(1)
    for number in range(500):
        commits.commit(random.randrange(min(MOST // 2 - 5, 10 + number // 10)))
    sizes = [len(commits.commit(number)) for number in range(1_000, 5_000)]
    assert max(sizes[:200]) > FIRST
    assert max(sizes[200:]) == FIRST


def test_writes_of_long_ago_do_not_count() -> None:
    commits = Commits()
    for number in range(5_000):
        commits.commit(number % (FIRST // 2))
    assert max(len(commits.commit(number)) for number in range(100, 1_000)) <= 2 * FIRST


def test_pairs_are_counted_about_once_in_as_many_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = 0

    def noted(writes: dict[bytes, bytes | None]) -> int:
        nonlocal counted
        counted += len(writes)
        return bytes_of(writes)

    monkeypatch.setattr(recent, "bytes_of", noted)
    for keys in (5, FIRST, MOST // 2, MOST - 5, MOST, 2 * MOST):
        commits, random, counted = Commits(), Random(1), 0
        for number in range(4_000):
            commits.commit(random.randrange(min(keys, 10 + number // 10)))
        assert counted < 2 * 4_000


def test_a_store_keeps_to_its_own_limit() -> None:
    commits, random = Commits(max_pairs=10), Random(1)
    sizes = [len(commits.commit(random.randrange(15))) for _ in range(1_000)]
    assert 5 < max(sizes) <= 10


def test_a_commit_above_the_limit_leaves_no_recent_writes() -> None:
    commits = Commits()
    commits.commit(1)
    assert commits.commit(*range(MOST + 1)) == set()
    # The value of the key was another one meanwhile.
    assert commits.commit(2) == {2}
    unlimited = Commits(max_pairs=100 * MOST)
    assert unlimited.commit(*range(MOST + 1)) == set()


def test_large_commits_are_recent_until_the_next_one() -> None:
    commits = Commits()
    for turn in range(20):
        own = range(50 * turn, 50 * (turn + 1))
        assert commits.commit(*own) >= set(own)
        assert len(commits.recent) <= MOST


def test_other_writes_to_the_engine_end_what_was_recent() -> None:
    commits = Commits()
    commits.commit(1)
    commits.recent_writes.forget()
    assert commits.commit(2) == {2}


def test_a_closed_store_leaves_its_memory_to_others(tmp_path: Path) -> None:
    stores = [open_store("lmdb-indexed-batch", tmp_path / f"{number}") for number in range(3)]
    for store in stores:
        store.put(b"key", b"value")
        store.commit()
    assert len(RecentWrites._holders) == 3
    for store in stores:
        assert isinstance(store, Store)
        store.close()
    assert len(RecentWrites._holders) == 0


@pytest.mark.parametrize("backend", [name for name in backends() if backends()[name].transactional])
def test_a_restore_replaces_what_was_recent(backend: str, tmp_path: Path) -> None:
    with open_store(backend, tmp_path) as store:
        for number in range(3):
            store.put_all([(b"key", b"1"), (b"gone", b"1")])
            store.commit({LOG: number})
        store.restore([(b"key", b"2"), (b"gone", None)], {LOG: 10})
        for number in range(11, 14):
            assert store.get_many([b"key", b"gone"]) == [store.get(b"key"), store.get(b"gone")] == [b"2", None]
            store.put(b"other", b"1")
            store.commit({LOG: number})


@pytest.mark.parametrize("fails", ["before", "after"])
@pytest.mark.parametrize("backend", [name for name in backends() if name.endswith(("indexed-batch", "sst-ingest"))])
def test_after_a_rollback_the_engine_says_whether_a_failed_commit_was_made(
    backend: str, fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(backend, tmp_path) as store:
        assert isinstance(store, Store)
        for value in (b"1", b"2"):
            store.put(b"key", value)
            store.commit()
        engine, method = store.staging.engine, "ingest" if backend.endswith("ingest") else "write"
        real = getattr(engine, method)

        def failing(*arguments: Any, **settings: Any) -> None:
            if fails == "after":
                real(*arguments, **settings)
            raise KeyboardInterrupt

        store.put(b"key", b"3")
        with monkeypatch.context() as patched:
            patched.setattr(engine, method, failing)
            with pytest.raises(KeyboardInterrupt):
                store.commit()
        store.rollback()
        for turn in range(3):
            expected = b"3" if fails == "after" else b"2"
            assert (store.get(b"key"), store.get_many([b"key"]), dict(store.all())[b"key"]) == (
                expected,
                [expected],
                expected,
            )
            store.put(b"other", b"%d" % turn)
            store.commit()


def test_the_writes_of_a_commit_which_a_scan_may_hold_never_change() -> None:
    commits = Commits()
    held: list[tuple[dict[bytes, bytes | None], dict[bytes, bytes | None]]] = []
    for number in range(500):
        writes: dict[bytes, bytes | None] = {b"%04d" % (number % 70): b"%04d" % number}
        held.append((writes, dict(writes)))
        commits.recent = commits.recent_writes.after(writes, 8)
    assert all(writes == copy for writes, copy in held)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("backend", [name for name in backends() if name.endswith("indexed-batch")])
def test_a_lookup_shows_what_was_committed_whatever_is_recent(backend: str, seed: int, tmp_path: Path) -> None:
    random = Random(f"{backend} {seed}")
    options = {"staging_buffer_bytes": 4_000, "copy_part_bytes": 500} if backends()[backend].persistent else {}
    with open_store(backend, tmp_path, options=options) as store:
        assert isinstance(store, Store)
        expected: dict[bytes, bytes] = {}
        from_memory = 0
        for turn in range(300):
            keys = [b"%04d" % random.randrange(random.choice((20, 2_000))) for _ in range(random.randrange(12))]
            if turn % 40 == 39:
                keys *= 100  # The transaction is spilled.
                keys = [key[:2] + b"%d" % place for place, key in enumerate(keys)]
            writes = {key: None if random.random() < 0.1 else random.randbytes(4) for key in keys}
            before = dict(expected)
            scan = None
            if random.random() < 0.3:
                # What is put before a scan stays in a layer of its own.
                store.put_many(dict.fromkeys(keys, b"older"))
                scan = store.all()
            store.put_many(writes)
            expected.update({key: value for key, value in writes.items() if value is not None})
            for key in [key for key, value in writes.items() if value is None]:
                expected.pop(key, None)
            if random.random() < 0.1:
                low, high = sorted(b"%04d" % random.randrange(2_000) for _ in range(2))
                store.delete_range(low, high)
                expected = {key: value for key, value in expected.items() if not low <= key <= high}
            if random.random() < 0.2:
                store.rollback()
                expected = before
            else:
                store.commit()
            if scan is not None:
                scan.close()
            asked = [*keys[:20], *random.sample(sorted(expected), min(20, len(expected)))]
            assert store.get_many(asked) == [expected.get(key) for key in asked]
            assert [store.get(key) for key in asked] == [expected.get(key) for key in asked]
            batch = store.staging.batch
            assert batch is not None
            assert {key: value for key, value in batch.recent.items() if value is not None}.items() <= expected.items()
            from_memory += len(batch.recent) > len(writes)
        assert dict(store.all()) == expected
        assert from_memory > 20
