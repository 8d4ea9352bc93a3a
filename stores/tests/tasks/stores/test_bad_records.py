"""Records of a changelog that no store can have end in an error with their place, whatever their bytes are.

Kafka Streams writes some of them: it takes empty keys, and its windows have other keys than ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores.changelog import MemoryChangelog, Record
from stores.changelog.interface import Headers
from stores.changelog.kafka.reader import EPOCH, read_headers
from stores.errors import ChangelogError, StoreError, StoreIncompatibleError
from stores.records import Window
from stores.records.record_kind import RecordKind
from stores.records.segments import SEQUENCE_BOUND, escaped, packed
from stores.registry import open_store
from stores.settings import Upgrade
from stores.tasks.stores.log_follower import restore
from stores.tasks.stores.log_format import REPLACED, VERSION_HEADER, Conversion
from stores.tasks.stores.replay_bound import ReplayBound
from stores.tests.tasks.setup import INDEXED, MEMORY
from stores.tests.tasks.typed import KINDS, STORE, typed_task

LMDB = "lmdb-indexed-batch"
EVERY: dict[str, RecordKind | None] = {"bytes": None, **KINDS}
TIMES = st.sampled_from((-1, 0, 5_000, 2**62 - 1, 2**62, 2**63 - 1)) | st.integers(-1, 2**63 - 1)
NUMBERS = st.sampled_from((0, 1, 5_000, 2**62 - 1, 2**62, 2**63, 2**64 - 2, 2**64 - 1)) | st.integers(0, 2**64 - 1)
KEYS = st.binary(max_size=40) | st.builds(
    lambda key, numbers, cut: (escaped(key) + b"".join(map(packed, numbers)))[cut:],
    st.binary(max_size=4),
    st.lists(NUMBERS, max_size=3),
    st.integers(0, 3),
)
"""Any bytes, and bytes with the structure of the keys of windows and sessions, some of them cut."""
HEADERS = st.lists(
    st.tuples(
        st.sampled_from((VERSION_HEADER, REPLACED[0], EPOCH[0], "other")),
        st.none() | st.binary(max_size=3) | st.sampled_from((b"", b"0", b"1", b"-1", b"9" * 5_000, b"\xb2")),
    ),
    max_size=3,
).map(tuple)


def place(offset: int) -> str:
    return f"record {offset} of the changelog {STORE.topic}-{STORE.partition}"


def restored(records: Iterable[tuple[bytes, bytes | None, int, Headers]], kind: RecordKind | None, backend: str) -> int:
    """Restore a store from a changelog with these records, and read all of it; return the number of its pairs."""
    with MemoryChangelog() as log, TemporaryDirectory() as folder:
        log.create_topic(STORE.topic)
        with log.producer() as producer:
            for key, value, time_ms, headers in records:
                producer.send(STORE, key, value, time_ms, headers)
            producer.flush()
        with open_store(backend, Path(folder) / "store", name="s") as store:
            if kind is not None:
                kind.prepare(store)
            restore(store, log, STORE, None, {}, None, ReplayBound(-1), Conversion(store, kind, None))
            if kind is not None:
                kind.over(store)._before_commit()
            with store.all() as pairs:
                return len(list(pairs))


@pytest.mark.parametrize("kind", EVERY)
@given(
    records=st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=9), TIMES, HEADERS | st.just(())), max_size=8),
)
def test_any_record_is_restored_or_ends_in_an_error_of_ours(kind: str, records: Any) -> None:
    try:
        restored(records, EVERY[kind], MEMORY)
    except (ChangelogError, StoreIncompatibleError) as error:
        assert "record " in str(error)


@pytest.mark.parametrize("backend", [MEMORY, INDEXED, LMDB])
@pytest.mark.parametrize("kind", ["bytes", "key-value", "timestamped"])
def test_an_empty_key_is_refused_with_its_place_and_its_tombstone_changes_nothing(kind: str, backend: str) -> None:
    records: list[Any] = [(b"k", b"v" * 8, 1, ()), (b"", None, 2, ()), (b"", b"v" * 8, 3, ())]
    assert restored(records[:2], EVERY[kind], backend) == 1
    with pytest.raises(ChangelogError, match=place(2)):
        restored(records, EVERY[kind], backend)


@pytest.mark.parametrize("kind", ["bytes", "key-value", "timestamped"])
def test_a_key_that_the_backend_does_not_take_is_refused_with_its_place(kind: str) -> None:
    with TemporaryDirectory() as folder, open_store(LMDB, Path(folder) / "store", name="s") as store:
        most = store.max_key_bytes
    long = b"k" * (most + 1)
    assert restored([(long[1:], b"v" * 8, 1, ()), (long, None, 1, ())], EVERY[kind], LMDB) == 1
    with pytest.raises(ChangelogError, match=place(1)):
        restored([(b"k", b"v" * 8, 1, ()), (long, b"v" * 8, 1, ())], EVERY[kind], LMDB)


def test_a_number_of_a_duplicate_without_a_next_one_is_refused_with_its_place() -> None:
    kind = KINDS["duplicates"]
    assert isinstance(kind, Window)
    keys = [kind.keys.logged(b"k", 5_000, number) for number in (0, SEQUENCE_BOUND - 1, SEQUENCE_BOUND)]
    assert restored([(key, b"v" * 8, 1, ()) for key in keys[:2]], kind, MEMORY) == 2
    with pytest.raises(ChangelogError, match=place(2)):
        restored([(key, b"v" * 8, 1, ()) for key in keys], kind, MEMORY)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "window" in kind or "session" in kind])
@pytest.mark.parametrize("key", [b"", b"k", bytes(7), b"k\0" + b"\xff" * 16, b"\0\xff" + bytes(15), b"plain key"])
def test_a_key_of_no_window_is_refused_with_its_place(kind: str, key: bytes) -> None:
    with pytest.raises(ChangelogError, match=place(0)):
        restored([(key, b"v" * 8, 1, ())], KINDS[kind], MEMORY)


@pytest.mark.parametrize("content", [b"", b"x", b"-1", b"9" * 5_000])
def test_a_format_that_is_no_number_is_refused_with_its_place(content: bytes) -> None:
    with pytest.raises(ChangelogError, match=place(0)):
        restored([(b"k", b"v", 1, ((VERSION_HEADER, content),))], None, MEMORY)


def test_a_store_that_is_upgraded_lazily_gets_no_empty_key(tmp_path: Path) -> None:
    with open_store(INDEXED, tmp_path / "store", name="s") as store, MemoryChangelog() as log:
        store.put(b"k", b"v" * 8)
        store.commit()
        log.create_topic(STORE.topic)
        with log.producer() as producer:
            producer.send(STORE, b"", b"v" * 8, 1)
            producer.flush()
        KINDS["timestamped"].prepare(store)
        assert store.timestamps.is_split
        conversion = Conversion(store, KINDS["timestamped"], None)
        with pytest.raises(ChangelogError, match=place(0)):
            restore(store, log, STORE, None, {}, None, ReplayBound(-1), conversion)


def test_a_task_ends_with_the_place_and_opens_once_the_record_is_gone(tmp_path: Path) -> None:
    with MemoryChangelog() as log:
        for topic in ("input", "output", STORE.topic):
            log.create_topic(topic)
        with log.producer() as producer:
            producer.send(STORE, b"", bytes(8), 1)
            producer.flush()
        with pytest.raises(ChangelogError, match=place(0)), closing(typed_task(tmp_path, log, "key-value")) as task:
            task.open()
        with log.producer() as producer:
            producer.send(STORE, b"", None, 1)
            producer.flush()
        log.compact(STORE)
        with closing(typed_task(tmp_path, log, "key-value")) as task:
            assert len(task.open()) == 1


def test_an_upgrade_may_give_a_record_another_key(tmp_path: Path) -> None:
    def renamed(record: Record, version: int) -> Iterator[tuple[bytes, bytes | None]]:
        yield b"x" + (record.key or b""), record.value

    with MemoryChangelog() as log, open_store(MEMORY, tmp_path / "store", name="s") as store:
        log.create_topic(STORE.topic)
        with log.producer() as producer:
            producer.send(STORE, b"", b"v", 1)
            producer.flush()
        conversion = Conversion(store, None, Upgrade(1, renamed))
        restore(store, log, STORE, None, {}, None, ReplayBound(-1), conversion)
        assert store.get(b"x") == b"v"


# Stored records that somebody else wrote


@pytest.mark.parametrize("kind", KINDS)
@given(pairs=st.dictionaries(KEYS.filter(bool), st.binary(max_size=20), max_size=8), seed=st.integers(0, 99))
def test_any_stored_bytes_are_read_or_end_in_an_error_of_ours(kind: str, pairs: Any, seed: int) -> None:
    described = KINDS[kind]
    random = Random(seed)
    with TemporaryDirectory() as folder, open_store(MEMORY, Path(folder) / "store", name="s") as store:
        described.prepare(store)
        for key, value in pairs.items():
            store.put(packed(random.randrange(60)) + key if random.random() < 0.7 else key, value)
        store.set_mark("stream_time", packed(5_500))
        store.commit()
        typed: Any = described.over(store)
        for read in (
            lambda: list(typed.fetch_range(None, None) if "session" in kind else typed.all()),
            lambda: list(typed.fetch(b"k")) if "session" in kind else None,
            typed.commit,
        ):
            with suppress(StoreError):
                read()


@given(
    time_ms=TIMES,
    headers=st.lists(st.tuples(st.text(max_size=4) | st.just(EPOCH[0]), st.none() | st.binary(max_size=3)), min_size=1),
)
def test_any_headers_of_a_record_in_kafka_are_read(time_ms: int, headers: Any) -> None:
    read_ms, read = read_headers(time_ms, headers)
    assert read_ms == (0 if headers[-1] == EPOCH else time_ms)
    assert [name for name, _ in read] == [name for name, _ in headers[: len(read)]]
    assert all(content is None or isinstance(content, bytes) for _, content in read)


def test_the_marker_of_the_time_0_is_no_header_of_the_record() -> None:
    assert read_headers(7, [("a", None), EPOCH]) == (0, (("a", None),))
    assert read_headers(7, [EPOCH, ("a", b"1")]) == (7, (EPOCH, ("a", b"1")))
