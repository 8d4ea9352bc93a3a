"""Timers of a stateful query, without Spark: each fires once, by time, with the watermark that its batch has."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores.changelog.files import VersionLog
from stores.config import StoreConfig
from stores.errors import ConfigError, StoreCorruptedError, StoreIncompatibleError
from stores.files.folder import open_folder
from stores.registry import open_store
from stores.spark import sources, task, watermark
from stores.spark.context import TIMES, Context, Timers, encoded, set_stream_time, shown_timer, stream_time_ms
from stores.spark.local_state import LOGGED_MARKS, logged_marks
from stores.spark.plan import Plan, QueryBatch
from stores.spark.rows import Rows
from stores.spark.sources import WatermarkReader
from stores.spark.watermark import absolute, next_watermark_of, watermark_of
from stores.tests.spark.counting import COUNTS, OUTPUT, QUERY, close_all, compute, count, expected_rows, plan

WATERMARKS = (0, 100, 100, 250, 400)
STORES = {"counts": StoreConfig("rocksdb", records=COUNTS), TIMES: StoreConfig("rocksdb")}


def make_checkpoint(folder: Path, watermarks: tuple[int, ...] = WATERMARKS, query: str = QUERY) -> str:
    """Write the files that Spark writes before it runs batches with these watermarks."""
    (folder / "checkpoint" / "offsets").mkdir(parents=True, exist_ok=True)
    (folder / "checkpoint" / "metadata").write_text(json.dumps({"id": query}))
    for number, watermark_ms in enumerate(watermarks):
        metadata = json.dumps({"batchWatermarkMs": watermark_ms, "batchTimestampMs": 7, "conf": {}})
        (folder / "checkpoint" / "offsets" / str(number)).write_text(f'v1\n{metadata}\n{{"logOffset":{number}}}')
    return str(folder / "checkpoint")


def timed(folder: Path, process: Any, on_timer: Any, **changed: Any) -> Plan:
    settings = {"stores": STORES, "stores_id": "timed", "checkpoint": make_checkpoint(folder), "on_timer": on_timer}
    return plan(folder, process, **{**settings, **changed})


def registers(rows: Rows, context: Context) -> None:
    """Register the time that a row has after its key: ``N1@150``."""
    for row in rows:
        key, _, at = row.plane.partition("@")
        context.timers.register(key, int(at))


def fires(key: Any, time_ms: int, context: Context) -> Iterator[tuple[str, int]]:
    yield f"{key}@{time_ms}", context.watermark_ms


def test_a_timer_fires_once_when_the_watermark_has_reached_it_also_after_a_restart(tmp_path: Path) -> None:
    query_plan = timed(tmp_path, registers, fires)
    assert compute(query_plan, 0, ["c@250", "a@251", "b@100", "b@101", "b@100"]) == []
    close_all()
    shutil.rmtree(tmp_path / "local")
    assert compute(query_plan, 1, []) == [("b@100", 100)]
    assert compute(query_plan, 1, []) == [("b@100", 100)]
    assert compute(query_plan, 2, ["d@90"]) == [("d@90", 100)]
    close_all()
    assert compute(query_plan, 3, ["a@102"]) == [("b@101", 250), ("a@102", 250), ("c@250", 250)]
    assert compute(query_plan, 4, []) == [("a@251", 400)]


def test_a_timer_that_an_earlier_one_of_the_batch_deletes_does_not_fire(tmp_path: Path) -> None:
    def cancels(key: str, time_ms: int, context: Context) -> Iterator[tuple[str, int]]:
        context.timers.delete("b", 8)
        yield key, time_ms

    compute(timed(tmp_path, registers, cancels), 0, ["a@7", "b@8", "c@9"])
    assert compute(timed(tmp_path, registers, cancels), 1, []) == [("a", 7), ("c", 9)]
    assert compute(timed(tmp_path, registers, cancels), 2, []) == []


def test_a_due_timer_that_is_deleted_and_registered_again_fires_once(tmp_path: Path) -> None:
    def renews(key: str, time_ms: int, context: Context) -> Iterator[tuple[str, int]]:
        if key == "a":
            context.timers.delete("b", 8)
            context.timers.register("b", 8)
        yield key, time_ms

    compute(timed(tmp_path, registers, renews), 0, ["a@7", "b@8"])
    assert compute(timed(tmp_path, registers, renews), 1, []) == [("a", 7), ("b", 8)]
    assert compute(timed(tmp_path, registers, renews), 2, []) == []


def test_timers_of_a_batch_that_failed_fire_in_the_next_attempt(tmp_path: Path) -> None:
    def fails(key: Any, time_ms: int, context: Context) -> Iterator[Any]:
        yield key, 1
        context.store("counts").put("wrong", 77)
        raise ZeroDivisionError

    compute(timed(tmp_path, registers, fires), 0, ["a@7", "b@8"])
    with pytest.raises(ZeroDivisionError) as error:
        compute(timed(tmp_path, registers, fails), 1, ["c@9"])
    notes = " ".join(error.value.__notes__)
    assert "7 ms" in notes
    assert "'a'" in notes
    assert "c@9" not in notes
    assert compute(timed(tmp_path, registers, fires), 1, ["c@9"]) == [("a@7", 100), ("b@8", 100), ("c@9", 100)]


def test_a_timer_may_write_register_and_delete(tmp_path: Path) -> None:
    def again(key: Any, time_ms: int, context: Context) -> list[tuple[str, int]]:
        counts = context.store("counts")
        counts.put("fired", (counts.get("fired") or 0) + 1)
        context.timers.delete("b", 60)
        context.timers.register("again", 1)
        return [(key, counts.get("fired"))]

    query_plan = timed(tmp_path, registers, again)
    compute(query_plan, 0, ["a@50", "b@60", "b@300"])
    assert compute(query_plan, 1, []) == [("a", 1)]
    assert compute(query_plan, 2, []) == [("again", 2)]
    assert compute(query_plan, 3, []) == [("again", 3)]


def test_a_timer_may_give_out_a_record_batch(tmp_path: Path) -> None:
    def batch(key: Any, time_ms: int, context: Context) -> pa.RecordBatch:
        return pa.record_batch([pa.array([key, key]), pa.array([time_ms, 0])], schema=OUTPUT)

    query_plan = timed(tmp_path, registers, batch)
    compute(query_plan, 0, ["a@50"])
    assert compute(query_plan, 1, []) == [("a", 50), ("a", 0)]


def test_the_table_shows_the_key_and_the_time_of_a_timer_and_the_stream_time(tmp_path: Path) -> None:
    assert shown_timer(encoded(("é", b"\xff"), 7), b"") == ('["é", {"bytes": "ff"}]', "", 7)
    with StoreConfig("memory").open(tmp_path / "store") as store:
        set_stream_time(store, 9)
        assert [shown_timer(key, value) for key, value in store.all()] == [("stream time", "", 9)]


def test_a_deleted_timer_does_not_fire(tmp_path: Path) -> None:
    def process(rows: Rows, context: Context) -> None:
        for row in rows:
            context.timers.register(row.plane, 50)
            context.timers.register(row.plane, 60)
            context.timers.delete(row.plane, 50)
            context.timers.delete(row.plane, 70)

    query_plan = timed(tmp_path, process, fires)
    assert compute(query_plan, 0, ["a"]) == []
    assert compute(query_plan, 1, []) == [("a@60", 100)]


@pytest.mark.parametrize("key", ["é", 7, 1.5, True, None, b"\xff", ("a", 1, (b"x", None))])
def test_a_key_comes_back_as_it_was_given(tmp_path: Path, key: Any) -> None:
    seen: list[Any] = []

    def fires(key: Any, time_ms: int, context: Context) -> None:
        seen.append((key, time_ms))

    query_plan = timed(tmp_path, lambda rows, context: context.timers.register(key, 5), fires)
    compute(query_plan, 0, ["N1"])
    compute(query_plan, 1, ["N1"])
    assert seen[0] == (key, 5)
    assert type(seen[0][0]) is type(key)


@pytest.mark.parametrize(("key", "time_ms"), [([1], 5), ({}, 5), ("a", -1), ("a", 1.5), ("a", 1 << 62)])
def test_a_wrong_timer_is_refused(tmp_path: Path, key: Any, time_ms: Any) -> None:
    query_plan = timed(tmp_path, lambda rows, context: context.timers.register(key, time_ms), fires)
    with pytest.raises((TypeError, ValueError)):
        compute(query_plan, 0, ["N1"])


def test_a_batch_job_registers_timers_for_the_query_after_it(tmp_path: Path) -> None:
    seen: list[int] = []

    def process(rows: Rows, context: Context) -> None:
        seen.append(context.watermark_ms)
        registers(rows, context)

    job = timed(tmp_path, process, fires, version=0)
    assert list(task.run(job, QueryBatch(0, None, None), iter(()))) == []
    assert seen == [-1]
    assert compute(timed(tmp_path, registers, fires), 0, ["a@0", "b@1"]) == [("a@0", 0)]
    assert compute(timed(tmp_path, registers, fires), 1, []) == [("b@1", 100)]


def test_a_query_without_on_timer_or_checkpoint_says_so(tmp_path: Path) -> None:
    for wanted in ("timers", "watermark_ms"):
        with pytest.raises(ConfigError):
            compute(plan(tmp_path, lambda rows, context, of=wanted: getattr(context, of)), 0)


def test_the_watermark_comes_from_the_checkpoint_of_the_query_and_no_other(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path)
    for location in (checkpoint, f"file:{checkpoint}", f"file://{checkpoint}"):
        assert [watermark_of(location, number, QUERY) for number in range(5)] == list(WATERMARKS)
    with pytest.raises(StoreIncompatibleError):
        watermark_of(checkpoint, 0, "another")
    with pytest.raises(ConfigError):
        watermark_of(checkpoint, 5, QUERY)
    with pytest.raises(ConfigError):
        watermark_of(str(tmp_path), 0, QUERY)
    for content in ("", "v1", "v1\n[]\n", "v1\nno json\n", 'v1\n{"batchWatermarkMs": "7"}'):
        (tmp_path / "checkpoint/offsets/0").write_text(content)
        with pytest.raises(ConfigError):
            watermark_of(checkpoint, 0, QUERY)


def test_the_watermark_is_read_once_in_an_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function may compare the time of each row with it."""
    asked: list[int] = []

    def counted(checkpoint: str, batch: int, query: str) -> int:
        asked.append(batch)
        return watermark_of(checkpoint, batch, query)

    monkeypatch.setattr(task, "watermark_of", counted)
    query_plan = timed(tmp_path, lambda rows, context: [(row.plane, context.watermark_ms) for row in rows], fires)
    for number in (0, 1):
        assert compute(query_plan, number, ["a", "b"]) == [("a", WATERMARKS[number]), ("b", WATERMARKS[number])]
    assert asked == [0, 1]


def test_a_checkpoint_is_found_from_any_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_checkpoint(tmp_path)
    monkeypatch.chdir(tmp_path)
    found = absolute("checkpoint")
    monkeypatch.chdir("/")
    assert watermark_of(found, 1, QUERY) == 100
    for location in ("/data/c", "file:/data/c", "hdfs://host/c", "s3a://bucket/c"):
        assert absolute(location) == location


def test_a_checkpoint_on_s3_has_the_names_that_hadoop_gives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = make_checkpoint(tmp_path)
    asked: list[str] = []

    def opened(location: str, **given: Any) -> Any:
        asked.append(location)
        return open_folder(checkpoint, **given)

    monkeypatch.setattr(watermark, "open_folder", opened)
    for location in ("s3a://bucket/c", "s3n://bucket/c", "s3://bucket/c", "hdfs://host/c"):
        assert watermark_of(location, 1, QUERY) == 100
    assert asked == ["s3://bucket/c"] * 3 + ["hdfs://host/c"]


def counts_and_registers(rows: Rows, context: Context) -> Iterator[tuple[str, int]]:
    context.timers.register("N1", 150 + context.version)
    yield from count(rows, context)


def test_a_state_that_was_made_without_timers_has_none_and_takes_new_ones(tmp_path: Path) -> None:
    assert compute(plan(tmp_path), 0) == expected_rows(0)
    query_plan = timed(tmp_path, counts_and_registers, fires)
    assert compute(query_plan, 0) == expected_rows(0)
    for number in (1, 2):
        assert compute(query_plan, number) == expected_rows(number)
        close_all()
        shutil.rmtree(tmp_path / "local")
    assert compute(query_plan, 3) == [*expected_rows(3), ("N1@151", 250), ("N1@152", 250), ("N1@153", 250)]


def test_a_query_without_timers_does_not_build_on_a_state_with_timers(tmp_path: Path) -> None:
    """It would write snapshots without them. The driver refuses it, unless it looked before the timers came."""
    plain = plan(tmp_path)
    compute(plain, 0)
    compute(timed(tmp_path, counts_and_registers, fires), 1)
    with pytest.raises(StoreIncompatibleError):
        compute(plain, 2)
    assert VersionLog.open(tmp_path / "state").partition(0).listing().newest == 1
    assert compute(plain, 1) == expected_rows(1)


def commit(folder: Path, number: int, watermark_ms: int) -> None:
    """Write the file that Spark writes after a batch."""
    (folder / "checkpoint/commits").mkdir(exist_ok=True)
    (folder / f"checkpoint/commits/{number}").write_text(f'v1\n{{"nextBatchWatermarkMs":{watermark_ms}}}')


def test_the_source_of_batches_without_rows_has_the_watermark_of_the_next_batch_as_its_offset(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path)
    reader = WatermarkReader(checkpoint)
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset() == reader.initialOffset() == {"watermark_ms": 0}
    for number, (watermark_ms, expected) in enumerate([(0, 0), (70, 70), (70, 70), (90, 90)]):
        commit(tmp_path, number, watermark_ms)
        assert reader.latestOffset({"watermark_ms": 0}, None) == {"watermark_ms": expected}
    assert WatermarkReader(checkpoint).latestOffset({"watermark_ms": 95}, None) == {"watermark_ms": 95}
    assert list(reader.partitions({}, {})) == []
    (tmp_path / "checkpoint/commits/9").write_text("v1\n{}")
    commit(tmp_path, 10, 95)
    assert reader.latestOffset() == {"watermark_ms": 95}
    (tmp_path / "checkpoint/commits/10").write_text("v1\n{}")
    with pytest.raises(ConfigError):
        next_watermark_of(checkpoint)


def test_the_source_of_batches_without_rows_looks_at_the_checkpoint_from_time_to_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = WatermarkReader(make_checkpoint(tmp_path))
    commit(tmp_path, 0, 70)
    assert reader.latestOffset() == {"watermark_ms": 70}
    monkeypatch.setattr(reader, "_look_s", 1e9)
    commit(tmp_path, 1, 90)
    assert reader.latestOffset() == {"watermark_ms": 70}
    assert sources.LOOK_S > 0


@given(entry=st.binary(min_size=1, max_size=30), value=st.binary(max_size=12))
def test_an_entry_of_any_bytes_is_a_timer_or_an_error_that_names_it(entry: bytes, value: bytes) -> None:
    with open_store("memory", "unused") as store:
        store.put(entry, value)
        store.put(b"stream time", value)
        for read in (
            lambda: list(Timers(store).take_due((1 << 62) - 2)),
            lambda: shown_timer(entry, value),
            lambda: stream_time_ms(store),
        ):
            try:
                read()
            except StoreCorruptedError as error:
                assert TIMES in str(error)


@pytest.mark.parametrize("key", ['{"bytes": 5}', "{}", '{"bytes": "0"}', "[" * 20_000, '[{"a": 1}]', "\x00"])
def test_a_key_of_another_structure_is_no_timer(key: str) -> None:
    with open_store("memory", "unused") as store:
        store.put(bytes(8) + key.encode(), b"")
        with pytest.raises(StoreCorruptedError, match=TIMES):
            list(Timers(store).take_due(1))


@pytest.mark.parametrize("mark", [b"", b"\xff", b"5", b"{}", b"[1]", b"[" * 30_000])
def test_a_list_of_marks_that_can_t_be_read_is_named(mark: bytes) -> None:
    with open_store("memory", "unused") as store:
        store.restore([], {}, marks={LOGGED_MARKS: mark})
        with pytest.raises(StoreCorruptedError, match="remove the local copy"):
            logged_marks(store)
