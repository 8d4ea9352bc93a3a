"""SST ingestion: a commit is one file of sorted entries that the engine takes over whole, with offsets and position.

Source: KIP-892, "Rejected Alternatives". Staged writes are in the indexed batch; larger transactions continue in a
spill. A commit has these steps:

1. Write the staged writes to a file, in key order, with the meta entries; a spilled transaction to several.
2. Let the engine ingest them in one step. This is the commit point.
3. Remove the spill. The engine has removed the files.

The engine's write buffers stay empty, and nothing has to be rolled forward: opening removes files that were not
ingested. Files of an ingestion that fails stay until then, see ``IngestingEngine.ingest``. An ingestion is durable when
it returns, at every level of durability.

A file has no range deletes, because rocksdict's writer has none: a range delete becomes a delete of each committed key
in the range. While the records of a store have two formats, its commits are those of the strategy ``indexed-batch``:
the two data families can't be ingested in one step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import merge
from operator import itemgetter
from pathlib import Path
from secrets import token_bytes
from typing import ClassVar, cast

from stores.batch.merge import Staged, chunks_of
from stores.engines.engine import Engine, Meta, Writes
from stores.engines.ingesting import FilePart, IngestingEngine, ingested_name
from stores.errors import CommitFailedError, ConfigError
from stores.failpoints import Part, declare, reach
from stores.interface import Durability, RecoveryOutcome
from stores.ordered import Bounds, KeyRanges, ScanRange
from stores.strategies.batch_staging import BUFFER, PART
from stores.strategies.indexed_batch import IndexedBatchStaging
from stores.strategies.spilled import TOKEN_BYTES
from stores.strategies.staging import RESTORE_AFTER_WRITE, RESTORE_BEFORE_WRITE, Opened

FILE = "ingested_file_bytes"
"""The name of the option."""
_TINY = {BUFFER: 200, PART: 200, FILE: 200}
"""Options with which nearly every transaction is spilled and ingested as several files."""
BEFORE_FILES = declare("sst_ingest.before_files", "the batch is complete, no file has any of it")
FIRST_FILE = declare(
    "sst_ingest.first_file", "the first of several files of a spilled commit is complete", options=_TINY
)
FILES_WRITTEN = declare("sst_ingest.files_written", "the files of a commit are complete, the engine has none of them")
INGESTED = declare("sst_ingest.ingested", "the engine has taken the files over, the caller does not know yet")
RECOVER_BEFORE_REMOVAL = declare(
    "sst_ingest.recover.before_removal",
    "opening found files of a commit and is about to remove them",
    part=Part.RECOVERY,
    after=FILES_WRITTEN,
    twice=True,
)

_PART_PAIRS = 4096
"""The most pairs of a part of a file."""


class SstIngestStaging(IndexedBatchStaging):
    """As the indexed batch, but a commit is a file that the engine ingests. It syncs at every level of durability.

    A spilled transaction is ingested as files of about ``ingested_file_bytes``, in one step. A store with two data
    families commits as the indexed batch does.
    """

    strategy: ClassVar[str] = "sst-ingest"
    failpoints: ClassVar[tuple[str, ...]] = (
        BEFORE_FILES,
        FILES_WRITTEN,
        INGESTED,
        RECOVER_BEFORE_REMOVAL,
        RESTORE_BEFORE_WRITE,
        RESTORE_AFTER_WRITE,
    )
    persistent_failpoints: ClassVar[tuple[str, ...]] = (FIRST_FILE,)
    persistent_options: ClassVar[Mapping[str, object]] = {**IndexedBatchStaging.persistent_options, FILE: 64 << 20}

    @classmethod
    def check_engine(cls, engine: type[Engine], backend: str) -> None:
        if not issubclass(engine, IngestingEngine):
            raise ConfigError(f"{backend}: the engine {engine.name!r} can't ingest files: choose another strategy")

    @classmethod
    def engine_level(cls, durability: Durability) -> Durability:
        return Durability.DISK

    def use(self, engine: Engine) -> None:
        super().use(engine)
        # The shortest way may be to the engine's files, which from the first commit on have the meta entries as well.
        self.bare_lookup = engine.get

    @property
    def deletes_ranges_whole(self) -> bool:
        return False

    def open_files(self, opened: Opened) -> None:
        super().open_files(opened)
        self._file_bytes = cast(int, opened.options[FILE])

    def commit(self, meta: Meta) -> None:
        if self.is_split:
            super().commit(meta)
            return
        reach(BEFORE_FILES)
        if self.spill is not None:
            self.spill_staged()
        batch = self.batch
        layers = batch.as_writes()
        spill = self.spill
        if spill is not None:
            writes = with_deletes(self.engine, spill.ranges, spill.writes())
            self._ingest(_files(writes, self._file_bytes, self.part_bytes), meta)
        elif layers or meta:
            self._ingest([_parts_of(self.engine, layers)], meta)
        reach(INGESTED)
        if layers or spill is not None:
            batch.remember(layers)
            with batch.lock:
                self._forget()
        self._remove_retired()

    def write_at_once(self, layers: Sequence[Writes], meta: Meta) -> None:
        if self.is_split:
            super().write_at_once(layers, meta)
        else:
            self.batch.forget_recent()
            self._ingest([_parts_of(self.engine, layers)], meta)

    def _ingest(self, files: Iterable[Iterable[FilePart]], meta: Meta) -> None:
        ingesting = cast(IngestingEngine, self.engine)
        name = token_bytes(TOKEN_BYTES).hex()
        paths: list[Path] = []
        try:
            self._parent.mkdir(exist_ok=True)
            for parts in files:
                if len(paths) == 1:
                    reach(FIRST_FILE)
                path = self._parent / ingested_name(name, len(paths))
                ingesting.write_file(path, parts, None if paths else meta)
                paths.append(path)
            reach(FILES_WRITTEN)
        except BaseException as error:
            for path in paths:
                with suppress(OSError):
                    path.unlink()
            if isinstance(error, OSError):
                raise CommitFailedError(f"{error.filename}: {error.strerror}: commit again") from error
            raise
        # If this fails, the engine may need the files at the next opening, which removes them.
        ingesting.ingest(paths)

    def close_files(self) -> None:
        super().close_files()
        with suppress(OSError):
            self._parent.rmdir()

    def recover(self) -> RecoveryOutcome | None:
        with suppress(OSError):
            if any(self._parent.glob("*.sst")):
                reach(RECOVER_BEFORE_REMOVAL)
        return super().recover()


def with_deletes(engine: Engine, ranges: Iterable[Bounds], writes: Iterable[Staged]) -> Iterator[Staged]:
    """Yield ``writes``, and a delete of each other committed key in ``ranges``. All of them ascend, and the result."""
    last = None
    for staged in merge(writes, _committed(engine, ranges), key=itemgetter(0)):
        # Of equal keys the one in ``writes`` comes first.
        if staged[0] != last:
            last = staged[0]
            yield staged


def _committed(engine: Engine, ranges: Iterable[Bounds]) -> Iterator[Staged]:
    for start, end in ranges:
        scan = engine.scan(ScanRange(start, end))
        try:
            for chunk in chunks_of(scan):
                yield from [(key, None) for key, _ in chunk]
        finally:
            scan.close()


def _parts_of(engine: Engine, layers: Sequence[Writes]) -> Iterator[FilePart]:
    """Yield the layers, oldest first, as the parts of one file."""
    if len(layers) == 1 and not layers[0].ranges:
        writes = layers[0].writes
        for keys in layers[0].keys_in_order():
            yield keys, [writes[key] for key in keys]
        return
    hidden = KeyRanges()
    merged: dict[bytes, bytes | None] = {}
    for layer in layers:
        ranges = KeyRanges()
        for start, end in layer.ranges:
            ranges.add(start, end)
        if ranges:
            merged = {key: value for key, value in merged.items() if key not in ranges}
            hidden.update(ranges)
        merged.update(layer.writes)
    yield from _parts(with_deletes(engine, hidden, sorted(merged.items())), sys.maxsize)


def _parts(writes: Iterable[Staged], num_bytes_max: int) -> Iterator[FilePart]:
    """Yield ``writes`` in parts of up to ``_PART_PAIRS`` pairs, or about ``num_bytes_max``."""
    keys: list[bytes] = []
    values: list[bytes | None] = []
    num_bytes = 0
    for key, value in writes:
        keys.append(key)
        values.append(value)
        num_bytes += len(key) + len(value or b"")
        if len(keys) == _PART_PAIRS or num_bytes >= num_bytes_max:
            yield keys, values
            keys, values, num_bytes = [], [], 0
    if keys:
        yield keys, values


def _files(writes: Iterable[Staged], file_bytes: int, part_bytes: int) -> Iterator[Iterator[FilePart]]:
    """Yield the parts of each file: one file or more, of about ``file_bytes``. Use up each before the next."""
    parts = _parts(writes, min(file_bytes, part_bytes))
    ahead = next(parts, None)

    def one_file() -> Iterator[FilePart]:
        nonlocal ahead
        num_bytes = 0
        while ahead is not None and num_bytes < file_bytes:
            keys, values = ahead
            yield keys, values
            num_bytes += sum(map(len, keys)) + sum([len(value or b"") for value in values])
            ahead = next(parts, None)

    yield one_file()
    while ahead is not None:
        yield one_file()
