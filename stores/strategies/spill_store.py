"""The spill database of an indexed-batch store: same engine, one folder for each transaction that outgrows memory.

It is opened at the highest durability level of the engine, whatever the store's level is. It is written without a sync
until its commit record: recovery needs the complete spill once the commit point is durable (``NameInMetaEntries``).
Its keys are those of the store, of the same maximum length. A folder holds one transaction, so keys need no token.
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
from stores.files.plain_files import sync_folder
from stores.interface import Durability
from stores.strategies.commit_marker import Marker
from stores.strategies.opening import open_engine
from stores.strategies.spilled import TOKEN_BYTES, Spill

_SEAL = b"commit"
"""Meta entry: the commit record, in the form of a marker. It is written after all of the transaction."""


class SecondStore(Spill):
    """The spill of one transaction, in a folder with a random name."""

    def __init__(self, engine: Engine, folder: Path, part_bytes: int) -> None:
        super().__init__(engine, b"", part_bytes)
        self.folder = folder

    @property
    def name(self) -> bytes:
        """The random bytes that identify this transaction. In hexadecimal they are the folder's name."""
        return bytes.fromhex(self.folder.name)

    @classmethod
    def begin(
        cls, kind: type[Engine], parent: Path, options: Mapping[str, object], part_bytes: int, *, split: bool
    ) -> Self:
        """Create a spill database, with two data families if ``split``.

        Raises: CommitFailedError if the disk refuses it; then nothing of it is left.
        """
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
        """Open the spill database in ``folder``. Raises: OSError if there is none; the errors of ``Engine.open``."""
        if not any(folder.iterdir()):
            raise FileNotFoundError(0, "it is empty", str(folder))
        return cls(_opened(kind, folder, options, split=False), folder, part_bytes)

    def seal(self, meta: Mapping[bytes, bytes | None]) -> Marker:
        """Write the commit record with the meta entries of the commit, and sync the whole spill with its folders.

        May be repeated after more writes were spilled. Raises: OSError, CommitFailedError.
        """
        marker = Marker(0, self.name, True, tuple(self.ranges), meta)
        self.engine.write([], {_SEAL: marker.text().encode()})
        self.engine.persist()
        for folder in (self.folder, self.folder.parent, self.folder.parent.parent):
            sync_folder(folder)
        return marker

    def sealed(self) -> Marker:
        """Return the commit record. Raises: DamagedMarkerError; the errors of ``Engine.meta``."""
        return Marker.read_text(self.engine.meta().get(_SEAL, b""), self.folder)

    def close(self) -> None:
        """Close the engine and ignore its errors: data without a commit record does not count."""
        with suppress(StoreError):
            self.engine.close()

    def remove(self) -> None:
        """Close the engine and remove the folder. Files that can't be removed go when the store is opened again."""
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):
            self.folder.parent.rmdir()


def _opened(kind: type[Engine], folder: Path, options: Mapping[str, object], *, split: bool) -> Engine:
    """Open the engine in ``folder``. A new one gets two data families if ``split``; an existing one keeps its own."""
    level = next(level for level in reversed(Durability) if level in kind.durabilities)
    engine = open_engine(kind, folder, level, options)
    if split:
        # The same families as the regular store: then every key that the store accepts can also be spilled.
        engine.add_family()
        engine.write([], {FAMILIES: BOTH}, durable=False)
        engine.select_families()
    return split_or_whole(engine)
