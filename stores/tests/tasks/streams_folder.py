"""Folders as Kafka Streams leaves them in a task's folder, made with RocksDB alone."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from rocksdict import Options, Rdict

from stores.interface import TopicPartition
from stores.tests.tasks.setup import TASK

TIMESTAMPED = "keyValueWithTimestamp"


def task_folder(folder: Path) -> Path:
    return folder / "state" / str(TASK)


def streams_folder(folder: Path, name: str) -> Path:
    """Return the path of a key-value store of Kafka Streams."""
    return task_folder(folder) / "rocksdb" / name


def leave_store(
    path: Path, pairs: Mapping[bytes, bytes], timed: Mapping[bytes, tuple[int, bytes]] | None = None, *more: str
) -> None:
    """Make a store of ``pairs``; with ``timed``, a timestamped one of time and value; ``more`` are further families."""
    path.mkdir(parents=True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    db = Rdict(str(path), options)
    for key, value in pairs.items():
        db.put(key, value)
    handles = []
    for family in (*([] if timed is None else [TIMESTAMPED]), *more):
        handles.append(db.create_column_family(family, options))
        if family == TIMESTAMPED and timed is not None:
            for key, (time_ms, value) in timed.items():
                handles[-1].put(key, struct.pack(">q", time_ms) + value)
    for handle in (*handles, db):
        handle.flush()
        handle.close()
    # Kafka Streams has no such file.
    (path / "rocksdict-config.json").unlink()


def put_raw(path: Path, family: str, entries: Mapping[bytes, bytes]) -> None:
    """Put entries into a column family of a database, which is made if it is not there."""
    names = Rdict.list_cf(str(path))
    db = Rdict(str(path), Options(raw_mode=True), column_families={name: Options(raw_mode=True) for name in names})
    handle = (
        db.get_column_family(family) if family in names else db.create_column_family(family, Options(raw_mode=True))
    )
    for key, data in entries.items():
        handle.put(key, data)
    for each in (handle, db):
        each.flush()
        each.close()
    (path / "rocksdict-config.json").unlink()


def keep_end(path: Path, entries: Mapping[bytes, bytes]) -> None:
    """Add the family ``offsets`` with these entries to a database, as Kafka Streams 4.3 does."""
    put_raw(path, "offsets", entries)


def end_entries(
    offsets: Mapping[TopicPartition, int], position: Mapping[TopicPartition, int], status: int | None = 0
) -> dict[bytes, bytes]:
    """Return the entries of that family. Kafka Streams leaves room behind the position."""
    packed = [struct.pack(">bi", 0, len(position))]
    for (topic, number), offset in position.items():
        packed.append(struct.pack(">i", len(topic)) + topic.encode() + struct.pack(">iiq", 1, number, offset))
    entries = {f"{topic}-{number}".encode(): struct.pack(">q", offset) for (topic, number), offset in offsets.items()}
    entries[b"position"] = b"".join(packed) + bytes(20)
    return entries if status is None else {**entries, b"status": struct.pack(">q", status)}


def leave_offsets(file: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Write a file of offsets as Kafka does, without a checksum."""
    lines = [f"{topic} {number} {offset}\n" for (topic, number), offset in offsets.items()]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(["0\n", f"{len(lines)}\n", *lines]))


def all_files(folder: Path) -> dict[str, bytes]:
    """Return the content of each file below ``folder``, by its path there."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
