"""The shell tool on state directories, its removal of stores, and what a dump takes from a store's description."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stores import open_store
from stores.command import main
from stores.records import (
    INT64,
    STR,
    KeyValue,
    Session,
    TimestampedKeyValue,
    TimestampedKeyValueWithHeaders,
    VersionedWithHeaders,
    Window,
    Windowed,
)
from stores.records.serdes import MsgspecJson


class Order(msgspec.Struct):
    """A value that msgspec writes as JSON."""

    items: int


class Terminal(StringIO):
    """A standard input at which somebody sits."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def path(tmp_path: Path) -> Path:
    store = tmp_path / "state" / "word-count" / "0_1" / "lmdb" / "counts"
    with open_store("lmdb", store) as opened:
        counts = KeyValue(key=STR, value=INT64).over(opened)
        counts.put("be", 2)
        counts.commit()
    return store


def lines(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    assert main([*map(str, arguments), "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_state_directory_is_shown_by_its_stores(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = path.with_name("damaged")
    open_store("sqlite", damaged).close()
    (damaged / "store.json").write_text("{}")
    with open_store("rocksdb", path.with_name("open")):
        for folder in (tmp_path / "state", tmp_path / "state" / "word-count", path.parent):
            shown = {line["path"]: line for line in lines(capsys, "inspect", folder)}
            assert shown.keys() == {str(path), str(damaged), str(path.with_name("open"))}
            assert (shown[str(path)]["backend"], shown[str(path)]["state"]) == ("lmdb-indexed-batch", "closed")
            assert shown[str(path)]["size_bytes"] > 0
            assert shown[str(path.with_name("open"))]["state"] == "open in a process"
            assert str(damaged) in shown[str(damaged)]["problem"]


def test_a_folder_with_foreign_files_that_nothing_calls_a_store_stays(path: Path) -> None:
    (path / "mine").touch()
    (path / "store.json").unlink()
    assert main(["wipe", str(path), "--yes"]) == 2
    assert (path / "data").exists()


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("yes\n", 0), ("n\n", 2), ("\n", 2)])
def test_a_person_is_asked_before_a_store_is_removed(
    path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, status: int
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    assert main(["wipe", str(path)]) == status
    assert path.exists() == bool(status)


def test_where_nobody_can_be_asked_nothing_is_removed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO("y\n"))
    assert main(["wipe", str(path)]) == 2
    assert path.exists()
    assert main(["wipe", str(path), "--yes"]) == 0
    assert not path.exists()


def test_nobody_is_asked_about_a_folder_that_is_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert main(["wipe", str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().out == ""


def test_an_open_store_is_not_removed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store("lmdb", path) as store:
        assert main(["wipe", str(path), "--yes"]) == 2
        assert "process" in capsys.readouterr().err
        store.verify()


def test_a_damaged_store_is_removed(path: Path) -> None:
    (path / "data" / "data.mdb").write_bytes(b"\x07" * 4096)
    assert main(["wipe", str(path), "--yes"]) == 0
    assert not path.exists()


def test_a_dump_decodes_by_the_description_unless_bytes_are_asked_for(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lines(capsys, "dump", path) == [{"key": "be", "value": 2}]
    assert lines(capsys, "dump", path, "--value", "bytes") == [{"key": "be", "value_hex": INT64.serialize(2).hex()}]
    with open_store("sqlite", tmp_path / "orders") as store:
        orders = TimestampedKeyValue(key=STR, value=MsgspecJson(Order)).over(store)
        orders.put("ann", Order(3), 99)
        orders.commit()
    assert lines(capsys, "dump", tmp_path / "orders") == [{"key": "ann", "value": {"items": 3}, "timestamp_ms": 99}]


def test_a_dump_hides_what_has_passed_its_time_to_live(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def dumped(*options: str) -> list[str]:
        return [line["key"] for line in lines(capsys, "dump", tmp_path / "timed", *options)]

    with open_store("sqlite", tmp_path / "timed") as store:
        timed = TimestampedKeyValue(key=STR, value=INT64, ttl_ms=9_000).over(store)
        timed.put_all([("c", 3, 1_500), ("a", 1, 500), ("b", 2, 1_000)])
        timed.commit()
    for ttl_ms, shown in ((1_000, ["b", "c"]), (500, ["c"]), (None, ["a", "b", "c"]), (501, ["b", "c"])):
        with open_store("sqlite", tmp_path / "timed") as store:
            timed = TimestampedKeyValue(key=STR, value=INT64, ttl_ms=ttl_ms).over(store)
            assert [key for key, _ in timed.all()] == shown
        assert dumped() == shown
        assert dumped("--all") == ["a", "b", "c"]


def test_a_dump_hides_windows_and_sessions_that_have_expired(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_store("sqlite", tmp_path / "windows") as store:
        windows = Window(key=STR, value=INT64, size_ms=10, retention_ms=1000).over(store)
        for start_ms in (0, 500, 1500):
            windows.put("a", 1, start_ms)
        windows.commit()
        with windows.all() as pairs:
            live = [windowed.start_ms for windowed, _ in pairs]
    shown = [line["window_start_ms"] for line in lines(capsys, "dump", tmp_path / "windows")]
    assert shown == live == [1500]
    every = [line["window_start_ms"] for line in lines(capsys, "dump", tmp_path / "windows", "--all")]
    assert every == [0, 500, 1500]
    with open_store("sqlite", tmp_path / "sessions") as store:
        sessions = Session(key=STR, value=INT64, retention_ms=1000).over(store)
        for end_ms in (10, 1500):
            sessions.put(Windowed("a", 0, end_ms), 1)
        sessions.commit()
    assert [line["session_end_ms"] for line in lines(capsys, "dump", tmp_path / "sessions")] == [1500]


def test_dump_shows_the_headers_of_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store("lmdb", tmp_path / "headers") as store:
        headed = TimestampedKeyValueWithHeaders(key=STR, value=INT64).over(store)
        headed.put("a", 7, 99, (("trace", b"\xff"), ("none", None)))
        headed.put("b", 8, 100)
        headed.commit()
    assert lines(capsys, "dump", tmp_path / "headers") == [
        {"key": "a", "value": 7, "timestamp_ms": 99, "headers_hex": [["trace", "ff"], ["none", None]]},
        {"key": "b", "value": 8, "timestamp_ms": 100, "headers_hex": []},
    ]
    assert main(["dump", str(tmp_path / "headers"), "--limit", "1"]) == 0
    assert capsys.readouterr().out == 'a\t7\t99\t[["trace", "\\\\xff"], ["none", null]]\n'
    sessions = Session(key=STR, value=INT64, retention_ms=1000, segment_ms=10, headers=True)
    with sessions.over(open_store("lmdb", tmp_path / "sessions")) as store:
        store.put(Windowed("a", 20, 30), 7, 99, (("trace", b"\xff"),))
        store.commit()
    versions = VersionedWithHeaders(key=STR, value=INT64, history_retention_ms=1000)
    with versions.over(open_store("lmdb", tmp_path / "versions")) as store:
        store.put_many(["a", "a"], [7, None], [20, 40], [(("trace", b"\xff"),), ()])
        store.commit()
    assert lines(capsys, "dump", tmp_path / "versions") == [
        {"key": "a", "value": None, "timestamp_ms": 40},
        {"key": "a", "value": 7, "timestamp_ms": 20, "headers_hex": [["trace", "ff"]]},
    ]
    [session] = lines(capsys, "dump", tmp_path / "sessions")
    times = {"session_start_ms": 20, "session_end_ms": 30, "timestamp_ms": 99}
    assert session == {"key": "a", "value": 7, **times, "headers_hex": [["trace", "ff"]]}


@pytest.mark.parametrize("settings", [{"timestamped": True}, {"headers": True}], ids=str)
def test_dump_decodes_the_windows_of_before_a_store_had_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: dict[str, Any]
) -> None:
    plain = Window(key=STR, value=INT64, size_ms=10, retention_ms=1000, segment_ms=10)
    headers = {"headers": (("trace", b"\xff"),)} if "headers" in settings else {}
    with plain.over(open_store("lmdb", tmp_path / "windows")) as store:
        store.put("a", 7, 10)
        store.commit()
    with replace(plain, **settings).over(open_store("lmdb", tmp_path / "windows")) as store:
        store.put("b", 8, 12, 99)
        store.put("c", 9, 20, 99, **headers)
        store.commit()
    shown = {"headers_hex": [["trace", "ff"]]} if headers else {}
    assert lines(capsys, "dump", tmp_path / "windows") == [
        {"key": "a", "value": 7, "window_start_ms": 10},
        {"key": "b", "value": 8, "window_start_ms": 12},
        {"key": "c", "value": 9, "window_start_ms": 20, "timestamp_ms": 99, **shown},
    ]
