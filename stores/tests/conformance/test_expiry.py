"""Time to live over every backend: what has expired is never seen, and goes in steps that what is written pays for."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

from stores import IsolationLevel, KeyValueStore
from stores.errors import ConfigError
from stores.records import STR, TimestampedKeyValue, TimestampedKeyValueStore
from stores.records.expiry import EXAMINED_PER_WRITE
from stores.tests.overtaken_view import Overtaken

pytestmark = pytest.mark.typed

Reopen = Callable[[], KeyValueStore]
Times = TimestampedKeyValueStore[str, str]
TTL = TimestampedKeyValue(STR, STR, ttl_ms=100)


@pytest.fixture
def times(store: KeyValueStore) -> Times | None:
    """Records that live for 100 ms, over a new store; None where that is refused."""
    if store.keeps_marks and store.timestamps.are_kept:
        return TTL.over(store)
    with pytest.raises(ConfigError):
        TTL.over(store)
    return None


def keys(pairs: Any) -> list[str]:
    return [key for key, _ in pairs]


def test_a_record_expires_when_stream_time_is_its_time_and_the_ttl(times: Times | None) -> None:
    if times is None:
        return
    times.put("a", "one", 0)
    times.put("b", "two", 99)
    assert keys(times.all()) == ["a", "b"]
    times.put("c", "three", 100)
    assert times.get("a") is None
    assert times.get_many(["a", "b"]) == [None, ("two", 99)]
    for scan in (times.all(), times.range("a", None), times.prefix_scan("")):
        assert keys(scan) == ["b", "c"]
    for scan in (times.reverse_all(), times.reverse_range(None, "c"), times.reverse_prefix_scan("")):
        assert keys(scan) == ["c", "b"]


def test_an_expired_record_is_absent_for_every_write(times: Times | None) -> None:
    if times is None:
        return
    times.put_all([("a", "old", 0), ("b", "old", 0), ("now", "", 100)])
    assert times.delete("a") is None
    assert times.put_if_absent("b", "new", 100) is None
    assert times.get("b") == ("new", 100)


def test_several_records_are_put_or_none_where_a_key_is_refused(times: Times | None) -> None:
    if times is None:
        return
    for refused in ("", "k" * (times.store.max_key_bytes + 1)):
        if len(refused) < 1 << 20:
            with pytest.raises(ValueError):
                times.put_all([("a", "new", 5), (refused, "new", 5)])
    assert keys(times.all()) == []


def test_a_put_of_an_expired_record_leaves_the_key_without_a_value(times: Times | None) -> None:
    if times is None:
        return
    times.put("now", "", 1000)
    times.put("a", "one", 1000)
    times.put("a", "late", 900)
    assert times.get("a") is None
    assert times.store.get(b"a") is None
    times.put("a", "in time", 901)
    assert times.get("a") == ("in time", 901)


def test_views_show_nothing_that_has_expired_at_their_level(times: Times | None) -> None:
    if times is None:
        return
    times.put("a", "one", 0)
    times.commit()
    committed = times.read_only(IsolationLevel.READ_COMMITTED)
    uncommitted = times.read_only(IsolationLevel.READ_UNCOMMITTED)
    times.put("b", "two", 100)
    assert keys(uncommitted.all()) == ["b"]
    assert uncommitted.get("a") is None
    if times.store.transactional:
        assert keys(committed.plain().all()) == ["a"]
        assert committed.get("a") == ("one", 0)
    times.commit()
    assert keys(committed.all()) == ["b"]
    assert committed.plain().get_many(["a", "b"]) == [None, "two"]


@pytest.mark.parametrize("level", IsolationLevel)
def test_a_view_is_of_one_moment_however_fast_stream_time_moves(
    times: Times | None, level: IsolationLevel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each put lets those before expire: one lives at every moment, two while the stream time has not moved yet."""
    if times is None:
        return
    # What has expired stays in the store.
    monkeypatch.setattr("stores.records.expiry.EXAMINED_PER_WRITE", 0)
    times.put("k", "v", 0)
    times.commit()
    below = Overtaken(times.store, level)
    view = TTL.view(below)
    later = count(100, 100)

    def write(_: int) -> None:
        for _ in range(3):
            number = next(later)
            times.put("k", "v", number)
            times.put(f"k{number}", "v", number)
            times.commit()

    def asked(ask: Callable[[], Any]) -> Any:
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ask)
            assert below.overtake(answer, write) > 5
        return answer.result()

    assert asked(lambda: view.get("k")) is not None
    assert None not in asked(lambda: view.get_many(["k", "k"]))
    assert 1 <= len({found.timestamp_ms for found in asked(lambda: list(dict(view.all()).values()))}) <= 2
    assert 1 <= len({found.timestamp_ms for found in asked(lambda: list(dict(view.reverse_all()).values()))}) <= 2


def test_a_rollback_takes_stream_time_back(times: Times | None) -> None:
    if times is None or not times.store.transactional:
        return
    times.put("a", "one", 0)
    times.commit()
    times.put("b", "two", 100)
    times.rollback()
    assert times.get("a") == ("one", 0)


def test_stream_time_is_there_after_closing_and_opening(times: Times | None, reopen: Reopen) -> None:
    if times is None or not times.store.persistent:
        return
    times.put("a", "one", 0)
    times.put("b", "two", 100)
    times.commit()
    again = TTL.over(reopen())
    assert keys(again.all()) == ["b"]
    again.put("c", "late", 0)
    assert again.get("c") is None


def test_commits_remove_what_has_expired(times: Times | None) -> None:
    if times is None:
        return
    times.put_all([(f"old-{number:03}", "", 0) for number in range(100)])
    times.commit()
    times.put("now", "", 100)
    commits = 0
    while len(list(times.store.all())) > 1:
        times.put("now", "", 100)
        times.commit()
        commits += 1
        assert commits <= 200 / EXAMINED_PER_WRITE
    times.commit()
    assert keys(times.all()) == ["now"]


def test_one_commit_examines_no_more_than_what_was_written_pays_for(times: Times | None) -> None:
    if times is None:
        return
    times.put_all([(f"old-{number:03}", "", 0) for number in range(100)])
    times.commit()
    times.put("now", "", 1000)
    for _ in range(10):
        before = len(list(times.store.all()))
        times.put("now", "", 1000)
        times.commit()
        assert before - len(list(times.store.all())) <= 2 * EXAMINED_PER_WRITE
    remaining = list(times.store.all())
    for _ in range(3):
        times.commit()
    assert list(times.store.all()) == remaining


def test_what_stays_does_not_keep_commits_from_what_has_expired_behind_it(times: Times | None) -> None:
    if times is None:
        return
    for number in range(40):
        times.store.put(b"a-%02d" % number, b"\xff" * 8)
        times.put(f"z-{number}", "", 0)
    times.commit()
    for number in range(60):
        times.put("now", "", 100 + number)
        times.commit()
    assert len(list(times.store.all())) == 41


def test_the_longest_keys_expire_as_well(times: Times | None) -> None:
    if times is None:
        return
    length = min(times.store.max_key_bytes, 100_000)
    for letter in "abc":
        times.put(letter * length, "", 0)
    times.commit()
    for number in range(4):
        times.put("now", "", 100 + number)
        times.commit()
    assert [key for key, _ in times.store.all()] == [b"now"]


def test_a_removal_by_a_commit_is_part_of_that_commit(times: Times | None) -> None:
    if times is None or not times.store.transactional:
        return
    times.put("a", "one", 0)
    times.commit()
    times.put("b", "two", 100)
    times.put("c", "three", 100)
    times._before_commit()
    assert times.store.get(b"a") is None
    times.rollback()
    assert times.get("a") == ("one", 0)


def test_a_record_whose_time_is_unknown_never_expires(times: Times | None) -> None:
    if times is None:
        return
    times.store.put(b"old", b"\xff" * 8 + b"value")
    for number in range(10):
        times.put("now", "", 10_000 + number)
        times.commit()
    assert times.get("old") == ("value", -1)
    assert keys(times.all()) == ["now", "old"]


def test_ttl_may_change_and_without_one_nothing_expires(times: Times | None) -> None:
    if times is None:
        return
    times.put("a", "one", 0)
    times.put("b", "two", 100)
    assert times.get("a") is None
    times.commit()
    # The commit may have removed it.
    assert set(keys(TimestampedKeyValue(STR, STR).over(times.store).all())) >= {"b"}
    assert TimestampedKeyValue(STR, STR, ttl_ms=10_000).over(times.store).get("b") == ("two", 100)


@pytest.mark.parametrize("refused", [0, -1, 1.5, True, "1"])
def test_what_is_no_time_to_live_is_refused(refused: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        TimestampedKeyValue(STR, STR, ttl_ms=refused)
