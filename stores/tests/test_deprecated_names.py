"""Names that were replaced still work for a version, with a warning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from stores.batch.merge import chunks_of
from stores.engines.engine import Writes
from stores.engines.memory import MemoryEngine
from stores.interface import Durability, IsolationLevel, TopicPartition
from stores.ordered.ranges import ScanRange
from stores.strategies import indexed_batch
from stores.strategies import store as store_module
from stores.strategies.iterator import Pin
from stores.strategies.staging import Traits
from stores.strategies.store_opening import open_over
from stores.tasks import freshest_first, most_caught_up_first


def test_the_former_name_of_most_caught_up_first_works_with_a_warning() -> None:
    sums = {"a": 1, "b": 2}
    with pytest.warns(DeprecationWarning):
        assert freshest_first(sums) == most_caught_up_first(sums) == ["b", "a"]


def test_an_engine_may_have_methods_under_their_former_names(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning) as warned:

        class Former(MemoryEngine):
            @classmethod
            def rehearse(cls, path: Path, options: Mapping[str, object]) -> None:
                path.write_text("probed")

            def settle_families(self) -> None:
                """Do nothing."""

    assert len(warned) == 2
    Former.probe_open(tmp_path / "file", {})
    assert (tmp_path / "file").read_text() == "probed"
    assert Former.select_families is Former.settle_families


def test_an_engine_with_the_present_names_warns_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    class Present(MemoryEngine):
        def select_families(self) -> None:
            """Do nothing."""

    assert Present.select_families is not MemoryEngine.select_families
    assert not recwarn.list


def test_the_former_name_of_the_indexed_batch_works_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning):
        assert indexed_batch.IndexedBatchStore is indexed_batch.IndexedBatchStaging


def test_a_strategy_may_subclass_the_former_base_class(path: Path) -> None:
    """It writes through to the engine, and notes the offsets of each commit."""
    partition, committed = TopicPartition("changelog", 0), []
    looked_up: list[bytes] = []
    ended: list[str] = []
    base: Any = store_module.EngineStore
    with pytest.warns(DeprecationWarning):

        class Former(base):  # type: ignore[misc]
            strategy = "former"
            transactional = False

            def _stage(self, key: bytes, value: bytes | None) -> None:
                self._engine.put(key, value)

            def _stage_all(self, writes: dict[bytes, bytes | None]) -> None:
                self._check_open()
                self._engine.write([Writes((), writes)], {})

            def _stage_range(self, start: bytes | None, end: bytes | None) -> None:
                self._engine.write([Writes([(start, end)], {})], {})

            def _commit(self, meta: Mapping[bytes, bytes | None], offsets: Mapping[TopicPartition, int | None]) -> None:
                committed.append(dict(offsets))
                self._engine.write([], meta)

            def _rollback(self) -> None:
                """Do nothing."""

            def _is_clean(self) -> bool:
                return True

            def _get(self, level: IsolationLevel, key: bytes) -> bytes | None:
                looked_up.append(key)
                value: bytes | None = self._engine.get(key)
                return value

            def _get_many(self, level: IsolationLevel, keys: Sequence[bytes]) -> list[bytes | None]:
                return [self._get(level, key) for key in keys]

            def _scans(self, level: IsolationLevel, ranges: Sequence[ScanRange], *, reverse: bool) -> list[Any]:
                return [(chunks_of(scan), Pin(scan.close)) for scan in self._engine.scans(ranges, reverse=reverse)]

            def _read_engines(self) -> Mapping[str, int]:
                return {"former": 1}

            def _close_staging(self) -> None:
                ended.append("closed")

    traits = Traits("store", "memory-former", Durability.CHANGELOG)
    with open_over(Former, MemoryEngine, path, {}, traits) as store:
        store.put(b"a", b"1")
        store.put_all([(b"b", b"2"), (b"c", b"3")])
        store.delete_range(b"c", None)
        store.commit({partition: 4})
        assert store.committed_offset(partition) == 4
        store.commit({partition: None})
        assert store.committed_offset(partition) is None
        assert committed == [{partition: 4}, {partition: None}]
        assert (store.get(b"a"), store.read_only().get(b"b")) == (b"1", b"2")
        assert list(store.reverse_all()) == [(b"b", b"2"), (b"a", b"1")]
        assert (store.transactional, store.manages_offsets) == (False, True)
        assert looked_up == [b"a", b"b"]
        # As a split of the data does.
        store.staging.use(store.staging.engine)
        assert (store.get(b"a"), looked_up) == (b"1", [b"a", b"b", b"a"])
        assert store.engine_metrics() == {"former": 1}
        assert ended == []
    assert ended == ["closed"]
