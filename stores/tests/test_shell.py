"""The shell tool reads, checks, copies and compacts what lies on disk, and changes nothing that it need not change."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stores import Durability, TopicPartition, __version__, open_store
from stores.command import main
from stores.engines.rocksdb.engine import RocksDBEngine
from stores.records import (
    FLOAT64,
    INT64,
    JSON,
    STR,
    Session,
    TimestampedKeyValue,
    ValueAndTimestamp,
    Versioned,
    Window,
    Windowed,
)
from stores.records.record_kind import RECORDS
from stores.registry import backends
from stores.shell.decoding import Decoder

LOG = TopicPartition("log", 3)
ON_DISK = [name for name, backend in backends().items() if backend.persistent]
WITH_OFFSETS = [name for name in ON_DISK if backends()[name].manages_offsets]
PAIRS = [(b"a\x00", b"1"), (b"b\\", b"\xff"), (b"c", b"")]
WRITER = """
import sys
from stores import TopicPartition, open_store
store = open_store(sys.argv[1], sys.argv[2], durability="PROCESS")
store.put_all([(b"%05d" % number, b"x" * 100) for number in range(2000)])
store.commit({TopicPartition("log", 3): 7})
store.put(b"staged", b"never committed")
print("ready", flush=True)
sys.stdin.read()
"""


def filled(path: Path, backend: str) -> Path:
    with open_store(backend, path) as store:
        store.put_all(PAIRS)
        store.advance_position(TopicPartition("input", 0), 5)
        store.commit({LOG: 41} if store.manages_offsets else {})
    return path


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    """The time and content of every file."""
    return {str(file): (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.rglob("*") if file.is_file()}


def lines(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, object]]:
    """Run a command that must succeed, and return its lines of JSON."""
    assert main([*map(str, arguments), "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("backend", ON_DISK)
def test_reading_changes_no_file(path: Path, backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = state(filled(path, backend))
    [facts] = lines(capsys, "inspect", path)
    assert (facts["backend"], facts["state"]) == (backend, "closed")
    assert lines(capsys, "dump", path) == [{"key_hex": key.hex(), "value_hex": value.hex()} for key, value in PAIRS]
    assert lines(capsys, "verify", path) == [{"path": str(path), "sound": True, "problem": None}]
    offsets = lines(capsys, "offsets", path)
    if backend in WITH_OFFSETS:
        assert offsets == [
            {"kind": "offset", "topic": "log", "partition": 3, "offset": 41},
            {"kind": "position", "topic": "input", "partition": 0, "offset": 5},
        ]
    if backend.startswith("sqlite"):
        lines(capsys, "inspect", path, "--tables")
    assert state(path) == before


def test_a_dump_shows_every_byte_and_stops_at_a_limit(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(path, "sqlite")
    assert main(["dump", str(path), "--limit", "2"]) == 0
    assert capsys.readouterr().out == "a\\x00\t1\nb\\\\\t\\xff\n"


def test_marks_are_shown_as_text_numbers_or_escaped_bytes(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    marks = {"text": "ä {}".encode(), "number": b"\0\0\0\0\0\0\0\n", "bytes": b"\n\x1b[31m", "none": b""}
    with open_store("sqlite", path) as store:
        store.restore([], {}, marks=marks)
    [facts] = lines(capsys, "inspect", path)
    assert facts["marks"] == {"text": "ä {}", "number": 10, "bytes": "\\x0a\\x1b[31m", "none": ""}
    assert main(["inspect", str(path)]) == 0
    assert "mark number              10\n" in capsys.readouterr().out


def test_a_dump_decodes_what_a_typed_store_describes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store("lmdb", tmp_path / "times") as store:
        times = TimestampedKeyValue(key=STR, value=JSON).over(store)
        times.put("a", {"n": 1}, 99)
        times.commit()
        assert times.get("a") == ValueAndTimestamp({"n": 1}, 99)
    decoding = ("--key", "str", "--value", "json")
    assert lines(capsys, "dump", tmp_path / "times", *decoding) == [{"key": "a", "value": {"n": 1}, "timestamp_ms": 99}]
    with open_store("lmdb", tmp_path / "windows") as store:
        windows = Window(key=STR, value=INT64, size_ms=10, retention_ms=1000).over(store)
        windows.put("a\0b", 7, 20)
        windows.commit()
    decoding = ("--key", "str", "--value", "int64")
    assert lines(capsys, "dump", tmp_path / "windows", *decoding) == [
        {"key": "a\0b", "value": 7, "window_start_ms": 20}
    ]
    with open_store("lmdb", tmp_path / "versions") as store:
        versions = Versioned(key=STR, value=INT64, history_retention_ms=1000).over(store)
        versions.put_many(["a\0b"] * 3, [7, None, 9], [20, 40, 30])
        versions.commit()
    assert lines(capsys, "dump", tmp_path / "versions") == [
        {"key": "a\0b", "value": None, "timestamp_ms": 40},
        {"key": "a\0b", "value": 7, "timestamp_ms": 20},
        {"key": "a\0b", "value": 9, "timestamp_ms": 30},
    ]
    with open_store("lmdb", tmp_path / "sessions") as store:
        sessions = Session(key=STR, value=INT64, retention_ms=1000).over(store)
        sessions.put(Windowed("a", 20, 30), 7)
        sessions.commit()
    [session] = lines(capsys, "dump", tmp_path / "sessions", *decoding)
    assert session == {"key": "a", "value": 7, "session_start_ms": 20, "session_end_ms": 30}


def test_records_of_both_formats_of_a_store_in_its_upgrade_are_decoded() -> None:
    decoder = Decoder("times", {RECORDS: b'{"kind": "timestamped"}'}, "str", "str")
    assert decoder.record(b"k", b"old", plain=True) == {"key": "k", "value": "old"}
    assert decoder.record(b"k", bytes(7) + b"\x05new") == {"key": "k", "value": "new", "timestamp_ms": 5}


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_names_and_texts_that_the_output_cannot_express_are_printed_all_the_same(
    tmp_path: Path, encoding: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = filled(tmp_path / "\xe9", "lmdb")
    with open_store("lmdb", path) as store:
        store.delete_range(None, None)
        store.put(b"\xc3\xa9", b'"\\ud800 \xe2\x82\xac"')
        store.commit()

    def run(*arguments: str) -> bytes:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", io.TextIOWrapper(printed := io.BytesIO(), encoding))
            assert main([arguments[0], str(path), *arguments[1:]]) == 0
            assert capsys.readouterr().err == ""
            return printed.getvalue()

    def run_apart(*arguments: str) -> bytes:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": encoding}
        command = [sys.executable, "-m", "stores", arguments[0], str(path), *arguments[1:]]
        process = subprocess.run(command, env=environment, capture_output=True, check=False)
        assert (process.returncode, process.stderr) == (0, b"")
        return process.stdout

    decoding = ("--key", "str", "--value", "json")
    assert json.loads(run_apart("dump", *decoding, "--json")) == {"key": "\xe9", "value": "\ud800 \u20ac"}
    assert json.loads(run("dump", *decoding, "--json")) == {"key": "\xe9", "value": "\ud800 \u20ac"}
    assert run("dump", *decoding).endswith(b"\n")
    assert json.loads(run("inspect", "--json"))["path"] == str(path)
    assert b"backend" in run("inspect")
    assert run("verify").endswith(b"is sound.\n")


def test_json_has_no_infinity(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store("lmdb", path) as store:
        store.put_all([(FLOAT64.serialize(number), b"") for number in (float("-inf"), 1.5, float("inf"))])
        store.commit()
    assert [line["key"] for line in lines(capsys, "dump", path, "--key", "float64")] == ["-inf", 1.5, "inf"]


@pytest.mark.parametrize("limit", ["-1", "1.5", "x", "9" * 5_000])
def test_a_limit_that_is_no_number_of_records_is_refused(
    path: Path, limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(path, "lmdb")
    with pytest.raises(SystemExit) as error:
        main(["dump", str(path), "--limit", limit])
    assert error.value.code == 2
    assert main(["dump", str(path), "--limit", str(1 << 63)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(PAIRS)


def test_bytes_of_another_type_than_asked_are_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(path, "lmdb")
    assert main(["dump", str(path), "--value", "json"]) == 2
    assert "b\\\\" in capsys.readouterr().err


@pytest.fixture
def writer(path: Path, request: pytest.FixtureRequest) -> Iterator[int]:
    """A process that has a store open, with a staged write: its number."""
    command = [sys.executable, "-c", WRITER, request.param, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.kill()


@pytest.mark.parametrize("writer", WITH_OFFSETS, indirect=True)
def test_a_store_in_use_is_backed_up_at_its_last_commit(
    writer: int, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [facts] = lines(capsys, "inspect", path)
    assert facts["state"] == "open in a process"
    assert len(lines(capsys, "dump", path)) == 2000
    copy = tmp_path / "copy"
    [answer] = lines(capsys, "backup", path, copy)
    assert answer["offsets"] == [{"topic": "log", "partition": 3, "offset": 7}]
    with open_store(str(facts["backend"]), copy) as store:
        assert len(list(store.all())) == 2000
        assert store.get(b"staged") is None
        assert store.committed_offset(LOG) == 7
    for command in (["verify", str(path)], ["compact", str(path)]):
        assert main(command) == 2
        assert f"process {writer}" in capsys.readouterr().err


@pytest.mark.parametrize("writer", WITH_OFFSETS, indirect=True)
def test_a_store_of_a_killed_process_is_shown_as_not_closed(
    writer: int, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.kill(writer, signal.SIGKILL)
    # The system releases the lock when the process has ended.
    os.waitid(os.P_PID, writer, os.WEXITED | os.WNOWAIT)
    before = state(path)
    [facts] = lines(capsys, "inspect", path)
    assert facts["state"] == "not closed cleanly"
    # SQLite's shared memory is no data: a reader makes it anew.
    names = {name for name in before.keys() | state(path).keys() if before.get(name) != state(path).get(name)}
    assert {name for name in names if not name.endswith("-shm")} == set()


@pytest.mark.parametrize("writer", ["rocksdb-indexed-batch"], indirect=True)
def test_a_store_in_use_whose_engine_reads_no_live_files_names_its_process(
    writer: int, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RocksDBEngine, "reads_live", False)
    copy = tmp_path / "copy"
    for command in (["inspect"], ["dump"], ["offsets"], ["verify"], ["compact"], ["backup", str(copy)]):
        assert main([command[0], str(path), *command[1:]]) == 2
        assert f"process {writer}" in capsys.readouterr().err
    assert not copy.exists()


@pytest.mark.parametrize("backend", ON_DISK)
def test_a_closed_store_is_backed_up_whole(path: Path, tmp_path: Path, backend: str) -> None:
    before = state(filled(path, backend))
    assert main(["backup", str(path), str(tmp_path / "deep" / "copy")]) == 0
    assert state(path) == before
    with open_store(backend, tmp_path / "deep" / "copy", durability=Durability.CHANGELOG) as store:
        assert list(store.all()) == PAIRS
        if store.manages_offsets:
            assert store.committed_offset(LOG) == 41


def test_the_backup_of_a_read_only_store_can_be_written(path: Path, tmp_path: Path) -> None:
    filled(path, "sqlite")
    for file in (*path.rglob("*"), path):
        file.chmod(0o555 if file.is_dir() else 0o444)
    assert main(["inspect", str(path)]) == 0
    assert main(["backup", str(path), str(tmp_path / "copy")]) == 0
    assert all(file.stat().st_mode & 0o200 for file in (tmp_path / "copy").rglob("*"))
    for file in (path, *path.rglob("*")):
        file.chmod(0o755)


@pytest.mark.parametrize("place", ["full", "file", "store/inside"])
def test_a_backup_goes_only_to_an_empty_folder_of_its_own(tmp_path: Path, place: str) -> None:
    filled(tmp_path / "store", "sqlite")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "file").touch()
    before = state(tmp_path)
    assert main(["backup", str(tmp_path / "store"), str(tmp_path / place)]) == 2
    assert state(tmp_path) == before


@pytest.mark.parametrize("backend", ON_DISK)
def test_compacting_keeps_the_contents_and_frees_space(path: Path, backend: str) -> None:
    with open_store(backend, path) as store:
        store.put_all([(b"%05d" % number, b"x" * 1000) for number in range(5000)])
        store.commit()
    with open_store(backend, path) as store:
        for number in range(4900):
            store.put(b"%05d" % number, None)
        store.commit()
    size = sum(file.stat().st_size for file in (path / "data").iterdir() if file.name != "lock.mdb")
    assert main(["compact", str(path)]) == 0
    assert sum(file.stat().st_size for file in (path / "data").iterdir() if file.name != "lock.mdb") < size / 2
    with open_store(backend, path) as store:
        store.verify()
        assert [key for key, _ in store.all()] == [b"%05d" % number for number in range(4900, 5000)]
        store.put(b"more", b"1")
        store.commit()


@pytest.mark.parametrize(("backend", "file"), [("lmdb", "data.mdb"), ("sqlite", "store.db"), ("rocksdb", "CURRENT")])
def test_damage_is_status_1_for_verify_and_2_for_the_others(
    path: Path, tmp_path: Path, backend: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = filled(path, backend) / "data" / file
    place.write_bytes(b"\x07" * len(place.read_bytes()))
    assert main(["verify", str(path)]) == 1
    assert main(["dump", str(path)]) == 2
    assert main(["backup", str(path), str(tmp_path / "copy")]) == 2
    assert not (tmp_path / "copy").exists()
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["inspect", "dump", "verify", "offsets", "compact", "wipe"])
@pytest.mark.parametrize("place", ["missing", "file", "foreign", "above"])
def test_what_is_no_store_is_refused_and_stays_as_it_is(
    tmp_path: Path, command: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "mine").touch()
    filled(tmp_path / "above" / "0_0" / "sqlite" / "counts", "sqlite")
    before = state(tmp_path)
    if (command, place) == ("inspect", "above"):
        return  # It shows the stores below: test_shell_folders.
    assert main([command, str(tmp_path / place), *(["--yes"] if command == "wipe" else [])]) == 2
    output = capsys.readouterr()
    assert place in output.err
    assert place != "above" or "0_0/sqlite/counts" in output.err
    assert (output.out, state(tmp_path)) == ("", before)


def test_a_closed_pipe_ends_a_dump_quietly(path: Path) -> None:
    with open_store("sqlite", path) as store:
        store.put_all([(b"%06d" % number, b"x" * 100) for number in range(20_000)])
        store.commit()
    command = [sys.executable, "-m", "stores", "dump", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"000000\t")
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_tables_of_a_store_that_is_not_in_sqlite_are_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_store("lmdb", path).close()
    assert main(["inspect", str(path), "--tables"]) == 2
    assert str(path) in capsys.readouterr().err


def test_without_sqlite_utils_stores_work_and_inspecting_their_tables_says_what_to_install(tmp_path: Path) -> None:
    script = """
import sys
sys.modules["sqlite_utils"] = None
from stores import open_store
from stores.changelog.sqlite import SqliteChangelog
from stores.command import main
with open_store("sqlite", sys.argv[1] + "/store") as store:
    store.commit()
SqliteChangelog(sys.argv[1] + "/log").close()
print(main(["inspect", "--tables", sys.argv[1] + "/store"]), main(["inspect", "--tables", sys.argv[1] + "/log"]))
"""
    process = run_script(script, tmp_path)
    assert process.stdout == b"2 2\n"
    assert process.stderr.count(b"txstores[inspection]") == 2


def test_neither_a_store_nor_a_changelog_imports_packages_for_inspection(tmp_path: Path) -> None:
    script = """
import sys
from stores import open_store
from stores.changelog.sqlite import SqliteChangelog
open_store("sqlite", sys.argv[1] + "/store").close()
SqliteChangelog(sys.argv[1] + "/log").close()
print(sorted({"sqlite_utils", "pandas"} & set(sys.modules)))
"""
    assert run_script(script, tmp_path).stdout == b"[]\n"


def run_script(script: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Run ``script`` with ``folder`` as its argument, in a Python that has the modules of this one."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, "-c", script, str(folder)], env=environment, capture_output=True, check=True, timeout=600
    )


def test_the_command_prints_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["--version"])
    assert (error.value.code, capsys.readouterr().out) == (0, f"txstores {__version__}\n")
