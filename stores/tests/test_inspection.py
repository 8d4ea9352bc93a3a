"""People can see what a store of SQLite, or a changelog, holds without opening it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stores import StoreIncompatibleError, TopicPartition, open_store
from stores.changelog.sqlite import SqliteChangelog
from stores.inspection import lines, main

LOG = TopicPartition("changelog", 3)


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("backend", ["sqlite-indexed-batch", "sqlite-native"])
def test_a_store_shows_what_it_is_its_offsets_and_records_while_it_is_open(
    path: Path, backend: str, checksums: bool
) -> None:
    with open_store(backend, path, options={"checksums": checksums}) as store:
        store.put_all([(b"a", b"1"), (b"b", b"\xff"), (b"c", b"3")])
        store.advance_position(TopicPartition("input", 0), 5)
        store.commit({LOG: 41})
        store.put(b"aa", b"uncommitted")
        first, *rest = lines(path, 2)
        assert (first["backend"], first["tables"], first["checksums"]) == (backend, {"data": 3, "meta": 2}, checksums)
        assert first["schema"] == {
            name: f"CREATE TABLE {name} (key blob primary key, value blob not null) strict, without rowid"
            for name in ("data", "meta")
        }
        assert rest == [
            {"topic": "changelog", "partition": 3, "offset": 41},
            {"topic": "input", "partition": 0, "position": 5},
            {"key": "a", "value": "1"},
            {"key": "b", "value": {"hex": "ff"}},
        ]


def test_a_store_that_is_being_upgraded_shows_its_marks_and_the_records_of_both_formats(path: Path) -> None:
    with open_store("sqlite-indexed-batch", path) as store:
        store.put_all([(b"a", b"1"), (b"b", b"2")])
        store.commit()
        store.split({"records": b"{}"})
        store.put_all([(b"\x01b", b"new"), (b"\x00b", None)])
        store.commit()
        first, *rest = lines(path, 9)
        assert first["tables"] == {"data": 1, "meta": 2, "records": 1}
        assert rest == [
            {"mark": "records", "value": "{}"},
            {"key": "a", "value": "1"},
            {"key": "b", "value": "new"},
        ]


def test_a_changelog_shows_its_partitions_and_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with SqliteChangelog(tmp_path / "log") as log:
        log.create_topic("orders")
        with log.producer() as producer:
            producer.send(TopicPartition("orders", 0), b"key", b"value")
            producer.flush()
    assert main([str(tmp_path / "log"), "--records", "1"]) == 0
    first, *rest = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert first["tables"]["record"] == 1
    assert [(line.get("view"), line["topic"], line.get("value")) for line in rest] == [
        ("partitions", "orders", None),
        (None, "orders", "value"),
    ]


def test_what_is_not_kept_in_sqlite_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_store("lmdb", tmp_path / "store").close()
    with pytest.raises(StoreIncompatibleError):
        list(lines(tmp_path / "store", 1))
    (tmp_path / "other").write_text("no database")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").touch()
    assert [main([str(tmp_path / name)]) for name in ("store", "other", "none", "folder")] == [2, 2, 2, 2]
    said = capsys.readouterr()
    assert said.out == ""
    assert "none does not exist" in said.err
    assert "wipe" not in said.err


def test_without_sqlite_utils_stores_work_and_inspecting_one_says_what_to_install(tmp_path: Path) -> None:
    script = """
import sys
sys.modules["sqlite_utils"] = None
from stores import TopicPartition, open_store
from stores.changelog.sqlite import SqliteChangelog
from stores.inspection import main
with open_store("sqlite-native", sys.argv[1] + "/store") as store:
    store.put(b"key", b"value")
    store.commit({TopicPartition("changelog", 0): 1})
    store.verify()
SqliteChangelog(sys.argv[1] + "/log").close()
print(main([sys.argv[1] + "/store"]), main([sys.argv[1] + "/log"]))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, capture_output=True, check=True, timeout=60
    )
    assert done.stdout == b"2 2\n"
    assert done.stderr.count(b"txstores[inspection]") == 2


def test_neither_a_store_nor_a_changelog_imports_what_only_people_need(tmp_path: Path) -> None:
    script = """
import sys
from stores import open_store
from stores.changelog.sqlite import SqliteChangelog
open_store("sqlite", sys.argv[1] + "/store").close()
SqliteChangelog(sys.argv[1] + "/log").close()
print(sorted({"sqlite_utils", "pandas"} & set(sys.modules)))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, capture_output=True, check=True, timeout=60
    )
    assert done.stdout == b"[]\n"
