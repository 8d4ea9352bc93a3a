"""``put_all`` as readers of uncommitted data see it: whole or not at all. Source: KAFKA-20933."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from stores import IsolationLevel, KeyValueStore, open_store
from stores.batch.memory import PAIR_MEMORY_BYTES
from stores.changelog import MemoryChangelog, Record
from stores.engines.engine import Writes
from stores.engines.rocksdb import RocksDBEngine
from stores.registry import backends
from stores.tasks import TaskContext
from stores.tests.tasks.setup import feed, single

KEYS = [b"%d" % number for number in range(5)]
READER_GETS_S = 0.02
"""The seconds to wait for a reader; one that is blocked answers afterwards."""


class Looked(bytes):
    """A value that lets a reader in whenever a store asks for its length."""

    look: Callable[[], None]

    def __len__(self) -> int:
        type(self).look()
        return super().__len__()


@pytest.fixture
def opened(path: Path, backend: str, room: str) -> Any:
    options = {"staging_buffer_bytes": 0 if room == "none" else 150 + 6 * PAIR_MEMORY_BYTES, "copy_part_bytes": 1}
    known = backends()[backend].load_strategy()
    limited = room != "enough" and "staging_buffer_bytes" in {**known.options, **known.persistent_options}
    if room != "enough" and (not limited or not backends()[backend].persistent):
        pytest.skip("it has no bound to spill at")
    with open_store(backend, path, options=options if limited else None) as store:
        yield store


@pytest.mark.parametrize("room", ["enough", "for some", "none"])
@pytest.mark.parametrize("backend", backends())
def test_a_reader_sees_a_list_whole_or_not_at_all(opened: KeyValueStore) -> None:
    """At any moment that a value is looked at, also where the list is spilled, or has others spilled before it."""
    store, reader = opened, opened.read_only(IsolationLevel.READ_UNCOMMITTED)
    futures: list[Future[Any]] = []

    with ThreadPoolExecutor(2) as pool:

        def look() -> None:
            futures.extend((pool.submit(lambda: [v for _, v in reader.all()]), pool.submit(reader.get_many, KEYS)))
            wait(futures[-2:], READER_GETS_S)

        store.put_all([(key, b"before") for key in KEYS])
        store.put(b"8", b"")
        store.put(b"9", b"")
        store.delete_range(b"8", b"9")
        Looked.look = staticmethod(look)
        store.put_all([(key, Looked(b"after" * 5)) for key in KEYS])
        Looked.look = staticmethod(lambda: None)
        assert futures
        lists = {tuple(future.result(timeout=600)) for future in futures}
    assert lists <= {(b"before",) * 5, (b"after" * 5,) * 5}
    assert [value for _, value in reader.all()] == [b"after" * 5] * 5


def test_a_store_without_transactions_writes_a_list_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store("rocksdb-direct", path) as store:
        writes: list[int] = []
        write = RocksDBEngine.write

        def seen(self: RocksDBEngine, layers: Sequence[Writes], *given: Any, **named: Any) -> None:
            writes.append(sum(len(layer.writes) for layer in layers))
            write(self, layers, *given, **named)

        monkeypatch.setattr(RocksDBEngine, "write", seen)
        store.put_all([(key, b"value") for key in KEYS])
        assert writes == [len(KEYS)]
        assert list(store.all()) == [(key, b"value") for key in KEYS]


def test_a_reader_sees_a_list_of_a_task_s_function_whole_or_not_at_all(tmp_path: Path) -> None:
    log = MemoryChangelog()
    futures: list[Future[Any]] = []

    def process(record: Record, context: TaskContext) -> None:
        def look() -> None:
            reader = task.store("s", IsolationLevel.READ_UNCOMMITTED)
            futures.append(pool.submit(reader.get_many, KEYS))
            wait(futures[-1:], READER_GETS_S)

        Looked.look = staticmethod(look)
        context.store("s").put_all([(key, Looked(b"after")) for key in KEYS])
        Looked.look = staticmethod(lambda: None)

    task = single(tmp_path, log, process)
    feed(log, [1])
    with ThreadPoolExecutor(1) as pool:
        task.open()
        task.run()
        assert {tuple(future.result(timeout=600)) for future in futures} <= {(None,) * 5, (b"after",) * 5}
        assert futures
        task.close()


@pytest.mark.parametrize("call", ["put_all", "put_many"])
@pytest.mark.parametrize(
    ("refused", "error"),
    [([(b"k", "text"), (b"k", b"v")], TypeError), ([(b"", b"v"), (b"k", b"v")], ValueError)],
)
def test_a_pair_is_refused_even_if_a_later_one_has_its_key(
    tmp_path: Path, call: str, refused: list[Any], error: type[Exception]
) -> None:
    with open_store("memory", tmp_path / "store") as store:
        with pytest.raises(error):
            getattr(store, call)(refused)
        assert store.get(b"k") is None


@pytest.mark.parametrize("call", ["put_all", "put_many"])
def test_a_value_that_the_backend_can_t_take_is_refused_with_its_list(tmp_path: Path, call: str) -> None:
    store: Any
    with open_store("memory", tmp_path / "store") as store:
        store.access.max_value_bytes = 3
        for pairs in ([(b"a", b"v"), (b"b", b"long")], {b"a": b"v", b"b": b"long"}):
            with pytest.raises(ValueError, match=r"4 bytes: .* takes up to 3"):
                getattr(store, call)(pairs if call == "put_many" else list(dict(pairs).items()))
            assert (store.get(b"a"), store.get(b"b")) == (None, None)
        getattr(store, call)([(b"a", b"val"), (b"b", None)])
        assert store.get(b"a") == b"val"
