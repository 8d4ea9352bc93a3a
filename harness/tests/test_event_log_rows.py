"""The first look at a user's event log, without Spark: a wrong column is answered at once, with the nearest one."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from harness.cli import main
from harness.workloads.event_log import EventLog, EventLogColumnError, EventLogFormatError
from harness.workloads.event_log_rows import bad_rows, check_columns


def write(path: Path, text: str) -> None:
    content = text.encode("utf-8-sig")
    if path.suffix == ".gz":
        content = gzip.compress(content)
    elif path.suffix == ".bz2":
        content = bz2.compress(content)
    path.write_bytes(content)


CSV = 'tailnum,when,"where, to"\na,1,c\n'
JSON = '{"tailnum":"a"}\n{"tailnum":"b","when":1}\n'


@pytest.mark.parametrize("name", ["e.csv", "e.csv.gz", "e.csv.bz2", "e.jsonl", "e.parquet"])
def test_a_wrong_column_is_answered_with_the_nearest(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith(".parquet"):
        pyarrow.parquet.write_table(pa.table({"tailnum": ["a"], "when": [1]}), path)
    else:
        write(path, CSV if ".csv" in name else JSON)
    check_columns(EventLog(str(path), "tailnum", "when"))
    for key, time, wrong in (("Tailnun", None, "key"), ("tailnum", "wen", "time")):
        with pytest.raises(EventLogColumnError) as refusal:
            check_columns(EventLog(str(path), key, time))
        assert f"for the {wrong}: its columns are tailnum, when" in str(refusal.value)
        assert f"did you mean {'tailnum' if time is None else 'when'!r}?" in str(refusal.value)


@pytest.mark.parametrize("name", ["e.csv", "e.csv.gz", "e.jsonl", "e.parquet"])
def test_a_column_without_any_time_is_refused_with_its_first_value(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "e.parquet":
        pyarrow.parquet.write_table(pa.table({"k": ["a", "b"], "w": ["", "noon"], "t": ["x", "15:04"]}), path)
    else:
        write(
            path, "k,w,t\na,,x\nb,noon,15:04\n" if ".csv" in name else '{"k":"a","w":"noon","t":"x"}\n{"t":"15:04"}\n'
        )
    check_columns(EventLog(str(path), "k", "t"))
    with pytest.raises(EventLogColumnError, match=r"'w' of .* holds no times, but noon"):
        check_columns(EventLog(str(path), "k", "w"))


def test_a_parquet_column_of_another_type_is_left_to_spark(tmp_path: Path) -> None:
    table = pa.table({"k": ["a"], "t": pa.array([0], pa.timestamp("us")), "f": [1.5]})
    pyarrow.parquet.write_table(table, tmp_path / "e.parquet")
    for time in ("t", "f"):
        check_columns(EventLog(str(tmp_path / "e.parquet"), "k", time))


def test_the_command_answers_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "e.csv", CSV)
    monkeypatch.setattr("stores.java.find_java", lambda: pytest.fail("it went on"))
    runs = tmp_path / "runs"
    arguments = ["bench", "--events", str(tmp_path / "e.csv"), "--key", "tailnumber", "--runs", str(runs)]
    assert main(arguments) == 2
    assert "did you mean 'tailnum'?" in capsys.readouterr().err
    assert not runs.exists()


def test_a_folder_with_two_formats_is_named_as_that(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", CSV)
    write(tmp_path / "b.jsonl", JSON)
    with pytest.raises(EventLogFormatError, match=r"several formats \(csv, json\)"):
        check_columns(EventLog(str(tmp_path), "tailnum"))


@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff\xfe", b"PAR1", bytes(range(256)) * 40], ids=["empty", "binary", "magic", "every byte"]
)
@pytest.mark.parametrize("name", ["e.csv.gz", "e.jsonl", "e.parquet"])
def test_a_file_that_cannot_be_read_is_left_to_spark_s_own_error(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    check_columns(EventLog(str(tmp_path / name), "tailnum"))


@pytest.mark.parametrize("name", ["e.csv.gz", "e.jsonl.gz"])
def test_a_damaged_compressed_file_is_left_to_spark_s_own_error(tmp_path: Path, name: str) -> None:
    whole = gzip.compress(b"tailnum\n" * 1_000)
    (tmp_path / name).write_bytes(whole[:12] + bytes(byte ^ 255 for byte in whole[12:]))
    check_columns(EventLog(str(tmp_path / name), "tailnum"))


def test_json_that_is_nested_too_deeply_is_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text('{"tailnum":"a"}\n\n' + "[" * 200_000 + '\n{"tailnum":"b"}\n{}\n')
    log = EventLog(str(path), "tailnum")
    check_columns(log)
    assert [(row.line, row.reason) for row in bad_rows(log)] == [
        (3, "it is not a JSON object"),
        (5, "it has no 'tailnum'"),
    ]


def test_a_bad_row_is_named_by_what_is_wrong_with_it(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_bytes(b"k,t\na,1\n,1\nb,soon\nb\xff,1\nc,2013-01-31T15:04:05Z\nd, 7 \n")
    assert [(row.line, row.reason) for row in bad_rows(EventLog(str(path), "k", "t"), {"soon"})] == [
        (3, "it has no 'k'"),
        (4, "its 't' is not a time"),
        (5, "its 'k' is not UTF-8"),
    ]
    assert [row.line for row in bad_rows(EventLog(str(path), "k"))] == [3, 5]


def test_a_bad_row_has_the_number_of_its_first_line(tmp_path: Path) -> None:
    write(tmp_path / "e.csv", 'k,v\na,"1\n2\n3"\n"b\n","x\ny",z\n\nc\nd,' + "w" * 100 + ",\n")
    found = [(row.line, row.reason) for row in bad_rows(EventLog(str(tmp_path / "e.csv"), "k"))]
    assert found == [
        (5, "it has 3 cells, and the header has 2"),
        (9, "it has 1 cells, and the header has 2"),
        (10, "it has 3 cells, and the header has 2"),
    ]
    last = list(bad_rows(EventLog(str(tmp_path / "e.csv"), "k")))[-1]
    assert len(last.excerpt) == 63
    assert str(last).startswith(f"{tmp_path / 'e.csv'}, line 10: ")
