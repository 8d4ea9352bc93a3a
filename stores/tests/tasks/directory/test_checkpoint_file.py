"""The checkpoint file: Kafka's text format, whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from stores.errors import StoreCorruptedError, StoreUnavailableError
from stores.interface import TopicPartition
from stores.tasks.directory.entry_files import CheckpointFile

A, B = TopicPartition("a", 0), TopicPartition("b-changelog", 12)


def kafkas(text: str) -> tuple[str, str, list[list[str]]]:
    """The file as Kafka reads it: two lines as they are, then lines parted at whitespace.

    Source: Kafka, ``OffsetCheckpoint.read``.
    """
    version, count, *entries = text.splitlines()
    return version, count, [entry.split() for entry in entries]


def test_what_is_written_is_read_back_in_kafkas_format(tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path / ".checkpoint")
    file.write({B: 7, A: 0})
    assert kafkas(file.path.read_text()) == ("0", "2", [["a", "0", "0"], ["b-changelog", "12", "7"]])
    assert file.path.read_text().startswith("0\n2\na 0 0\nb-changelog 12 7 ")
    assert file.read() == {A: 0, B: 7}
    assert [entry.name for entry in tmp_path.iterdir()] == [".checkpoint"]


def test_no_file_says_nothing_and_saying_nothing_leaves_no_file(tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path / ".checkpoint")
    assert file.read() == {}
    file.write({A: 1})
    file.write({})
    file.write({})
    assert file.read() == {}
    assert list(tmp_path.iterdir()) == []


def test_one_offset_can_be_forgotten(tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path / ".checkpoint")
    file.write({A: 1, B: 2})
    file.forget(A)
    file.forget(A)
    assert file.read() == {B: 2}
    file.forget(B)
    assert not file.path.exists()


def test_an_unknown_offset_is_no_offset(tmp_path: Path) -> None:
    """Source: Kafka, ``OffsetCheckpoint.OFFSET_UNKNOWN``."""
    file = CheckpointFile(tmp_path / ".checkpoint")
    file.path.write_text("0\n2\na 0 -4\nb 1 5\n")
    assert file.read() == {TopicPartition("b", 1): 5}


def test_an_offset_that_is_not_known_is_written_as_such(tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path / ".checkpoint")
    file.write({A: None, B: 5})
    assert kafkas(file.path.read_text()) == ("0", "2", [["a", "0", "-4"], ["b-changelog", "12", "5"]])
    assert file.read() == {B: 5}
    file.forget(B)
    assert file.read() == {}


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\n",
        b"\xff\xfe\x00",
        b"0\n",
        b"1\n0\n",
        b"0\n1\n",
        b"0\n2\na 0 1\n",
        b"0\n1\na 0 1",
        b"0\n1\na 0 1 \n",
        b"0\n1\na 0 1\nb 0 1\n",
        b"0\n1\na 0\n",
        b"0\n1\na 0 x\n",
        b"0\n1\na 0 -5\n",
        b"0\n1\na 0 9223372036854775808\n",
        b"0\n1\na -1 5\n",
        b"0\n1\na 2147483648 5\n",
        b"0\n2\na 0 1\na 0 2\n",
        b"0\n1\na 0 1 1\n",
        b"0\nmany\na 0 1\n",
    ],
)
def test_garbage_is_refused_by_name_and_forgotten_on_request(tmp_path: Path, garbage: bytes) -> None:
    file = CheckpointFile(tmp_path / ".checkpoint")
    file.path.write_bytes(garbage)
    with pytest.raises(StoreCorruptedError) as error:
        file.read()
    assert str(file.path) in str(error.value)
    file.forget(A)
    assert file.read() == {}


def test_kafkas_own_file_is_read_without_a_checksum(tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path / ".checkpoint")
    file.path.write_text("0\n2\na 0 1\nb-changelog 12 5\n")
    assert file.read() == {A: 1, B: 5}


def test_every_flipped_bit_and_every_cut_is_detected(tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path / ".checkpoint")
    file.write({A: 1_000, B: 24})
    whole = file.path.read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        file.path.write_bytes(flipped)
        with pytest.raises(StoreCorruptedError):
            file.read()
    for length in range(len(whole)):
        file.path.write_bytes(whole[:length])
        with pytest.raises(StoreCorruptedError):
            file.read()
    file.path.write_bytes(whole)
    assert file.read() == {A: 1_000, B: 24}


def test_a_disk_that_refuses_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    inside_a_file = CheckpointFile(tmp_path / "a file" / ".checkpoint")
    with pytest.raises(StoreUnavailableError):
        inside_a_file.write({A: 1})
    in_the_way = CheckpointFile(tmp_path / ".checkpoint")
    in_the_way.path.mkdir()
    for call in (in_the_way.read, lambda: in_the_way.write({A: 1}), lambda: in_the_way.write({})):
        with pytest.raises(StoreUnavailableError):
            call()
