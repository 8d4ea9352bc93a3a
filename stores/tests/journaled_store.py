"""A package of somebody else, in one file: an engine, and a strategy with a commit and failpoints of its own.

Tests install it (``installed``); the library and the harness know nothing of it. A commit is written to a journal
first and to the engine then; opening carries out a journal that it finds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from stores.engines.engine import Writes
from stores.engines.sqlite import SqliteEngine
from stores.errors import CommitFailedError, StoreUnavailableError
from stores.failpoints import Part, declare, reach
from stores.files.plain_files import read_file, replace_file, sync_folder
from stores.interface import Durability, RecoveryOutcome
from stores.registry import Backend
from stores.strategies.indexed_batch import IndexedBatchStaging
from stores.strategies.staging import Opened

NOTED = declare("their.noted", "the journal has the commit, the engine has not")
APPLIED = declare("their.applied", "the engine has the commit, the journal is still there")
OPENED = declare(
    "their.opened", "opening found a journal, and has not applied it", part=Part.RECOVERY, after=NOTED, twice=True
)
REPEATED = declare(
    "their.repeated", "opening has applied a journal, which is still there", part=Part.RECOVERY, after=NOTED, twice=True
)

_BYTES_MAX = 1 << 30


class TheirEngine(SqliteEngine):
    """An engine that is another package's by its name alone."""

    name = "their"


class JournaledStaging(IndexedBatchStaging):
    """Stages as an indexed batch does. A commit that fits into memory is written to a journal first."""

    strategy: ClassVar[str] = "journaled"
    failpoints: ClassVar[tuple[str, ...]] = (NOTED, APPLIED, OPENED, REPEATED, *IndexedBatchStaging.failpoints)

    def open_files(self, opened: Opened) -> None:
        super().open_files(opened)
        assert opened.directory is not None
        self._journal = opened.directory.path / "commit"
        self._is_synced = opened.traits.durability is Durability.DISK

    def commit(self, meta: Mapping[bytes, bytes | None]) -> None:
        if self.spill is not None:
            super().commit(meta)
            return
        try:
            text = json.dumps([[_layer_text(layer) for layer in self.batch.as_writes()], _pairs_text(meta)])
            replace_file(self._journal, text, durable=self._is_synced)
        except OSError as error:
            raise CommitFailedError(f"{self._journal}: {error.strerror}: commit again") from error
        reach(NOTED)
        try:
            super().commit(meta)
        except CommitFailedError as error:
            if not error.reopen:
                self._remove_journal()
            raise
        reach(APPLIED)
        self._remove_journal()

    def _remove_journal(self) -> None:
        try:
            self._journal.unlink()
            if self._is_synced:
                # Else power loss could bring it back, to be applied over later commits.
                sync_folder(self._journal.parent)
        except OSError as error:
            raise CommitFailedError(f"{self._journal}: {error.strerror}: open the store again", reopen=True) from error

    def recover(self) -> RecoveryOutcome | None:
        outcome = super().recover()
        try:
            with suppress(FileNotFoundError):
                layers, meta = json.loads(read_file(self._journal, _BYTES_MAX))
                reach(OPENED)
                self.engine.write([_layer(each) for each in layers], _pairs(meta))
                reach(REPEATED)
                self._remove_journal()
                return RecoveryOutcome.ROLLED_FORWARD
        except (CommitFailedError, OSError) as error:
            raise StoreUnavailableError(f"{self._journal} can't be carried out: {error}. Open it again") from error
        return outcome


def _layer_text(layer: Writes) -> list[Any]:
    return [[[_hex(start), _hex(end)] for start, end in layer.ranges], _pairs_text(layer.writes)]


def _layer(text: Sequence[Any]) -> Writes:
    ranges, pairs = text
    return Writes([(_bytes(start), _bytes(end)) for start, end in ranges], _pairs(pairs))


def _pairs_text(pairs: Mapping[bytes, bytes | None]) -> list[list[str | None]]:
    return [[key.hex(), _hex(value)] for key, value in pairs.items()]


def _pairs(text: Sequence[Sequence[Any]]) -> dict[bytes, bytes | None]:
    return {bytes.fromhex(key): _bytes(value) for key, value in text}


def _hex(given: bytes | None) -> str | None:
    return None if given is None else given.hex()


def _bytes(given: str | None) -> bytes | None:
    return None if given is None else bytes.fromhex(given)


BACKEND = Backend("their-journaled", lambda: TheirEngine, lambda: JournaledStaging)
