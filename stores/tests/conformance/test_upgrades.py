"""A plain store becomes a timestamped one by being opened as one: records move when their keys are next used.

Source: KIP-258, "lazy upgrade"; Kafka's ``RocksDBTimestampedStoreTest``
(``shouldMigrateDataFromDefaultToTimestampColumnFamily``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from stores import IsolationLevel, KeyValueStore, StoreError, StoreIncompatibleError, TopicPartition, failpoints
from stores.changelog.interface import Record
from stores.engines.families import NEW
from stores.records import BYTES, STR, KeyValue, TimestampedKeyValue, ValueAndTimestamp
from stores.records.timestamped import TimestampedKeyValueStore
from stores.strategies.store.timestamps import SPLIT_FAILPOINTS
from stores.tests.conformance.cases import AT_THE_END, Case
from stores.tests.conformance.gaps import COMMITTED_ALIKE, ROLLED_BACK, TWO_FORMATS, HeldInstead, carries
from stores.tests.store_process import ProcessDied, StoreProcess

LOG = TopicPartition("changelog", 0)
PLAIN, TIMED = KeyValue(BYTES, BYTES), TimestampedKeyValue(BYTES, BYTES)
SURROGATE = b"\xff" * 8
KEYS = [b"a", b"a\x00", b"a\x00\xff", b"ab", b"b", b"\x00", b"\x01", b"\x01\x00", b"\x02", b"\xff", b"\xff\xff"]
Timed = TimestampedKeyValueStore[bytes, bytes]
Shown = dict[bytes, tuple[bytes, int]]


def old_value(key: bytes) -> bytes:
    """Return the plain store's value of ``key``."""
    return b"old " + key


OLD: Shown = {key: (old_value(key), -1) for key in KEYS}


@pytest.fixture
def upgraded(case: Case, path: Path) -> Iterator[Callable[[], Timed]]:
    """A plain store with all ``KEYS``; each call opens it as a timestamped one."""
    stores: list[KeyValueStore] = [case.open(path)]
    stores[0].put_all([(key, old_value(key)) for key in KEYS])
    stores[0].commit({LOG: 1})

    def again() -> Timed:
        if stores[-1].persistent:
            stores[-1].close()
            stores.append(case.open(path))
        return timed_over(stores[-1])

    yield again
    stores[-1].close()


def timed_over(store: KeyValueStore, kind: TimestampedKeyValue[bytes, bytes] = TIMED) -> Timed:
    """``store``, which has plain records, as a timestamped one.

    Raises: HeldInstead where it can't keep two formats apart, and has refused.
    """
    if carries(store, TWO_FORMATS):
        return kind.over(store)
    with store.all() as pairs:
        before = list(pairs)
    assert before
    with pytest.raises(StoreIncompatibleError):
        kind.over(store)
    with store.all() as pairs:
        assert list(pairs) == before
    assert not store.timestamps.is_split
    raise HeldInstead


def shown(pairs: Any) -> list[tuple[bytes, tuple[bytes, int]]]:
    """The pairs of a scan, as plain tuples."""
    with pairs:
        return [(key, tuple(value)) for key, value in pairs]


def check(records: Any, expected: Shown) -> None:
    """Assert that lookups and scans of a store or view show ``expected``, and move nothing where they must not."""
    ordered = sorted(expected.items())
    assert shown(records.all()) == ordered
    assert shown(records.reverse_all()) == ordered[::-1]
    for start, end in [
        (b"a", b"b"),
        (None, b"a\x00"),
        (b"\x01", None),
        (b"\x01\x00", b"\xff"),
        (b"c", b"a"),
        (b"", b""),
    ]:
        within = [pair for pair in ordered if (start is None or pair[0] >= start) and (end is None or pair[0] <= end)]
        assert shown(records.range(start, end)) == within
        assert shown(records.reverse_range(start, end)) == within[::-1]
    for prefix in (b"a", b"a\x00", b"\x01", b"\xff", b"\xff\xff", b"z", b""):
        within = [pair for pair in ordered if pair[0].startswith(prefix)]
        assert shown(records.prefix_scan(prefix)) == within
        assert shown(records.reverse_prefix_scan(prefix)) == within[::-1]
    assert records.get_many([*KEYS, b"none"]) == [expected.get(key) for key in [*KEYS, b"none"]]
    assert [records.get(key) for key in [*KEYS, b"none"]] == [expected.get(key) for key in [*KEYS, b"none"]]


def places(store: KeyValueStore) -> dict[bytes, bytes]:
    """Return the stored pairs of a split store."""
    return dict(store.all())


def test_opening_a_plain_store_as_timestamped_is_the_whole_upgrade(upgraded: Callable[[], Timed]) -> None:
    with upgraded() as store:
        assert store.store.timestamps.is_split
        assert places(store.store) == {b"\x00" + key: old_value(key) for key in KEYS}
        assert store.committed_offset(LOG) == (1 if store.store.manages_offsets else None)
        for level in IsolationLevel:
            check(store.read_only(level), OLD)
        check(store, OLD)


def test_a_lookup_and_a_put_move_a_record_to_the_new_format_and_a_scan_moves_none(
    upgraded: Callable[[], Timed],
) -> None:
    store = upgraded()
    assert shown(store.all()) == sorted(OLD.items())
    assert all(key[:1] == b"\x00" for key in places(store.store))
    assert store.get(b"a") == ValueAndTimestamp(b"old a", -1)
    store.put(b"b", b"new b", 5)
    store.put(b"c", b"new c", 6)
    store.delete(b"ab")
    assert store.put_if_absent(b"\x01", b"unused", 7) == (b"old \x01", -1)
    assert store.put_if_absent(b"d", b"new d", 8) is None
    expected = {
        **OLD, b"b": (b"new b", 5), b"c": (b"new c", 6), b"d": (b"new d", 8),
    }  # fmt: skip
    del expected[b"ab"]
    new_format = {b"a", b"b", b"ab", b"\x01", b"c", b"d"}
    lies = places(store.store)
    assert {key[1:] for key in lies if key[:1] == b"\x00"} == set(KEYS) - new_format
    assert {key[1:]: value for key, value in lies.items() if key[:1] == b"\x01"} == {
        b"a": SURROGATE + b"old a", b"\x01": SURROGATE + b"old \x01", b"b": bytes(7) + b"\x05new b",
        b"c": bytes(7) + b"\x06new c", b"d": bytes(7) + b"\x08new d",
    }  # fmt: skip
    check(store.read_only(IsolationLevel.READ_UNCOMMITTED), expected)
    if carries(store.store, ROLLED_BACK):
        check(store.read_only(IsolationLevel.READ_COMMITTED), OLD)
        store.rollback()
        assert places(store.store) == {b"\x00" + key: old_value(key) for key in KEYS}
        return
    check(store.read_only(IsolationLevel.READ_COMMITTED), expected)


def test_what_was_moved_is_committed_with_the_writes(upgraded: Callable[[], Timed]) -> None:
    store = upgraded()
    store.get(b"a")
    store.put(b"b", b"new", 9)
    store.delete_range(b"\x01", b"\x02")
    store.commit({LOG: 2})
    expected = {**OLD, b"b": (b"new", 9)}
    for key in (b"\x01", b"\x01\x00", b"\x02"):
        del expected[key]
    check(store.read_only(IsolationLevel.READ_COMMITTED), expected)
    if store.store.persistent:
        store = upgraded()
        assert store.store.timestamps.is_split
        assert not store.store.timestamps.split_has_ended
        lies = places(store.store)
        assert {key[1:] for key in lies if key[:1] == b"\x01"} == {b"a", b"b"}
        store.store.verify()
    check(store, expected)


def test_a_view_moves_nothing_and_changes_no_byte_of_the_files(upgraded: Callable[[], Timed], path: Path) -> None:
    """Source: KIP-258; Kafka's own views write (trunk, ``DualColumnFamilyAccessor``)."""
    store = upgraded()
    store.put(b"b", b"staged", 9)
    before = files_of(path)
    views = [store.read_only(level) for level in IsolationLevel]
    with ThreadPoolExecutor(1) as pool:
        for view in views:
            for key in KEYS:
                pool.submit(view.get, key).result(30)
            pool.submit(view.get_many, KEYS).result(30)
            pool.submit(shown, view.all()).result(30)
    assert files_of(path) == before
    assert set(places(store.store)) == {b"\x01b", *(b"\x00" + key for key in KEYS if key != b"b")}


def files_of(path: Path) -> dict[str, str]:
    """The checksum of each file below ``path``, but for those that readers take their places in."""
    return {
        str(file.relative_to(path)): sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in ("lock.mdb", "LOG") and not file.name.endswith("-shm")
    }


def test_after_the_last_old_record_has_moved_the_next_opening_ends_the_upgrade(
    upgraded: Callable[[], Timed], case: Case, path: Path
) -> None:
    store = upgraded()
    store.put(KEYS[0], b"new", 3)
    for key in KEYS[1:]:
        store.get(key)
    store.commit()
    expected = {**OLD, KEYS[0]: (b"new", 3)}
    assert store.store.timestamps.is_split
    if not store.store.persistent:
        check(store, expected)
        return
    for is_first in (True, False):
        store = upgraded()
        assert not store.store.timestamps.is_split
        assert store.store.timestamps.split_has_ended is is_first
        assert dict(store.store.all()) == {
            key: (SURROGATE if at < 0 else at.to_bytes(8, "big")) + value for key, (value, at) in expected.items()
        }
        check(store, expected)
        store.put(b"b", b"whole %d" % is_first, 4)
        store.delete_range(b"\x01", b"\x02")
        store.commit()
        expected = {**expected, b"b": (b"whole %d" % is_first, 4)}
        expected = {key: value for key, value in expected.items() if not b"\x01" <= key <= b"\x02"}
        check(store.read_only(IsolationLevel.READ_COMMITTED), expected)
        store.store.verify()


def test_a_new_timestamped_store_is_never_split(store: KeyValueStore, reopen: Callable[[], KeyValueStore]) -> None:
    timed = TIMED.over(store)
    assert not store.timestamps.is_split
    timed.put(b"key", b"value", 1)
    timed.commit()
    again = reopen()
    assert not again.timestamps.is_split
    assert again.timestamps.split_has_ended is False
    assert list(again.all()) == ([(b"key", bytes(7) + b"\x01value")] if again.persistent else [])


def test_keys_of_any_length_can_be_upgraded(case: Case, path: Path) -> None:
    with case.open(path) as store:
        longest = b"k" * min(store.max_key_bytes, 1 << 16)
        store.put(longest, b"value")
        store.commit()
        timed = timed_over(store)
        assert timed.get(longest) == (b"value", -1)
        timed.put(longest[:-1] + b"l", b"other", 1)
        timed.put_all([(longest[:-1] + b"m", b"x" * 5000, 2), (b"short", b"y", 3)])
        if store.max_key_bytes < 1 << 16:
            with pytest.raises(ValueError):
                timed.put(longest + b"k", b"", 1)
            with pytest.raises(ValueError):
                timed.put_all([(b"fits", b"", 1), (longest + b"k", b"", 1)])
        timed.commit()
        expected = {
            longest: (b"value", -1), longest[:-1] + b"l": (b"other", 1), longest[:-1] + b"m": (b"x" * 5000, 2),
            b"short": (b"y", 3),
        }  # fmt: skip
        assert shown(timed.all()) == sorted(expected.items())


def test_a_store_that_was_opened_as_key_value_is_upgraded_if_the_serdes_are_the_same(case: Case, path: Path) -> None:
    with case.open(path) as store:
        plain = PLAIN.over(store)
        plain.put(b"key", b"value")
        plain.commit()
        with pytest.raises(StoreIncompatibleError):
            TimestampedKeyValue(STR, BYTES).prepare(store)
        assert not store.timestamps.is_split
        timed = timed_over(store)
        assert timed.get(b"key") == (b"value", -1)
        timed.rollback()


def test_a_downgrade_is_refused_and_changes_nothing(upgraded: Callable[[], Timed]) -> None:
    store = upgraded().store
    before = places(store)
    for _ in range(2):
        with pytest.raises(StoreIncompatibleError):
            PLAIN.over(store)
        assert places(store) == before
    timed = TIMED.over(store)
    for key in KEYS:
        timed.get(key)
    timed.commit()
    store = upgraded().store
    with pytest.raises(StoreIncompatibleError):
        PLAIN.over(store)


def test_writes_that_are_staged_are_no_upgrade(case: Case, path: Path) -> None:
    with case.open(path) as store:
        store.put(b"key", b"value")
        if store.transactional:
            with pytest.raises(StoreError):
                TIMED.over(store)
            assert not store.timestamps.is_split
        store.commit()
        timed = timed_over(store)
        with pytest.raises(StoreError):
            store.timestamps.split({})
        assert timed.get(b"key") == (b"value", -1)


def test_a_restore_replaces_records_of_both_formats(upgraded: Callable[[], Timed]) -> None:
    store = upgraded()
    store.put(b"b", b"moved", 1)
    store.commit()
    converter = TIMED.converter(store.store)
    records = [
        Record(2, b"a", b"restored", 11), Record(3, b"b", b"again", 12), Record(4, b"ab", None, 13),
        Record(5, b"new", b"one", 14), Record(6, b"absent", None, 15),
    ]  # fmt: skip
    pairs = [pair for record in records for pair in converter.convert(record)]
    store.store.restore(pairs, {LOG: 6}, marks=converter.marks())
    expected = {**OLD, b"a": (b"restored", 11), b"b": (b"again", 12), b"new": (b"one", 14)}
    del expected[b"ab"]
    check(store.read_only(IsolationLevel.READ_COMMITTED), expected)
    assert b"\x00a" not in places(store.store)


def test_old_records_never_expire_and_new_ones_do(upgraded: Callable[[], Timed]) -> None:
    store = timed_over(upgraded().store, TimestampedKeyValue(BYTES, BYTES, ttl_ms=10))
    store.put(b"b", b"1", 100)
    store.put(b"c", b"2", 105)
    store.commit()
    store.put(b"d", b"3", 112)
    for _ in range(20):
        store.put(b"e", b"4", 112)
    store.commit()
    expected = {**OLD, b"c": (b"2", 105), b"d": (b"3", 112), b"e": (b"4", 112)}
    del expected[b"b"]
    assert shown(store.all()) == sorted(expected.items())
    assert b"\x01b" not in places(store.store)


def test_an_upgrade_under_way_is_like_a_store_that_has_only_records_with_times(
    upgraded: Callable[[], Timed], case: Case
) -> None:
    draw = random.Random(str(case))  # Other steps with each backend.
    store = upgraded()
    committed, current = dict(OLD), dict(OLD)
    for step in range(120):
        key = draw.choice([*KEYS, b"new", b"newer"])
        match draw.randrange(9):
            case 0 | 1:
                store.put(key, b"%d" % step * 9, step)
                current[key] = (b"%d" % step * 9, step)
            case 2:
                assert store.delete(key) == current.pop(key, None)
            case 3 | 4:
                assert store.get(key) == current.get(key)
            case 5:
                low, high = sorted([key, draw.choice(KEYS)])
                store.delete_range(low, high)
                current = {each: value for each, value in current.items() if not low <= each <= high}
            case 6:
                store.commit()
                committed = dict(current)
            case 7 if carries(store.store, ROLLED_BACK):
                store.rollback()
                current = dict(committed)
            case 8 if store.store.persistent and carries(store.store, ROLLED_BACK):
                store = upgraded()
                current = dict(committed)
        assert shown(store.all()) == sorted(current.items())
        if carries(store.store, ROLLED_BACK):
            assert shown(store.read_only(IsolationLevel.READ_COMMITTED).all()) == sorted(committed.items())
    store.commit()
    check(store, current)


PER_COMMIT, COMMITS = 6, 3
NUMBERS = range(PER_COMMIT * COMMITS)


@pytest.mark.spread
def test_a_kill_at_any_failpoint_of_an_upgrade_leaves_each_record_in_one_place(
    case: Case, failpoint: str, path: Path
) -> None:
    """Each commit moves six records and writes six. A failpoint of commits kills when it is reached again."""
    killed = kill_in_upgrade(case, path, failpoint, after=int(failpoint not in SPLIT_FAILPOINTS))
    if carries(case.backend, COMMITTED_ALIKE):
        assert killed or not reached_by_commits(case, failpoint, path.with_name("other"))
    else:
        assert killed is (failpoint in SPLIT_FAILPOINTS)
    check_upgraded(case, path)


def reached_by_commits(case: Case, failpoint: str, path: Path) -> bool:
    """Return whether commits as large as the upgrade's reach ``failpoint`` more than once."""
    failpoints_passed: list[str] = []
    with case.open(path) as store:
        if failpoint != AT_THE_END:
            failpoints.arm(failpoint, lambda: failpoints_passed.append(failpoint))
        try:
            for number in range(COMMITS):
                store.put_all([(b"%d %d" % (number, at), SURROGATE + b"old") for at in range(3 * PER_COMMIT)])
                store.commit()
        finally:
            failpoints.disarm()
    return len(failpoints_passed) > 1


def kill_in_upgrade(case: Case, path: Path, failpoint: str, *, after: int) -> bool:
    """Fill a plain store, upgrade it in a process and move all records; whether it was killed at ``failpoint``.

    Raises: HeldInstead as ``timed_over``.
    """
    with case.open(path) as store:
        store.put_all([(b"%02d" % number, b"old") for number in NUMBERS])
        store.commit({LOG: 0})
        if not carries(store, TWO_FORMATS):
            timed_over(store)
        if not store.persistent:
            return False
    with StoreProcess() as process:
        process.call("load_backend", case.backend.name)
        if failpoint != AT_THE_END:
            process.call("kill_at", failpoint, after)
        opening = ("open", case.backend.name, path, case.durability, case.options)
        try:
            process.call(*opening)
            description = b'{"key":"bytes","kind":"timestamped-key-value","value":"bytes"}'
            process.call("split", {"records": description})
            for first in NUMBERS[::PER_COMMIT]:
                numbers = NUMBERS[first : first + PER_COMMIT]
                process.call("put_all", [(b"\x01%02d" % number, SURROGATE + b"old") for number in numbers])
                process.call("put_all", [(b"\x00%02d" % number, None) for number in numbers])
                process.call("put_all", [(b"\x01w%02d" % number, bytes(8) + b"new") for number in numbers])
                process.call("commit", {LOG: 1 + first // PER_COMMIT})
            process.call("close")
            process.call(*opening)
            process.call("close")
        except ProcessDied as died:
            assert died.status == -9
            return True
    return False


def check_upgraded(case: Case, path: Path) -> None:
    """Assert that the store is at one of the commits, whole, and can be upgraded to the end."""
    for _ in range(2):
        with TIMED.over(case.open(path)) as store:
            if not store.store.persistent:
                assert shown(store.all()) == []
                return
            if store.store.transactional:
                committed = store.committed_offset(LOG) or 0
                expected: Shown = {b"%02d" % number: (b"old", -1) for number in NUMBERS}
                expected |= {b"w%02d" % number: (b"new", 0) for number in NUMBERS[: PER_COMMIT * committed]}
                assert shown(store.all()) == sorted(expected.items())
                if store.store.timestamps.is_split:
                    old = [key for key in places(store.store) if key[:1] == b"\x00"]
                    assert len(old) == len(NUMBERS) - PER_COMMIT * committed
            else:
                assert {key for key, _ in shown(store.all())} >= {b"%02d" % number for number in NUMBERS}
            store.store.verify()
            for number in NUMBERS:
                store.get(b"%02d" % number)
            store.commit()
    with case.open(path) as whole:
        assert not whole.timestamps.is_split


def test_of_a_key_in_both_formats_readers_show_the_present_one(upgraded: Callable[[], Timed]) -> None:
    """No typed store leaves a key in both. A reader of a direct store may meet one on its way."""
    times = upgraded()
    present = b"\x00" * 7 + b"\x07new"
    for key in (b"a", b"ab", b"\xff\xff"):
        times.store.put(NEW + key, present)
    expected = {key: (value, -1) for key, (value, _) in OLD.items()}
    expected.update(dict.fromkeys((b"a", b"ab", b"\xff\xff"), (b"new", 7)))
    in_order = sorted(expected.items())
    for level in IsolationLevel:
        view = times.read_only(level)
        if level is IsolationLevel.READ_COMMITTED:
            times.commit()
        assert {key: tuple(view.get(key) or ()) for key in KEYS} == expected
        assert [tuple(value or ()) for value in view.get_many(KEYS)] == [expected[key] for key in KEYS]
        assert shown(view.all()) == in_order
        assert shown(view.reverse_all()) == in_order[::-1]
        assert shown(view.prefix_scan(b"a")) == [pair for pair in in_order if pair[0][:1] == b"a"]
