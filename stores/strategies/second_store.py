"""A second store of the same engine for one transaction that has outgrown memory: a folder of its own, gone after it.

It is opened at DISK whatever the store's level is, and written without a sync until it is sealed: who finds out that
its commit was begun (``IndexedBatchStore``) must have it whole. Its keys are those of the store, as long as they may
be there: a folder holds one transaction, so that no token is needed to tell two apart.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_bytes
from typing import Self

from stores.engines.engine import Engine
from stores.engines.families import BOTH, FAMILIES
from stores.engines.split import split_or_whole
from stores.errors import CommitFailedError, StoreError
from stores.files import sync_folder
from stores.interface import Durability
from stores.strategies.marker import Marker
from stores.strategies.opening import open_engine
from stores.strategies.spilled import TOKEN_BYTES, Spill

_SEAL = b"commit"
"""Meta entry: the marker of the commit, written when all of the transaction is here."""


class SecondStore(Spill):
    """The spill of one transaction, in ``parent``/NAME."""

    def __init__(self, engine: Engine, folder: Path, part_bytes: int) -> None:
        super().__init__(engine, b"", part_bytes)
        self.folder = folder

    @property
    def name(self) -> bytes:
        """What tells this transaction from all others: in hexadecimal, the name of its folder."""
        return bytes.fromhex(self.folder.name)

    @classmethod
    def begin(
        cls, kind: type[Engine], parent: Path, options: Mapping[str, object], part_bytes: int, *, split: bool
    ) -> Self:
        """Make one, with two data families if ``split``. Raises: CommitFailedError where the disk refuses: nothing of
        it is left then."""
        folder = parent / token_bytes(TOKEN_BYTES).hex()
        try:
            folder.mkdir(parents=True)
            return cls(_opened(kind, folder, options, split=split), folder, part_bytes)
        except (OSError, StoreError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise CommitFailedError(
                f"there is no room in memory for more of this transaction, and {folder} can't be made: {error}. Mend "
                "that and write again, or commit what there is"
            ) from error

    @classmethod
    def find(cls, kind: type[Engine], folder: Path, options: Mapping[str, object], part_bytes: int) -> Self:
        """The one that was sealed in ``folder``. Raises: OSError where there is none, and as ``Engine.open``."""
        if not any(folder.iterdir()):
            raise FileNotFoundError(0, "it is empty", str(folder))
        return cls(_opened(kind, folder, options, split=False), folder, part_bytes)

    def seal(self, meta: Mapping[bytes, bytes | None]) -> Marker:
        """Let it survive power loss, complete, with the meta entries of its commit. Raises: OSError, CommitFailedError.

        May be repeated, and added to meanwhile.
        """
        marker = Marker(0, self.name, True, tuple(self.ranges), meta)
        self.engine.write([], {_SEAL: marker.text().encode()})
        self.engine.persist()
        for folder in (self.folder, self.folder.parent, self.folder.parent.parent):
            sync_folder(folder)
        return marker

    def sealed(self) -> Marker:
        """What it was sealed with. Raises: DamagedMarkerError; as ``Engine.meta``."""
        return Marker.read_text(self.engine.meta().get(_SEAL, b""), self.folder)

    def close(self) -> None:
        """Close the engine, whatever that says: nothing counts that was not sealed."""
        with suppress(StoreError):
            self.engine.close()

    def remove(self) -> None:
        """Close it and remove what there is. What can't be removed is when the store is opened again."""
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):
            self.folder.parent.rmdir()


def _opened(kind: type[Engine], folder: Path, options: Mapping[str, object], *, split: bool) -> Engine:
    """The engine in ``folder``. A new one is given two data families if ``split``; one that is there has its own."""
    level = next(level for level in reversed(Durability) if level in kind.durabilities)
    engine = open_engine(kind, folder, level, options)
    if split:
        # As in the regular store: so a key of any length that this takes is one that can be spilled.
        engine.add_family()
        engine.write([], {FAMILIES: BOTH}, durable=False)
        engine.settle_families()
    return split_or_whole(engine)
