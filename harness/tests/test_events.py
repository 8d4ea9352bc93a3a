"""Event logs read by Spark: partitions, order, formats, and every kind of bad input."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from harness.spark.events import event_log, flights, generated
from harness.spark.session import session
from harness.tests.shared_jvm import SharedJvm
from harness.workloads.event_log import (
    EventLog,
    EventLogColumnError,
    EventLogEmptyError,
    EventLogError,
    EventLogFormatError,
    EventLogNotFoundError,
    EventLogValueError,
)
from harness.workloads.new_york_flights import departures
from harness.workloads.tasks import Count
from stores.errors import ConfigError

ROWS = [
    ("a", "30", "first"),
    ("b", "20", 'a "quoted", word'),
    ("a", "10", "ünïcode"),
    ("c", "10", None),
    ("a", "30", "last"),
]


@pytest.fixture(scope="module")
def spark(joined_jvm: SharedJvm) -> Iterator[SparkSession]:
    with session("events", settings={"spark.sql.shuffle.partitions": "2"}) as spark:
        yield spark


def write_csv(path: Path) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([("user", "at", "word"), *ROWS])
    content = text.getvalue().encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_json_lines(path: Path) -> None:
    path.write_text("".join(json.dumps({"user": user, "at": int(at), "word": word}) + "\n" for user, at, word in ROWS))


def write_parquet(path: Path) -> None:
    users, times, words = zip(*ROWS, strict=True)
    pyarrow.parquet.write_table(pa.table({"user": users, "at": times, "word": words}), path)


def by_partition(events: DataFrame) -> dict[int, list[tuple[int, bytes, bytes, int, int]]]:
    """The rows of each Spark partition in its own order, as (partition, key, value, timestamp_ms, seq)."""
    rows = events.select(F.spark_partition_id().alias("spark_partition"), "*").collect()
    parts: defaultdict[int, list[tuple[int, bytes, bytes, int, int]]] = defaultdict(list)
    for spark_partition, partition, key, value, timestamp_ms, seq in rows:
        parts[spark_partition].append((partition, bytes(key), bytes(value), timestamp_ms, seq))
    return dict(parts)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("events.csv", write_csv),
        ("events.csv.gz", write_csv),
        ("events.jsonl", write_json_lines),
        ("events.parquet", write_parquet),
    ],
)
def test_each_format_gives_the_same_events_in_order_of_time_and_file(
    spark: SparkSession, tmp_path: Path, name: str, write: Callable[[Path], None]
) -> None:
    write(tmp_path / name)
    parts = by_partition(event_log(spark, EventLog(str(tmp_path / name), "user", "at"), 1))
    events = [(key, timestamp_ms, seq, json.loads(value)["word"]) for _, key, value, timestamp_ms, seq in parts[0]]
    assert sorted(events) == sorted(
        [
            (b"a", 10, 0, "ünïcode"),
            (b"c", 10, 1, None),
            (b"b", 20, 2, 'a "quoted", word'),
            (b"a", 30, 3, "first"),
            (b"a", 30, 4, "last"),
        ]
    )
    assert [seq for _, _, seq, _ in events] == [0, 1, 2, 3, 4]


def test_without_a_time_column_events_keep_the_order_of_the_file(spark: SparkSession, tmp_path: Path) -> None:
    write_csv(tmp_path / "events.csv")
    parts = by_partition(event_log(spark, EventLog(str(tmp_path / "events.csv"), "user"), 1))
    assert [row[1] for row in parts[0]] == [user.encode() for user, _, _ in ROWS]
    assert {row[3] for row in parts[0]} == {-1}


def test_a_folder_is_read_in_the_order_of_its_files_names(spark: SparkSession, tmp_path: Path) -> None:
    for number, length in enumerate((1, 500, 3)):
        lines = [f"k,{number}-{line}" for line in range(length)]
        (tmp_path / f"part-{number}.csv").write_text("\n".join(["user,word", *lines]) + "\n")
    parts = by_partition(event_log(spark, EventLog(str(tmp_path), "user"), 3))
    (rows,) = parts.values()
    words = [json.loads(value)["word"] for _, _, value, _, _ in rows]
    assert words == ["0-0", *(f"1-{line}" for line in range(500)), "2-0", "2-1", "2-2"]


@pytest.mark.parametrize("time", ["2013-01-31T15:04:05Z", "2013-01-31 15:04:05+00:00", "1359644645000"])
def test_a_time_is_milliseconds_since_the_epoch_or_a_date_and_time(
    spark: SparkSession, tmp_path: Path, time: str
) -> None:
    (tmp_path / "events.csv").write_text(f"user,at\na,{time}\n")
    events = event_log(spark, EventLog(str(tmp_path / "events.csv"), "user", "at"), 1)
    assert [row.timestamp_ms for row in events.collect()] == [1_359_644_645_000]


def test_each_spark_partition_holds_one_partition_in_order_and_all_of_each_key(spark: SparkSession) -> None:
    parts = by_partition(flights(spark, 3, 2_000))
    assert sorted(parts) == [0, 1, 2]
    table = departures().slice(0, 2_000)
    assert sorted(row[4] for rows in parts.values() for row in rows) == table["seq"].to_pylist()
    homes: defaultdict[bytes, set[int]] = defaultdict(set)
    for number, rows in parts.items():
        assert {row[0] for row in rows} == {number}
        assert [row[3:] for row in rows] == sorted(row[3:] for row in rows)
        for row in rows:
            homes[row[1]].add(number)
            assert row[2] == table["value"][row[4]].as_py()
    assert {len(numbers) for numbers in homes.values()} == {1}


def test_partitions_without_events_are_there_and_empty(spark: SparkSession) -> None:
    events = generated(spark, Count(keys=1), seed=1, count=5, partitions=4)
    assert events.rdd.getNumPartitions() == 4
    assert list(by_partition(events)) == [events.head().partition]  # type: ignore[union-attr]


def test_generated_events_are_the_same_however_many_partitions_there_are(spark: SparkSession) -> None:
    count, seed = Count(keys=5_000, value_bytes=24), 7
    made = [event for rows in by_partition(generated(spark, count, seed, 60_000, 2)).values() for event in rows]
    made.sort(key=lambda row: row[4])
    assert [row[1:4] for row in made] == list(count.events(seed, 60_000))
    assert [row[4] for row in made] == list(range(60_000))


@pytest.mark.parametrize(
    ("name", "content", "key", "time", "error"),
    [
        ("missing.csv", None, "user", None, EventLogNotFoundError),
        ("events.xlsx", b"user\na\n", "user", None, EventLogFormatError),
        ("events.csv", b"", "user", None, EventLogEmptyError),
        ("events.jsonl", b"", "user", None, EventLogEmptyError),
        ("events.csv", b"user,word\n", "user", None, EventLogEmptyError),
        ("events.parquet", b"", "user", None, EventLogEmptyError),
        ("events.parquet", b"user,word\na,b\n", "user", None, EventLogFormatError),
        ("events.csv", b"user,word\na,b\nc\n", "user", None, EventLogFormatError),
        ("events.csv", b"user,word\na,b,c\n", "user", None, EventLogFormatError),
        ("events.jsonl", b'{"user":"a"}\n{"user":\n', "user", None, EventLogFormatError),
        ("events.jsonl", b"hello\n", "user", None, EventLogFormatError),
        ("events.csv", b"user,word\na,b\n", "usr", None, EventLogColumnError),
        ("events.csv", b"user,word\na,b\n", "user", "at", EventLogColumnError),
        ("events.jsonl", b'{"user":{"id":1}}\n', "user", None, EventLogColumnError),
        ("events.csv", b'user,word\na,b\n,c\n"",d\n', "user", None, EventLogValueError),
        ("events.jsonl", b'{"user":"a"}\n{"user":null}\n{"word":"b"}\n', "user", None, EventLogValueError),
        ("events.csv", b"user,at\na,10\nb,soon\n", "user", "at", EventLogValueError),
        ("events.csv", b"user\nJos\xe9\n", "user", None, EventLogValueError),
        ("events.csv", bytes(range(256)) * 40, "user", None, EventLogColumnError),
        ("_events.csv", b"user,word\na,b\n", "user", None, EventLogFormatError),
    ],
)
def test_a_log_that_cannot_be_used_is_refused_before_anything_runs(
    spark: SparkSession,
    tmp_path: Path,
    name: str,
    content: bytes | None,
    key: str,
    time: str | None,
    error: type[EventLogError],
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError) as refusal:
        event_log(spark, EventLog(str(tmp_path / name), key, time), 2)
    assert type(refusal.value) is error
    assert str(refusal.value).isprintable()
    assert name in str(refusal.value)


MULTI_LINE = 'user,at,word\na,30,"first\nand second ""line"""\nb,20,plain\na,10,last\n'


def test_a_line_break_within_quotes_belongs_to_its_cell(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text(MULTI_LINE)
    parts = by_partition(event_log(spark, EventLog(str(tmp_path / "events.csv"), "user"), 1))
    assert [row[1] for row in parts[0]] == [b"a", b"b", b"a"]
    assert [json.loads(row[2])["word"] for row in parts[0]] == ['first\nand second "line"', "plain", "last"]


BAD_CSV = 'user,at,word\na,1,"x\ny"\n,2,no key\nb,soon,no time\nc,3\nd,4,too,many\ne,5,good\n'
BAD_JSON = '{"user":"a","at":1}\n{"at":2}\n{"user":"b","at":"soon"}\nhello\n\n{"user":"e","at":5}\n'


@pytest.mark.parametrize(
    ("name", "content", "said", "left_out"),
    [
        ("events.csv", BAD_CSV, ["line 4: it has no 'user'", "line 5: its 'at' is not a time", "line 6: it has 2"], 4),
        ("events.jsonl", BAD_JSON, ["line 2: it has no 'user'", "line 3: its 'at'", "line 4: it is not a JSON"], 3),
    ],
)
def test_bad_rows_are_named_by_their_lines_and_left_out_on_request(
    spark: SparkSession, tmp_path: Path, name: str, content: str, said: list[str], left_out: int
) -> None:
    (tmp_path / name).write_text(content)
    log = EventLog(str(tmp_path / name), "user", "at")
    with pytest.raises(EventLogError) as refusal:
        event_log(spark, log, 1)
    assert all(sentence in str(refusal.value) for sentence in said), refusal.value
    assert "--drop-bad" in str(refusal.value)
    causes, _, lines = str(refusal.value).partition("--drop-bad")
    assert causes.count("1 have no") == 2
    assert all(cause in causes for cause in ("have no 'user'", "have no readable time in 'at'", "can't be read as"))
    assert not any(sentence in causes for sentence in said)
    assert all(sentence in lines for sentence in said)
    told: list[str] = []
    kept = event_log(spark, replace(log, drop_bad=True), 1, told.append)
    assert sorted((bytes(row.key), row.timestamp_ms) for row in kept.collect()) == [(b"a", 1), (b"e", 5)]
    (sentence,) = told
    assert f"left out {left_out} of {left_out + 2} rows" in sentence
    assert all(each in sentence for each in said)


def test_a_log_of_bad_rows_only_is_refused_even_if_bad_rows_are_left_out(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("user,word\n,b\n,c\n")
    with pytest.raises(EventLogEmptyError, match="none of the 2 rows"):
        event_log(spark, EventLog(str(tmp_path / "events.csv"), "user", drop_bad=True), 1)


def test_a_missing_key_column_is_answered_with_the_columns_and_the_nearest(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("tailnum,when,where to\na,b,c\n")
    with pytest.raises(EventLogColumnError) as refusal:
        event_log(spark, EventLog(str(tmp_path / "events.csv"), "Tailnun"), 2)
    assert "tailnum, when, where to" in str(refusal.value)
    assert "'tailnum'?" in str(refusal.value)


def test_rows_without_a_key_are_counted_in_the_refusal(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("user,word\na,b\n,c\n,d\n")
    with pytest.raises(EventLogValueError) as refusal:
        event_log(spark, EventLog(str(tmp_path / "events.csv"), "user"), 2)
    assert "2 of 3" in str(refusal.value)


@pytest.mark.parametrize(
    "files",
    [
        {"a.csv": b"user,word\na,b\n", "b.csv": b"word,user\nb,a\n"},
        {"a.csv": b"user,word\na,b\n", "b.jsonl": b'{"user":"a"}\n'},
        {"a.parquet": b"user", "b.parquet": b"word"},
    ],
)
def test_a_folder_whose_files_do_not_go_together_is_refused(
    spark: SparkSession, tmp_path: Path, files: dict[str, bytes]
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(EventLogFormatError):
        event_log(spark, EventLog(str(tmp_path), "user"), 2)


def test_an_empty_folder_is_refused_as_empty(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(EventLogEmptyError):
        event_log(spark, EventLog(str(tmp_path), "user"), 2)


def test_parquet_files_of_a_folder_keep_the_columns_that_only_some_have(spark: SparkSession, tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pa.table({"user": ["a"], "old": [1]}), tmp_path / "a.parquet")
    pyarrow.parquet.write_table(pa.table({"user": ["b"], "new": [2]}), tmp_path / "b.parquet")
    rows = event_log(spark, EventLog(str(tmp_path), "user"), 1).collect()
    assert {bytes(row.key): json.loads(row.value) for row in rows} == {
        b"a": {"user": "a", "old": 1, "new": None},
        b"b": {"user": "b", "old": None, "new": 2},
    }


@pytest.mark.parametrize("name", ["events [1]*{2}?.csv", "back\\slash 100%20.csv"])
def test_signs_of_patterns_in_a_files_name_stand_for_themselves(spark: SparkSession, tmp_path: Path, name: str) -> None:
    (tmp_path / "events 1.csv").write_text("user\nwrong\n")
    (tmp_path / name).write_text("user\nright\n")
    (row,) = event_log(spark, EventLog(str(tmp_path / name), "user"), 1).collect()
    assert bytes(row.key) == b"right"


def test_columns_with_odd_names_are_read_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("a.b,c `d`\n1,2\n")
    (row,) = event_log(spark, EventLog(str(tmp_path / "events.csv"), "a.b", "c `d`"), 1).collect()
    assert (bytes(row.key), bytes(row.value), row.timestamp_ms) == (b"1", b'{"a.b":"1","c `d`":"2"}', 2)


def test_fewer_than_one_partition_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError):
        generated(spark, Count(), seed=1, count=1, partitions=0)
