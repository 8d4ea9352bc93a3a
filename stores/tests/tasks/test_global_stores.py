"""Global stores: they follow all partitions of a topic, and functions read them. Source: KIP-99; KIP-892."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import pytest

from stores.changelog import MemoryChangelog, Record, SqliteChangelog
from stores.config import StoreConfig
from stores.errors import (
    ChangelogError,
    ChangelogTimeoutError,
    ConfigError,
    DeserializationError,
    OffsetOutOfRangeError,
    ReadOnlyViewError,
    StoreClosedError,
    StoreCorruptedError,
    StoreError,
    StoreLockedError,
    StoreTooNewError,
)
from stores.interface import PositionBound
from stores.records import (
    BYTES,
    INT64,
    STR,
    KeyValue,
    TimestampedKeyValue,
    TimestampedKeyValueWithHeaders,
    ValueAndTimestamp,
    Window,
)
from stores.settings import Upgrade
from stores.tasks import DeadLetterTopic, GlobalStore, GlobalStores, TaskContext, global_stores
from stores.tasks.stores import log_follower
from stores.tasks.stores.log_format import version_headers
from stores.tests.forked_call import call_until_killed
from stores.tests.tasks.global_topic import (
    PARTITIONS,
    PRICES,
    RECORDS_PER_COMMIT,
    TOPIC,
    check_partial_commit,
    contents,
    model,
    partition,
    say,
    stores_over,
)
from stores.tests.tasks.setup import count, feed, outputs, single
from stores.topic import Topic

BACKENDS = ["rocksdb-indexed-batch", "rocksdb-dual-store", "lmdb-native", "sqlite-indexed-batch"]


@pytest.fixture
def log() -> MemoryChangelog:
    return MemoryChangelog()


@pytest.mark.parametrize("backend", [*BACKENDS, "memory-indexed-batch"])
def test_a_global_store_has_the_last_records_of_all_partitions_and_follows(
    log: MemoryChangelog, tmp_path: Path, backend: str
) -> None:
    say(log, PRICES)
    with stores_over(log, tmp_path, backend) as stores:
        assert contents(stores) == model(PRICES)
        more = [(0, b"0", b"new"), (1, None, b"no key"), (2, b"2", None)]
        say(log, more)
        assert stores.lag() == len(more)
        assert stores.follow() == len(more)
        assert stores.lag() == stores.follow() == 0
        assert contents(stores) == model([*PRICES, *more])
        assert b"0-0" in contents(stores)
        assert b"2-2" not in contents(stores)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_next_opening_reads_the_rest_alone(log: MemoryChangelog, tmp_path: Path, backend: str) -> None:
    say(log, PRICES)
    with stores_over(log, tmp_path, backend) as stores:
        assert stores.restored == len(PRICES)
    say(log, [(2, b"9", b"9")])
    with stores_over(log, tmp_path, backend) as stores:
        assert stores.restored == 1
        assert contents(stores) == model([*PRICES, (2, b"9", b"9")])


def follow_in_small_commits(folder: Path, backend: str) -> None:
    with SqliteChangelog(folder / "log.sqlite") as log:
        log.create_topic(TOPIC, PARTITIONS)
        with stores_over(log, folder, backend) as stores:
            say(log, PRICES)
            while stores.follow(RECORDS_PER_COMMIT):
                pass


def follow_in_rocksdb(folder: Path) -> None:
    follow_in_small_commits(folder, "rocksdb-indexed-batch")


def follow_in_lmdb(folder: Path) -> None:
    follow_in_small_commits(folder, "lmdb-native")


def follow_in_sqlite(folder: Path) -> None:
    follow_in_small_commits(folder, "sqlite-indexed-batch")


@pytest.mark.parametrize(
    ("follow", "backend", "failpoint", "applied"),
    [
        (follow_in_rocksdb, "rocksdb-indexed-batch", "indexed_batch.before_write", {0, 6}),
        (follow_in_rocksdb, "rocksdb-indexed-batch", "indexed_batch.after_write", {0, 6, 12}),
        (follow_in_lmdb, "lmdb-native", "native.before_commit", {6}),
        (follow_in_lmdb, "lmdb-native", "native.after_commit", {12}),
        (follow_in_sqlite, "sqlite-indexed-batch", "indexed_batch.before_write", {6}),
        (follow_in_sqlite, "sqlite-indexed-batch", "indexed_batch.after_write", {12}),
    ],
)
def test_a_kill_leaves_the_data_and_the_offsets_of_one_commit_of_all_partitions(
    tmp_path: Path, follow: Any, backend: str, failpoint: str, applied: set[int]
) -> None:
    """RocksDB keeps nothing in its own log at the level CHANGELOG: it may be at an earlier commit."""
    assert call_until_killed(follow, tmp_path, failpoint, 2)
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        assert check_partial_commit(log, tmp_path, backend) in applied


def test_a_function_reads_it_and_cannot_write_it(log: MemoryChangelog, tmp_path: Path) -> None:
    def look_up(record: Record, context: TaskContext) -> None:
        prices = context.store("prices")
        with pytest.raises(ReadOnlyViewError):
            prices.put(b"0-1", b"free")
        assert record.key is not None
        context.store("s").put(record.key, b"seen")
        context.forward("output", record.key, prices.get(b"0-" + record.key))

    feed(log, [0, 1])
    say(log, PRICES)
    with (
        stores_over(log, tmp_path) as stores,
        single(tmp_path, log, look_up, stores={"s": StoreConfig()}, global_stores=stores) as task,
    ):
        task.run(1, commit=True)
        say(log, [(0, b"1", b"new")])
        stores.follow()
        task.run(commit=True)
    assert outputs(log) == [(b"0", model(PRICES)[b"0-0"]), (b"1", b"new")]


def test_a_function_gets_the_view_of_a_global_store_by_its_description(log: MemoryChangelog, tmp_path: Path) -> None:
    prices = KeyValue(key=BYTES, value=BYTES, name="prices")

    def look_up(record: Record, context: TaskContext) -> None:
        assert record.key is not None
        with pytest.raises(ConfigError):
            context.store(prices)  # A checker of types takes it for a store that can be written.
        with pytest.raises(ConfigError):
            context.global_store("s")
        context.forward("output", record.key, context.global_store(prices).get(b"0-" + record.key))

    feed(log, [0])
    say(log, PRICES)
    with (
        GlobalStores(tmp_path, log, {"prices": GlobalStore(TOPIC, prices)}) as stores,
        single(tmp_path, log, look_up, stores={"s": StoreConfig()}, global_stores=stores) as task,
    ):
        task.run(commit=True)
        with pytest.raises(ConfigError):
            task.store("prices")
    assert outputs(log) == [(b"0", model(PRICES)[b"0-0"])]


def test_values_are_typed_and_have_the_times_and_headers_of_their_records(log: MemoryChangelog, tmp_path: Path) -> None:
    log.create_topic(TOPIC)
    with log.producer() as producer:
        producer.send(partition(0), b"a", INT64.serialize(7), 41, (("trace", b"x"), ("none", None)))
        producer.flush()
    timed = TimestampedKeyValue(key=STR, value=INT64, name="timed")
    described = {
        "timed": GlobalStore(TOPIC, timed),
        "headed": GlobalStore(TOPIC, TimestampedKeyValueWithHeaders(key=STR, value=INT64)),
        "plain": GlobalStore(TOPIC, KeyValue(key=STR, value=INT64)),
    }
    with GlobalStores(tmp_path, log, described) as stores:
        assert stores.view("timed").get("a") == stores.view(timed).get("a") == ValueAndTimestamp(7, 41)
        assert stores.view("headed").get("a") == (7, 41, (("trace", b"x"), ("none", None)))
        assert stores.view("plain").get("a") == 7
        assert stores.view("plain", PositionBound({partition(0): 0})).position() == {partition(0): 0}


def test_a_store_beyond_its_topic_is_wiped_and_read_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As after the topic was deleted and made again."""
    with MemoryChangelog() as first:
        say(first, PRICES)
        with stores_over(first, tmp_path):
            pass
    with MemoryChangelog() as second:
        say(second, [(0, b"1", b"other")])
        with stores_over(second, tmp_path) as stores:
            assert contents(stores) == {b"0-1": b"other"}
            assert "goes on at offset 4" in stores.wiped()["prices"]
    [line] = [record.getMessage() for record in caplog.records if "is wiped" in record.getMessage()]
    assert "goes on at offset 4 of prices-0" in line


def test_a_topic_truncated_beyond_the_store_is_read_whole_and_before_it_costs_nothing(
    log: MemoryChangelog, tmp_path: Path
) -> None:
    say(log, PRICES)
    with stores_over(log, tmp_path):
        pass
    log.truncate(partition(0), 4)
    with stores_over(log, tmp_path) as stores:
        assert stores.wiped() == {}
        assert contents(stores) == model(PRICES)
        say(log, [(0, b"1", b"lost"), (0, b"2", b"kept")])
        log.truncate(partition(0), 5)
        with pytest.raises(OffsetOutOfRangeError):
            stores.follow()
        assert contents(stores) == model(PRICES)
    with stores_over(log, tmp_path) as stores:
        assert "can be read from 5" in stores.wiped()["prices"]
        assert contents(stores) == {key: value for key, value in model(PRICES).items() if key[:1] != b"0"} | {
            b"0-2": b"kept"
        }


def test_data_without_an_offset_of_the_topic_is_not_trusted(log: MemoryChangelog, tmp_path: Path) -> None:
    say(log, PRICES)
    with stores_over(log, tmp_path):
        pass
    log.create_topic("others")
    others = {"prices": GlobalStore("others", StoreConfig())}
    with GlobalStores(tmp_path / "state", log, others) as stores:
        assert contents(stores) == {}
        assert "no offset of topic 'others'" in stores.wiped()["prices"]


@pytest.mark.parametrize("kind", [StoreCorruptedError, StoreTooNewError])
def test_a_damaged_store_and_one_of_a_later_release_are_wiped_and_read_whole(
    log: MemoryChangelog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[StoreError]
) -> None:
    say(log, PRICES)
    with stores_over(log, tmp_path):
        pass
    opening = StoreConfig.open
    errors = [kind("it can't be read")]

    def opened(config: StoreConfig, path: Path, *, name: str) -> Any:
        if errors:
            raise errors.pop()
        return opening(config, path, name=name)

    monkeypatch.setattr(StoreConfig, "open", opened)
    with stores_over(log, tmp_path) as stores:
        assert stores.wiped() == {"prices": "it can't be read"}
        assert stores.restored == len(PRICES)
        assert contents(stores) == model(PRICES)


def test_an_error_in_the_middle_keeps_the_store_at_its_last_commit(log: MemoryChangelog, tmp_path: Path) -> None:
    say(log, PRICES)
    with stores_over(log, tmp_path, "lmdb-indexed-batch") as stores:
        say(log, [(0, b"1", b"new"), (1, b"k" * 600, b"long")])
        for _ in range(2):
            with pytest.raises(ChangelogError, match="offset 4 of prices-1"):
                stores.follow()
            assert contents(stores) == model(PRICES)
        log.truncate(partition(1), 5)


def test_what_was_read_before_an_error_is_in_no_later_commit(log: MemoryChangelog, tmp_path: Path) -> None:
    say(log, [])
    with stores_over(log, tmp_path, "lmdb-indexed-batch") as stores:
        say(log, [(0, b"1", b"first"), (0, b"2", b"second"), (1, b"k" * 600, b"long")])
        with pytest.raises(ChangelogError):
            stores.follow()
        assert stores.follow(1) == 1
        assert contents(stores) == {b"0-1": b"first"}


def test_a_commit_has_few_records_if_they_are_large(
    log: MemoryChangelog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_follower, "PIECE_BYTES_MAX", 100)
    say(log, [])
    with stores_over(log, tmp_path) as stores:
        messages = [(number % 2, b"%d" % number, b"x" * 60) for number in range(8)]
        say(log, messages)
        assert [stores.follow() for _ in range(5)] == [2, 2, 2, 2, 0]
        assert contents(stores) == model(messages)
    with stores_over(log, tmp_path / "other") as stores:
        assert stores.restored == len(messages)


def test_a_partition_with_much_to_read_does_not_keep_the_others_waiting(log: MemoryChangelog, tmp_path: Path) -> None:
    say(log, [])
    with stores_over(log, tmp_path) as stores:
        say(log, [*((0, b"%d" % number, b"x") for number in range(100)), (1, b"a", b"y"), (2, b"b", b"z")])
        assert [stores.follow(10) for _ in range(2)] == [10, 10]
        assert {b"1-a", b"2-b"} <= contents(stores).keys()


def test_processes_that_share_a_state_directory_have_folders_of_their_own(
    log: MemoryChangelog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(global_stores, "PROCESSES_MAX", 2)
    say(log, PRICES)
    with stores_over(log, tmp_path) as first, stores_over(log, tmp_path) as second:
        assert contents(first) == contents(second) == model(PRICES)
        with pytest.raises(StoreLockedError, match="another state directory"):
            stores_over(log, tmp_path).open()
    assert sorted(each.name for each in (tmp_path / "state").iterdir()) == ["global", "global-2"]
    with stores_over(log, tmp_path) as stores:
        assert stores.restored == 0


def test_an_exception_of_the_progress_ends_the_opening(log: MemoryChangelog, tmp_path: Path) -> None:
    say(log, PRICES)
    left: list[int] = []

    def note(offsets: int) -> None:
        left.append(offsets)
        with pytest.raises(StoreClosedError):
            stores.view("prices")
        raise KeyboardInterrupt

    stores = stores_over(log, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        stores.open(note)
    assert left == [len(PRICES)]
    with pytest.raises(StoreClosedError):
        stores.view("prices")
    with stores:
        assert stores.restored == 0
        assert contents(stores) == model(PRICES)
    with pytest.raises(StoreClosedError):
        stores.follow()


@pytest.mark.parametrize(
    "refused",
    [
        lambda: GlobalStore(TOPIC, StoreConfig("rocksdb-direct")),
        lambda: GlobalStore(TOPIC, Window(key=STR, value=INT64, size_ms=10, retention_ms=100)),
        lambda: GlobalStore(TOPIC, TimestampedKeyValue(key=STR, value=INT64, ttl_ms=10)),
        lambda: GlobalStore(TOPIC, StoreConfig(upgrade=Upgrade(1, lambda record, version: []))),
        lambda: GlobalStore("a b"),
        lambda: GlobalStore(TOPIC, on_deserialization_error="ignore"),
        lambda: GlobalStore(TOPIC, on_deserialization_error=DeadLetterTopic(TOPIC)),
        lambda: GlobalStores(
            "state", MemoryChangelog(), {"a": GlobalStore(TOPIC, on_deserialization_error=DeadLetterTopic("dead"))}
        ),
        lambda: GlobalStores("state", MemoryChangelog(), {}, application_id="a/b"),
        lambda: GlobalStores("state", MemoryChangelog(), {"a/b": GlobalStore(TOPIC)}),
    ],
)
def test_a_description_that_cannot_be_kept_is_refused(refused: Any) -> None:
    with pytest.raises(ConfigError):
        refused()


@pytest.mark.parametrize(
    "refused",
    [
        lambda log: GlobalStore(TOPIC, cast("Any", 3)),
        lambda log: GlobalStore(TOPIC, on_deserialization_error=cast("Any", None)),
        lambda log: GlobalStores("state", log, cast("Any", [GlobalStore(TOPIC)])),
        lambda log: GlobalStores("state", log, cast("Any", {"a": TOPIC})),
        lambda log: GlobalStores("state", cast("Any", None), {}),
        lambda log: single(Path("state"), log, count, global_stores={"a": GlobalStore(TOPIC)}),
    ],
)
def test_another_type_is_refused(log: MemoryChangelog, refused: Any) -> None:
    with pytest.raises(TypeError):
        refused(log)


def test_a_missing_topic_and_a_name_taken_twice_are_refused(log: MemoryChangelog, tmp_path: Path) -> None:
    stores = stores_over(log, tmp_path)
    with pytest.raises(ChangelogError, match="'prices' of global store 'prices' does not exist"):
        stores.open()
    with pytest.raises(ConfigError, match="'prices' is the name of a global store"):
        single(tmp_path, log, count, stores={"prices": StoreConfig()}, global_stores=stores)
    feed(log, [])
    with pytest.raises(StoreClosedError):
        single(tmp_path, log, count, global_stores=stores).open()


@pytest.mark.parametrize(
    "records", [None, KeyValue(key=BYTES, value=BYTES), TimestampedKeyValue(key=BYTES, value=BYTES)]
)
def test_records_with_an_empty_key_are_left_out_with_a_warning(
    tmp_path: Path, log: MemoryChangelog, caplog: pytest.LogCaptureFixture, records: Any
) -> None:
    """Anyone may write them to the topic, and no store has such a key: they must not end the workers."""
    log.create_topic(TOPIC, PARTITIONS)
    with log.producer() as producer:
        for key, value in ((b"a", b"1"), (b"", b"2"), (b"", None), (b"b", b"3"), (b"", b"4")):
            producer.send(partition(1), key, value, 5)
        producer.flush()
    described = GlobalStore(TOPIC, StoreConfig("rocksdb-indexed-batch", records=records))
    with (
        caplog.at_level(logging.WARNING),
        GlobalStores(tmp_path / "state", log, {"prices": described}) as stores,
        stores.view("prices").all() as pairs,
    ):
        values = {key: getattr(value, "value", value) for key, value in pairs}
        assert stores.lag() == 0
    assert values == {b"a": b"1", b"b": b"3"}
    warnings = [record.getMessage() for record in caplog.records if "is empty" in record.getMessage()]
    assert len(warnings) == 1
    assert f"offset 1 of {TOPIC}-1" in warnings[0]


POISON = [(b"a", b"not eight bytes"), (b"\xff", INT64.serialize(2)), (b"\xff", None), (b"k" * 3000, INT64.serialize(3))]
"""A value and keys that no serde reads, and a key that is too long for LMDB alone."""


@pytest.mark.parametrize("kind", [KeyValue, TimestampedKeyValue])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_record_that_the_store_cannot_have_is_raised_or_left_out(
    tmp_path: Path, log: MemoryChangelog, caplog: pytest.LogCaptureFixture, backend: str, kind: Any
) -> None:
    def described(choice: str) -> dict[str, GlobalStore]:
        return {
            "prices": GlobalStore(
                TOPIC, StoreConfig(backend, records=kind(key=STR, value=INT64)), on_deserialization_error=choice
            )
        }

    def send(*pairs: tuple[bytes, bytes | None]) -> None:
        with log.producer() as producer:
            for key, value in pairs:
                producer.send(partition(1), key, value, 5)
            producer.flush()

    def values(stores: GlobalStores) -> dict[str, int]:
        with stores.view("prices").all() as pairs:
            return {key: getattr(value, "value", value) for key, value in pairs}

    too_long = POISON if backend.startswith("lmdb") else POISON[:-1]
    log.create_topic(TOPIC, PARTITIONS)
    send((b"a", INT64.serialize(1)))
    with GlobalStores(tmp_path, log, described("raise")) as stores:
        send(too_long[-1], (b"b", INT64.serialize(4)))
        kinds = ChangelogError if backend.startswith("lmdb") else DeserializationError
        with pytest.raises(kinds, match=f"offset 1 of {TOPIC}-1.*on_deserialization_error"):
            stores.follow()
        assert values(stores) == {"a": 1}
    with caplog.at_level(logging.WARNING), GlobalStores(tmp_path, log, described("skip")) as stores:
        send(*too_long, (b"c", INT64.serialize(5)))
        stores.follow()
        assert values(stores) == {"a": 1, "b": 4, "c": 5}
        [copy] = stores.opened()
        assert copy.metrics.skipped_total == 1 + len(too_long)
    [warning] = [record.getMessage() for record in caplog.records if "leaves out" in record.getMessage()]
    assert f"offset 1 of {TOPIC}-1" in warning
    with GlobalStores(tmp_path, log, described("raise")) as stores:
        assert (stores.restored, values(stores)["c"]) == (0, 5)


class _Broken:
    """A serde of text that reports an error of the library, as one does whose registry does not answer."""

    name, keeps_order, keeps_prefixes = "broken", False, False

    def serialize(self, value: str, /) -> bytes:
        return value.encode()

    def deserialize(self, data: bytes, /) -> str:
        raise ChangelogTimeoutError("the registry does not answer")


def test_an_error_of_the_library_in_a_serde_is_never_left_out(tmp_path: Path, log: MemoryChangelog) -> None:
    described = GlobalStore(Topic(TOPIC, key=STR, value=_Broken()), on_deserialization_error="skip")
    say(log, [])
    with GlobalStores(tmp_path, log, {"prices": described}) as stores:
        say(log, [(0, b"1", b"new")])
        with pytest.raises(ChangelogTimeoutError):
            stores.follow()
        assert stores.lag() == 1


@pytest.mark.parametrize("choice", ["raise", "skip"])
def test_the_changelog_of_an_upgraded_store_is_no_topic_of_a_global_store(
    tmp_path: Path, log: MemoryChangelog, choice: str
) -> None:
    log.create_topic(TOPIC)
    with log.producer() as producer:
        producer.send(partition(0), b"a", b"1", headers=version_headers(1))
        producer.flush()
    with pytest.raises(ChangelogError, match="Name another topic"):
        GlobalStores(tmp_path, log, {"prices": GlobalStore(TOPIC, on_deserialization_error=choice)}).open()
