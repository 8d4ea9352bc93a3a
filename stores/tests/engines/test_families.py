"""Both data families of an engine are read at one moment, and written in one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stores import IsolationLevel, StoreIncompatibleError, open_store
from stores.engines.families import NEW, OLD, families_in_use
from stores.errors import StoreCorruptedError
from stores.strategies.store import Store

ENGINES = ("rocksdb-indexed-batch", "lmdb-indexed-batch", "sqlite-indexed-batch", "memory-indexed-batch")


class Watched:
    """A data family of RocksDB that lets ``write`` run once, after its first lookup."""

    def __init__(self, family: Any, write: Any) -> None:
        self._family, self._write, self._looked = family, write, False

    def get(self, keys: Any) -> Any:
        found = self._family.get(keys)
        if not self._looked:
            self._looked = True
            self._write()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._family, name)


def test_a_record_that_moves_between_the_lookups_of_two_families_is_seen_in_one(path: Path) -> None:
    with open_store("rocksdb-indexed-batch", path) as store:
        store.put(b"key", b"old")
        store.commit()
        store.timestamps.split({})

        def move() -> None:
            store.put(NEW + b"key", b"new")
            store.put(OLD + b"key", None)
            store.commit()

        assert isinstance(store, Store)
        engine: Any = store.staging.engine.engine  # type: ignore[attr-defined]
        engine._stored[0] = Watched(engine._stored[0], move)
        view = store.read_only(IsolationLevel.READ_COMMITTED)
        assert view.get_many([OLD + b"key", NEW + b"key"]) in ([b"old", None], [None, b"new"])
        engine._stored[0] = engine._stored[0]._family


@pytest.mark.parametrize("backend", ENGINES)
def test_a_range_delete_over_both_families_and_one_within_each(path: Path, backend: str) -> None:
    keys = [b"a", b"b", b"c", b"\xff"]
    with open_store(backend, path) as store:
        store.put_all([(key, b"old") for key in keys])
        store.commit()
        store.timestamps.split({})
        everything = {tag + key: b"old" if tag == OLD else b"new" for tag in (OLD, NEW) for key in keys}
        for start, end in [
            (OLD + b"b", NEW + b"b"), (None, None), (OLD, NEW), (NEW, None), (None, OLD + b"b"), (OLD + b"c", None),
            (NEW + b"a", NEW + b"a"), (b"\x02", None), (None, OLD), (b"", b""), (NEW + b"b", OLD + b"b"),
        ]:  # fmt: skip
            for spare in (False, True):
                store.put_all(everything.items())
                if spare:
                    store.commit()
                within = {
                    key: value for key, value in everything.items()
                    if (start is None or start <= key) and (end is None or key <= end)
                }  # fmt: skip
                assert dict(store.range(start, end)) == within
                assert list(store.reverse_range(start, end)) == sorted(within.items(), reverse=True)
                store.delete_range(start, end)
                store.commit()
                assert dict(store.all()) == {key: value for key, value in everything.items() if key not in within}
        store.verify()


@pytest.mark.parametrize("backend", ENGINES)
def test_a_key_of_neither_format_is_not_written(path: Path, backend: str) -> None:
    with open_store(backend, path) as store:
        store.put(b"key", b"old")
        store.commit()
        store.timestamps.split({})
        assert store.get(b"key") is None
        store.put(b"key", b"value")
        with pytest.raises(StoreIncompatibleError):
            store.commit()
        store.rollback()
        assert dict(store.all()) == {OLD + b"key": b"old"}


@pytest.mark.parametrize("backend", ENGINES)
def test_what_was_written_last_before_a_split_is_found_where_it_lies_then(path: Path, backend: str) -> None:
    with open_store(backend, path) as store:
        store.put(OLD + b"key", b"value")
        store.commit()
        assert store.get(OLD + b"key") == b"value"
        store.timestamps.split({})
        assert store.get(OLD + b"key") is None
        assert store.get(OLD + OLD + b"key") == b"value"


def test_an_entry_that_names_no_families_is_damage() -> None:
    assert families_in_use(None) == (0,)
    with pytest.raises(StoreCorruptedError):
        families_in_use(b"all")
