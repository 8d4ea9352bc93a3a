"""A version log's work, and the state that it must restore: two stores as dictionaries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa

from stores.changelog.files import Header, PartitionLog, Retention, StoreChanges, VersionLog
from stores.changelog.files.partition_log import RowsFile

DESCRIPTION = {"partitions": 2, "key": ["plane"]}
State = dict[str, dict[bytes, bytes]]


def opened(path: Path, **retention: int) -> VersionLog:
    return VersionLog.open_or_create(path, DESCRIPTION, retention=Retention(**retention))


def id_of(version: int, seed: int = 0) -> str:
    """The ID of the attempt whose version is in the log."""
    return f"{Random(f'{seed} id {version}').getrandbits(64):016x}"


def header(version: int, writer: str | None = None, seed: int = 0, **others: object) -> Header:
    """The header of a version. A ``writer`` that is given is another attempt, from the same version before."""
    previous, previous_id = (version - 1, id_of(version - 1, seed)) if version else (None, None)
    own = id_of(version, seed) if writer is None else writer
    return Header("version", own, 0, version, previous, previous_id, **others)  # type: ignore[arg-type]


def changes(version: int, seed: int = 0) -> dict[str, StoreChanges]:
    """The same at each call: puts and deletes of some keys in two stores."""
    random = Random(f"{seed} {version}")
    return {
        store: StoreChanges(
            {
                b"%d" % random.randrange(20): None if random.random() < 0.2 else b"%d of %d" % (version, number)
                for number in range(8)
            },
            {"time": b"%d" % version},
        )
        for store in ("counts", "names")
    }


def state_at(version: int, seed: int = 0) -> State:
    """The pairs and the mark that the stores have at a version; -1 is before the first."""
    state: State = {}
    for number in range(version + 1):
        for store, each in changes(number, seed).items():
            pairs = state.setdefault(store, {})
            for key, value in (*each.pairs.items(), *((b"mark " + n.encode(), m) for n, m in each.marks.items())):
                if value is None:
                    pairs.pop(key, None)
                else:
                    pairs[key] = value
    return state


def restored(log: PartitionLog, after: int | None, to: int, seed: int = 0) -> State:
    """The state that a restore gives, from the state at ``after``."""
    state = state_at(-1 if after is None else after, seed)
    reached = after
    for piece in log.restore(after, to):
        if piece.fresh:
            state = {}
        for store, is_mark, key, value in piece.records:
            pairs = state.setdefault(store, {})
            name = b"mark " + key if is_mark else key
            if value is None:
                pairs.pop(name, None)
            else:
                pairs[name] = value
        reached = piece.reached if piece.reached is not None else reached
    assert reached == to
    return state


def append(log: PartitionLog, version: int, seed: int = 0) -> None:
    """Append a version, and write snapshots and remove files as they are due."""
    own = header(version, seed=seed)
    assert log.append(own, changes(version, seed)).id == own.id
    listing = log.listing()
    if log.snapshot_due(listing):
        log.write_snapshot(Header("snapshot", own.id, 0, version), snapshot(version, seed))
        log.remove_old(log.listing())


def filled(path: Path, versions: int, **retention: int) -> PartitionLog:
    """A partition's log with so many versions."""
    log = opened(path, **retention).partition(0)
    for version in range(versions):
        append(log, version)
    return log


def rows_file(log: PartitionLog, own: Header, numbers: list[int]) -> RowsFile:
    """A file of one batch of rows that is not finished."""
    file = log.write_rows(own, pa.schema([("n", pa.int64())]))
    file.write(pa.record_batch([pa.array(numbers, pa.int64())], names=["n"]))
    return file


def with_rows(log: PartitionLog, own: Header, numbers: list[int]) -> Header:
    """The header of a version with these rows, whose file is written."""
    return replace(own, rows=rows_file(log, own, numbers).finish(), num_rows=len(numbers))


def snapshot(version: int, seed: int = 0) -> Iterator[tuple[str, bool, bytes, bytes | None]]:
    for store, pairs in state_at(version, seed).items():
        for key, value in pairs.items():
            yield store, key.startswith(b"mark "), key.removeprefix(b"mark "), value
