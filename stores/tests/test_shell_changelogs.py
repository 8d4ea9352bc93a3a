"""The commands of ``txstores`` on the file of a changelog."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from stores import TopicPartition, open_store
from stores.changelog import SqliteChangelog
from stores.command import main
from stores.errors import ChangelogError
from stores.shell.sqlite_files import records_of
from stores.tests.test_shell import lines, state


def changelog(path: Path) -> Path:
    """A changelog with a committed record, an open transaction and an offset of a group."""
    with SqliteChangelog(path) as log:
        log.create_topic("orders", 2)
        with log.producer("p") as producer:
            producer.begin()
            producer.send(TopicPartition("orders", 1), b"k", b"v")
            producer.send_offsets("g", {TopicPartition("in", 0): 9})
            producer.commit()
    return path


def test_a_changelog_file_is_shown_with_its_partitions_and_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = state(changelog(tmp_path / "log").parent)
    [facts] = lines(capsys, "inspect", tmp_path / "log", "--tables")
    assert (facts["kind"], facts["schema_version"], facts["transactions"]) == ("changelog", 2, [])
    assert facts["partitions"] == [
        {"topic": "orders", "partition": number, "start_offset": 0, "next_offset": end, "last_stable_offset": end}
        for number, end in ((0, 0), (1, 1))
    ]
    [size] = cast("list[dict[str, object]]", facts["sizes"])
    assert {name: size[name] for name in ("topic", "partition", "batches", "records")} == {
        "topic": "orders",
        "partition": 1,
        "batches": 1,
        "records": 1,
    }
    assert facts["consumer_groups"] == [{"consumer_group": "g", "topic": "in", "partition": 0, "next_offset": 9}]
    assert state(tmp_path) == before
    assert main(["inspect", str(tmp_path / "log")]) == 0
    assert "orders 1 start_offset=0 next_offset=1 last_stable_offset=1" in capsys.readouterr().out


def test_a_changelog_is_shown_while_it_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with SqliteChangelog(changelog(tmp_path / "log")) as log, log._file.write():
        [facts] = lines(capsys, "inspect", tmp_path / "log")
    assert len(cast("list[object]", facts["partitions"])) == 2


def test_dump_prints_the_records_of_a_changelog(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = state(changelog(tmp_path / "log").parent)
    [record] = lines(capsys, "dump", tmp_path / "log")
    assert {name: record[name] for name in ("topic", "partition", "offset", "state", "key_hex", "value_hex")} == {
        "topic": "orders",
        "partition": 1,
        "offset": 0,
        "state": "COMMITTED",
        "key_hex": b"k".hex(),
        "value_hex": b"v".hex(),
    }
    assert lines(capsys, "dump", tmp_path / "log", "--limit", 0) == []
    assert state(tmp_path) == before


@pytest.mark.parametrize("part", ["--key", "--value"])
def test_a_dump_of_a_changelog_decodes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str) -> None:
    assert main(["dump", str(changelog(tmp_path / "log")), part, "str"]) == 2
    assert "leave --key and --value out" in capsys.readouterr().err


@pytest.mark.parametrize("limit", [1, None])
def test_records_of_a_changelog_that_a_process_began_to_use_meanwhile_are_not_taken_as_one_moment(
    tmp_path: Path, limit: int | None
) -> None:
    records = records_of(changelog(tmp_path / "log"), limit)
    next(records)
    with SqliteChangelog(tmp_path / "log"), pytest.raises(ChangelogError, match="read it again"):
        list(records)


@pytest.mark.parametrize("command", ["verify", "offsets", "compact"])
def test_a_command_for_stores_says_that_it_was_given_a_changelog(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([command, str(changelog(tmp_path / "log"))]) == 2
    assert "is the file of a changelog" in capsys.readouterr().err


def test_a_damaged_changelog_is_refused_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = changelog(tmp_path / "log").read_bytes()
    (tmp_path / "log").write_bytes(content[:100] + bytes(len(content) - 100))
    assert main(["inspect", str(tmp_path / "log")]) == 2
    assert str(tmp_path / "log") in capsys.readouterr().err


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("backend", ["sqlite-indexed-batch", "sqlite-native"])
def test_tables_of_a_store_and_a_changelog_are_shown_while_they_are_open(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], backend: str, checksums: bool
) -> None:
    with open_store(backend, path, options={"checksums": checksums}) as store:
        store.put_all([(b"a", b"1"), (b"b", b"2")])
        store.commit({TopicPartition("changelog", 3): 41})
        store.put(b"c", b"staged")
        [facts] = lines(capsys, "inspect", path, "--tables")
    assert facts["tables"] == {"data": 2, "meta": 1}
    assert facts["schema"] == {
        name: f"CREATE TABLE {name} (key blob primary key, value blob not null) strict, without rowid"
        for name in ("data", "meta")
    }
    assert main(["inspect", str(path), "--tables"]) == 0
    assert "table data" in capsys.readouterr().out
    with SqliteChangelog(changelog(tmp_path / "log")):
        [facts] = lines(capsys, "inspect", tmp_path / "log", "--tables")
    assert cast("dict[str, int]", facts["tables"])["batch"] == 1
