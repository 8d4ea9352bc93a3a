"""Versioned stores over every backend: a model and a store do the same, and never differ.

The promises are those of Kafka's ``VersionedKeyValueStore``. Source: KIP-889, KIP-960 and KIP-968.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stores import IsolationLevel, KeyValueStore
from stores.errors import ReadOnlyViewError, StoreClosedError, StoreIncompatibleError
from stores.records import BYTES, INT64, STR, Versioned, VersionedRecord, VersionedStore
from stores.records.versions import HISTORY, INDEX, LATEST
from stores.tests.conformance.cases import Case
from stores.tests.conformance.version_model import VersionModel, differences

pytestmark = pytest.mark.typed

RETENTION = 25
KEYS = [b"\0", b"\0\xff", b"a", b"a\0", b"a\0\0", b"ab", b"\xff", b"\xff\xff"]
"""Keys that are prefixes of each other, with the bytes that a longer key is made of."""
DIRTY, COMMITTED = IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED
Store = VersionedStore[str, int]


def kind(retention: int = 100) -> Versioned[str, int]:
    return Versioned(STR, INT64, retention)


@pytest.fixture
def versions(store: KeyValueStore) -> Store:
    """A new store, which closes with the one below."""
    return kind().over(store)


@pytest.mark.spread_over(seed=range(3))
def test_a_versioned_store_does_what_a_dict_of_versions_would(case: Case, tmp_path: Path, seed: int) -> None:
    """With late puts, deletions, commits, rollbacks, openings and another retention; and held iterators."""
    print(f"seed {seed}")
    random = Random(seed)
    retention = RETENTION
    model = VersionModel(retention)
    store = Versioned(BYTES, BYTES, retention).over(case.open(tmp_path / "store"))
    held: list[tuple[Any, Any]] = []
    late = 0
    try:
        for number in range(300):
            step = random.random()
            if step < 0.75:
                key, time = random.choice(KEYS), max(0, model.stream_time + random.randint(-RETENTION - 5, 6))
                value = None if random.random() < 0.2 else b"%d" % number
                if value is None and random.random() < 0.5:
                    expected = model.at(key, time) if time >= model.stream_time - retention else None
                    assert store.delete(key, time) == expected
                    model.put(key, None, time)
                else:
                    assert store.put(key, value, time) == model.put(key, value, time)
            elif step < 0.8:
                many = [
                    (random.choice(KEYS), b"%d" % number, max(0, model.stream_time + random.randint(-30, 9)))
                    for _ in range(6)
                ]
                store.put_many(*map(list, zip(*many, strict=True)))
                for put in many:
                    model.put(*put)
            elif step < 0.9:
                store.commit()
                model.commit()
            elif step < 0.94 and store.store.transactional:
                store.rollback()
                model.rollback()
            elif step < 0.96 and store.store.persistent:
                store.commit()
                model.commit()
                late += store.late_total
                store.close()
                held.clear()
                store = Versioned(BYTES, BYTES, retention).over(case.open(tmp_path / "store"))
            else:
                key = random.choice(KEYS)
                held.append((store.get_versions(key), model.between(key, 0, model.stream_time)))
                held.append((store.all(), model.latest()))
            if number % 30 == 29:
                assert differences(store, model, KEYS, random) == []
                assert differences(store.read_only(DIRTY), model, KEYS, random) == []
        store.commit()
        model.commit()
        for level in IsolationLevel:
            assert differences(store.read_only(level), model, KEYS, random) == []
        with store.read_only(COMMITTED).snapshot() as snapshot:
            store.put(b"a", b"later", model.stream_time + 9 * RETENTION)
            store.commit()
            assert differences(snapshot, model, KEYS, random) == []
        for scan, then in held:
            assert list(scan) == then
        assert late + store.late_total == model.late > 5
    finally:
        store.close()


def test_a_version_is_valid_from_its_time_until_the_time_of_the_next_one(versions: Store) -> None:
    assert versions.put("k", 1, 10)
    assert versions.put("k", 3, 30)
    assert not versions.put("k", 2, 20)
    found = [VersionedRecord(1, 10, 20), VersionedRecord(2, 20, 30), VersionedRecord(3, 30, None)]
    assert list(versions.get_versions("k")) == found
    assert list(versions.get_versions("k", reverse=True)) == found[::-1]
    assert list(versions.get_versions("k", 19, 20)) == found[:2]
    assert list(versions.get_versions("k", 20, 29)) == found[1:2]
    assert list(versions.get_versions("k", to_ms=9)) == list(versions.get_versions("k", 30, 29)) == []
    assert [versions.get("k", at) for at in (9, 10, 19, 20, 30)] == [None, (1, 10), (1, 10), (2, 20), (3, 30)]
    assert versions.get("k") == (3, 30)


def test_a_deletion_ends_the_version_before_it_and_a_late_one_leaves_the_latest(versions: Store) -> None:
    versions.put("k", 1, 10)
    versions.put("k", 3, 30)
    assert versions.delete("k", 20) == (1, 10)
    assert versions.delete("k", 5) is None
    assert versions.get("k") == (3, 30)
    assert versions.get("k", 25) is None
    assert list(versions.get_versions("k")) == [(1, 10, 20), (3, 30, None)]
    assert versions.delete("k", 40) == (3, 30)
    assert versions.get("k") is None
    assert list(versions.all()) == []
    assert versions.get("k", 39) == (3, 30)
    assert not versions.put("k", 4, 35)
    assert versions.get("k") is None
    assert versions.put("k", 5, 41)


def test_a_put_of_the_same_time_replaces_the_version(versions: Store) -> None:
    for value in (1, 2):
        versions.put("k", value, 10)
    versions.put("k", 3, 20)
    versions.put("k", 4, 10)
    assert list(versions.get_versions("k")) == [(4, 10, 20), (3, 20, None)]
    assert versions.delete("k", 20) == (3, 20)
    assert versions.put("k", 5, 20)
    assert versions.get("k") == (5, 20)


def test_a_put_before_the_history_is_dropped_and_counted_and_one_at_its_start_is_taken(versions: Store) -> None:
    """Source: Kafka, ``RocksDBVersionedStore.put``: expired if ``timestamp < observedStreamTime - gracePeriod``."""
    versions.put("k", 1, 200)
    assert not versions.put("k", 2, 99)
    assert versions.delete("k", 99) is None
    assert versions.late_total == 2
    assert not versions.put("k", 3, 100)
    assert versions.get("k", 100) == (3, 100)
    assert versions.late_total == 2


def test_history_ends_at_the_retention_and_the_latest_version_never_expires(versions: Store) -> None:
    """Source: KIP-889, ``get(key, asOfTimestamp)``."""
    versions.put("k", 1, 10)
    versions.put("k", 2, 50)
    versions.put("other", 1, 149)
    assert versions.get("k", 49) == (1, 10)
    versions.put("other", 2, 150)
    assert versions.get("k", 49) is None
    assert versions.get("k", 50) == versions.get("k") == (2, 50)
    versions.put("other", 3, 5_000)
    versions.commit()
    assert versions.get("k", 60) == versions.get("k") == (2, 50)
    assert versions.get("k", 49) is None
    assert list(versions.get_versions("k", 0, 60)) == [(2, 50, None)]
    assert list(versions.get_versions("other")) == [(2, 150, 5_000), (3, 5_000, None)]


def kept(store: Store, part: bytes) -> int:
    with store.store.range(part, bytes([part[0] + 1])) as pairs:
        return len(list(pairs))


def test_commits_remove_what_has_expired_and_deletions_with_it(versions: Store) -> None:
    for number in range(500):
        versions.put("k", number, number)
        versions.put(f"gone {number % 7}", number, number)
        versions.delete(f"gone {number % 7}", number)
    versions.commit()
    versions.put("late", 1, 450)
    versions.put("late", 1, 420)
    for _ in range(5):
        versions.put("other", 1, 10_000)
        versions.commit()
    assert (kept(versions, LATEST), kept(versions, HISTORY), kept(versions, INDEX)) == (3, 0, 0)
    assert versions.get("k") == (499, 499)


def test_a_commit_removes_a_bounded_number_of_versions_and_later_ones_the_rest(versions: Store) -> None:
    versions.put_all((f"{number // 100}", number, number % 100) for number in range(5_000))
    versions.commit()
    versions.put("other", 1, 100_000)
    versions.commit()
    assert kept(versions, HISTORY) == 5_000 - 50 - 1_000
    for _ in range(5):
        versions.commit()
    assert (kept(versions, HISTORY), kept(versions, INDEX), kept(versions, LATEST)) == (0, 0, 51)


def test_a_rollback_brings_back_what_a_commit_was_about_to_remove(versions: Store) -> None:
    for number in range(50):
        versions.put("k", number, number)
    versions.commit()
    before = list(versions.store.all())
    versions.put("other", 1, 10_000)
    versions._before_commit()
    assert kept(versions, HISTORY) == 0
    if not versions.store.transactional:
        return  # What was removed is gone, and the task wipes such a store.
    versions.rollback()
    assert list(versions.store.all()) == before
    versions.put("other", 1, 10_000)
    versions.commit()
    assert (kept(versions, HISTORY), kept(versions, INDEX)) == (0, 0)


def test_another_retention_is_taken_and_dropped_history_does_not_come_back(
    store: KeyValueStore, reopen: Callable[[], KeyValueStore]
) -> None:
    versions = kind(100).over(store)
    for number in range(30):
        versions.put("k", number, 10 * number)
    versions.put("k", -1, 195)
    versions.delete("gone", 190)
    versions.commit()
    if not store.persistent:
        return
    longer = kind(1_000).over(reopen())
    assert longer.get("k", 195) == (-1, 195)
    assert longer.get("k", 190) == (19, 190)
    assert longer.get("k", 189) is None
    longer.put("k", 30, 300)
    assert not longer.put("k", -2, 5)
    assert longer.late_total == 1
    # The deletion that this one came before is gone.
    assert not longer.put("gone", 1, 100)
    assert longer.get("gone") is None
    assert [record.timestamp_ms for record in longer.get_versions("k", 0, 210)] == [190, 195, 200, 210]
    longer.commit()
    shorter = kind(20).over(reopen())
    assert shorter.get("k", 280) == (28, 280)
    assert shorter.get("k", 279) is None
    shorter.commit()
    # The one that came late is kept until the latest version of that moment has expired.
    assert kept(shorter, HISTORY) == 3
    longer = kind(1_000).over(reopen())
    assert longer.get("k", 280) == (28, 280)
    assert longer.get("k", 279) is None


def test_another_kind_or_serde_is_refused(store: KeyValueStore) -> None:
    kind().over(store).put("k", 1, 1)
    for other in (Versioned(BYTES, INT64, 100), Versioned(STR, BYTES, 100)):
        with pytest.raises(StoreIncompatibleError):
            other.over(store)


def test_keys_and_times_that_no_version_can_have_are_refused(versions: Store, case: Case) -> None:
    longest = versions.store.max_key_bytes
    for letter, length in (("k", 0), ("k", longest), ("k", longest - 16), ("\0", longest // 2)):
        if length < 1 << 20:
            with pytest.raises(ValueError, match=r"."):
                versions.put(letter * length, 1, 1)
    for time in (-1, 1 << 62):
        with pytest.raises(ValueError, match=r"."):
            versions.put("k", 1, time)
        with pytest.raises(ValueError, match=r"."):
            versions.delete("k", time)
    with pytest.raises(TypeError):
        versions.put("k", 1, 1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        versions.get("k", 1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"."):
        versions.get_versions("k", 0, 1 << 62)
    assert list(versions.store.all()) == []
    if longest < 1 << 20:
        key = "k" * (longest - 17)
        for time in (1, 2):
            versions.put(key, time, time)
        assert versions.get(key, 1) == (1, 1)


def test_an_iterator_of_versions_raises_once_it_or_its_store_is_closed(versions: Store) -> None:
    for number in range(5):
        versions.put("k", number, number)
    versions.put("one", 1, 1)
    for number in (1, 2):
        versions.put("two", number, number)
    closed = versions.get_versions("k")
    assert next(closed) == (0, 0, 1)
    closed.close()
    with pytest.raises(StoreClosedError):
        next(closed)
    scans = [versions.get_versions("k", reverse=reverse) for reverse in (False, True)]
    scans.append(versions.get_versions("one"))
    # Its last version is read already, and not returned yet.
    scans.append(versions.get_versions("two"))
    assert next(scans[-1]) == (1, 1, 2)
    view = versions.read_only(DIRTY)
    for scan in scans[:2]:
        next(scan)
    versions.close()
    for scan in scans:
        with pytest.raises(StoreClosedError):
            next(scan)
    for read in (lambda: view.get("k"), lambda: view.get("k", 1), lambda: view.get_versions("k")):
        with pytest.raises(StoreClosedError):
            read()


def test_a_view_only_reads(versions: Store) -> None:
    view = versions.read_only(COMMITTED)
    for name in ("put", "put_many", "delete", "delete_many"):
        with pytest.raises(ReadOnlyViewError):
            getattr(view, name)
