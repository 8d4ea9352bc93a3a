"""A capture of an engine's files shows the commit at which it began, whatever is committed until it is complete."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from stores.engines.engine import Engine
from stores.engines.families import split_or_whole
from stores.engines.lmdb.file import check_structure
from stores.errors import ConfigError, StoreUnavailableError
from stores.interface import Durability, TopicPartition
from stores.meta_entries import OFFSET, decode_offsets
from stores.registry import backend_named, backends, open_store
from stores.strategies.store import Store

LOG = TopicPartition("log", 0)
CAPTURED = sorted(
    name
    for name, backend in backends().items()
    if backend.persistent and backend.transactional and backend.load_engine().captures
)
FIRST = ("lmdb-native", "rocksdb-indexed-batch", "sqlite-indexed-batch")
"""One of each engine, of whose files captures are: ``make test-long`` has the others."""


def over(names: Iterable[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "backend", [pytest.param(name, marks=[] if name in FIRST else pytest.mark.long) for name in names]
    )


over_each_backend = over(CAPTURED)
SEED = 29


def opened(path: Path, backend: str, level: Durability | None = None, **options: object) -> Store:
    levels = backend_named(backend).durabilities
    store = open_store(backend, path, durability=level or min(levels), options=options)
    assert isinstance(store, Store)
    return store


def copied(folder: Path, engine: type[Engine]) -> tuple[dict[bytes, bytes], int | None]:
    """Return the pairs and the offset in captured files, after a check of all of them."""
    with closing(engine.open(folder, Durability.DISK, engine.options)) as files:
        files.verify()
        whole = split_or_whole(files)
        scan = whole.scan()
        pairs: dict[bytes, bytes] = {}
        while chunk := scan.fetch():
            pairs.update(chunk)
        scan.close()
        return pairs, decode_offsets(OFFSET, files.meta()).get(LOG)


def change(store: Store, random: Random, count: int = 400) -> None:
    """Stage writes and deletes of random keys."""
    for _ in range(count):
        key = b"%06d" % random.randrange(3_000)
        store.put(key, None if random.random() < 0.2 else random.randbytes(random.randrange(300)))


def contents(store: Store) -> dict[bytes, bytes]:
    with store.all() as pairs:
        return dict(pairs)


@over_each_backend
@pytest.mark.parametrize("level", list(Durability))
def test_a_capture_shows_its_commit_however_many_come_before_it_is_complete(
    tmp_path: Path, backend: str, level: Durability
) -> None:
    random = Random(SEED)
    with opened(tmp_path / "s", backend, level) as store:
        engine = store.staging.engine
        for number in range(5):
            change(store, random)
            store.commit({LOG: number})
        expected = contents(store)
        change(store, random, 30)  # An open transaction is not in it.
        capture = engine.capture(tmp_path / "captured")
        for number in range(5, 40):
            change(store, random)
            store.commit({LOG: number})
        change(store, random)
        thread = threading.Thread(target=capture.complete)
        thread.start()
        thread.join()
        capture.end()
        assert copied(tmp_path / "captured", engine.kind) == (expected, 4)
        store.commit({LOG: 40})
        later = contents(store)
    with opened(tmp_path / "s", backend, level) as store:
        assert contents(store) == later
        assert store.committed_offset(LOG) == 40


@over_each_backend
def test_commits_go_on_while_a_capture_is_completed(tmp_path: Path, backend: str) -> None:
    random = Random(SEED)
    with opened(tmp_path / "s", backend) as store:
        engine = store.staging.engine
        number = 0
        for round_number in range(6):
            change(store, random, 2_000)
            store.commit({LOG: (number := number + 1)})
            expected, at = contents(store), number
            folder = tmp_path / f"captured {round_number}"
            capture = engine.capture(folder)
            thread = threading.Thread(target=capture.complete)
            thread.start()
            while thread.is_alive():
                change(store, random, 200)
                store.commit({LOG: (number := number + 1)})
            assert copied(folder, engine.kind) == (expected, at)


@over(name for name in CAPTURED if not name.startswith("rocksdb"))
def test_closing_the_store_ends_a_capture_and_leaves_the_store_whole(tmp_path: Path, backend: str) -> None:
    store = opened(tmp_path / "s", backend)
    store.put(b"key", b"value")
    store.commit({LOG: 1})
    capture = store.staging.engine.capture(tmp_path / "captured")
    store.close()
    with pytest.raises(StoreUnavailableError):
        capture.complete()
    capture.end()
    with opened(tmp_path / "s", backend) as store:
        assert contents(store) == {b"key": b"value"}


def test_a_map_that_grows_ends_a_capture(tmp_path: Path) -> None:
    """LMDB resizes its map only while no transaction is open."""
    with opened(tmp_path / "s", "lmdb", map_size_bytes=1 << 20) as store:
        store.put(b"key", b"value")
        store.commit({LOG: 1})
        capture = store.staging.engine.capture(tmp_path / "captured")
        store.put_all([(b"%06d" % number, bytes(1_000)) for number in range(3_000)])
        store.commit({LOG: 2})
        with pytest.raises(StoreUnavailableError):
            capture.complete()
        assert len(contents(store)) == 3_001


def test_most_of_lmdb_s_file_is_the_same_in_the_next_capture(tmp_path: Path) -> None:
    """A compacting copy would give all pages after the first change another number."""
    folders = [tmp_path / "first", tmp_path / "second"]
    with opened(tmp_path / "s", "lmdb") as store:
        store.put_all([(b"%06d" % number, bytes(1_000)) for number in range(20_000)])
        store.commit({LOG: 1})
        for folder in folders:
            store.put(b"%06d" % 100, b"changed")
            store.commit()
            store.staging.engine.capture(folder).complete()
    contents_of = [(folder / "data.mdb").read_bytes() for folder in folders]
    page_bytes = 4096
    same = sum(
        contents_of[0][at : at + page_bytes] == contents_of[1][at : at + page_bytes]
        for at in range(0, len(contents_of[0]), page_bytes)
    )
    assert same > 0.99 * len(contents_of[0]) / page_bytes
    for folder in folders:
        check_structure(folder)


def test_an_engine_without_files_has_no_captures(tmp_path: Path) -> None:
    with open_store("memory", tmp_path) as store, pytest.raises(ConfigError):
        assert isinstance(store, Store)
        store.staging.engine.capture(tmp_path / "captured")
