"""The interface of an engine that takes over files of sorted entries, which the strategy ``sst-ingest`` needs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path

from stores.engines.engine import Engine, Meta

FilePart = tuple[Sequence[bytes], Sequence[bytes | None]]
"""Keys of a file and their values, ascending; None deletes."""

INGESTED = f"{'[0-9a-f]' * 16}-{'[0-9]' * 6}.sst"
"""The pattern of the names of files that are ingested: 16 digits of the commit, and the number of the file in it."""


def ingested_name(commit: str, number: int) -> str:
    """Return the name of a file that is to be ingested, see ``INGESTED``."""
    return f"{commit}-{number:06}.sst"


class IngestingEngine(Engine):
    """An engine that takes over files of sorted entries: one call makes all of them visible, atomically and durably.

    Its files hold the first data family in use. A strategy uses this while one family is in use, on an engine that is
    open at DISK: then no earlier write can be lost while a later file stays.
    """

    @abstractmethod
    def write_file(self, path: Path, parts: Iterable[FilePart], meta: Meta | None) -> None:
        """Write a file for ``ingest``. Keys ascend over all of ``parts``.

        ``meta`` are changes of the meta entries; None in all files of a commit but the first. The engine itself does
        not change. Raises: CommitFailedError without ``reopen``; no file is left.
        """

    @abstractmethod
    def ingest(self, files: Sequence[Path]) -> None:
        """Take over the files in one atomic and durable step.

        They lie in the folder beside the engine's whose name has the end ``.tmp``, under ``ingested_name``. No key is
        in two of them. They are gone afterwards. If this fails, they stay: the next opening may need them.
        Raises: CommitFailedError.
        """
