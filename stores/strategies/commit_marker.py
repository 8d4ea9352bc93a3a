"""The commit marker of a dual store: a file which records that a transaction is complete and is rolled forward.

It is created atomically: written to a temporary file, synced, renamed, and its folder synced. Without ``durable`` both
syncs are left out. Its first line is the CRC-32 of the second, which detects corruption.

Source: KIP-844, "Transactions via Secondary State Store" (commit file).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

from stores.failpoints import declare, reach
from stores.files.plain_files import StrangeFileError, atomic_write, parsed_json, read_file
from stores.ordered.ranges import Bounds

MARKER_WRITTEN = declare("dual_store.marker_written", "the marker is written beside its place, not yet synced")
MARKER_SYNCED = declare(
    "dual_store.marker_synced",
    "the marker is in place, and synced where the level asks for it; nothing is copied",
)


_BYTES_MAX = 1 << 30
"""An upper bound of a marker's size: the bounds of a transaction's range deletes take less."""


class DamagedMarkerError(ValueError):
    """The marker's bytes are not those that were written."""


@dataclass(frozen=True)
class Marker:
    """Everything that completing a commit needs, except the staged writes."""

    sequence: int
    """Number of the commit: one more than that of the last commit in the regular store; 0 for an indexed batch."""
    token: bytes
    """Eight random bytes: the prefix of the transaction's keys in the staging store, and part of its commit record.

    The commit's number is not enough. At CHANGELOG a crash may roll the regular store back by some commits. The numbers
    are then used again, while the staging store may still have the writes of the earlier commit with the same number.
    """
    in_parts: bool
    """True if the copy takes more than one write, so that a part of it may already be in the regular store."""
    ranges: tuple[Bounds, ...]
    """Staged range deletes. They are applied before the staged writes."""
    meta: Mapping[bytes, bytes | None]
    """Offsets and position, as meta entries."""

    @property
    def seal(self) -> bytes:
        """The commit record in the staging store, added in the same write as the transaction's last data."""
        return self.sequence.to_bytes(8, "big") + bytes([self.in_parts]) + self.token

    def text(self) -> str:
        """Return the contents of the file: a line with the checksum, and a line with the rest."""
        text = json.dumps(
            {
                "sequence": self.sequence,
                "token": self.token.hex(),
                "in_parts": self.in_parts,
                "ranges": [[_hex(start), _hex(end)] for start, end in self.ranges],
                "meta": {key.hex(): _hex(value) for key, value in self.meta.items()},
            }
        )
        return f"{crc32(text.encode()):08x}\n{text}\n"

    def write(self, path: Path, *, durable: bool) -> None:
        """Write the marker to ``path``. ``durable`` syncs it and its folder."""
        atomic_write(path, self.text().encode(), durable=durable, before_sync=partial(reach, MARKER_WRITTEN))
        reach(MARKER_SYNCED)

    @classmethod
    def read(cls, path: Path) -> Marker | None:
        """Return the marker at ``path``, or None if there is none. Raises: DamagedMarkerError, OSError."""
        try:
            raw = read_file(path, _BYTES_MAX)
        except FileNotFoundError:
            return None
        except StrangeFileError as error:
            raise DamagedMarkerError(str(error)) from error
        return cls.read_text(raw, path)

    @classmethod
    def read_text(cls, raw: bytes, where: Path) -> Marker:
        """Parse the bytes of ``text``. ``where`` names their place in errors. Raises: DamagedMarkerError."""
        try:
            checksum, text = raw.decode().split("\n")[:2]
            if int(checksum, 16) != crc32(text.encode()):
                raise DamagedMarkerError(f"{where} fails its checksum")
            told: Any = parsed_json(text)
            sequence, in_parts = told["sequence"], told["in_parts"]
            if type(sequence) is not int or not 0 <= sequence < 1 << 64 or not isinstance(in_parts, bool):
                raise ValueError(f"commit {sequence!r} can't be")
            return cls(
                sequence=sequence,
                token=bytes.fromhex(told["token"]),
                in_parts=in_parts,
                ranges=tuple((_bytes(start), _bytes(end)) for start, end in told["ranges"]),
                meta={bytes.fromhex(key): _bytes(value) for key, value in told["meta"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedMarkerError(f"{where} is damaged: {error}") from error


def _hex(given: bytes | None) -> str | None:
    return None if given is None else given.hex()


def _bytes(given: str | None) -> bytes | None:
    return None if given is None else bytes.fromhex(given)
