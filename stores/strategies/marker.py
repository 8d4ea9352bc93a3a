"""The commit marker of a dual store: a file that says a transaction is complete and may be rolled forward.

It comes into being in one step: written beside, synced, renamed, its folder synced; the syncs are left out where a
commit need not survive power loss. Its first line is the CRC-32 of
the second, so that a damaged one is noticed. Source: KIP-844, "Transactions via Secondary State Store" (commit file).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from stores.failpoints import declare, reach
from stores.files import StrangeFileError, make_file, read_file, sync_folder
from stores.ranges import Bounds

MARKER_WRITTEN = declare("dual_store.marker_written", "the marker is written beside its place, not yet synced")
MARKER_SYNCED = declare(
    "dual_store.marker_synced",
    "the marker is in place, and synced where the level asks for it; nothing is copied",
)


_BYTES_MAX = 1 << 30
"""More than the bounds of all range deletes of a transaction take."""


class DamagedMarkerError(ValueError):
    """The marker's bytes are not those that were written."""


@dataclass(frozen=True)
class Marker:
    """What is needed, beside the staged writes themselves, to carry a commit out."""

    sequence: int
    """Number of the commit, one above that of the committed store below it."""
    token: bytes
    """Eight random bytes before each of the transaction's keys in the second store, and in its seal. Numbers won't do:
    a crash at CHANGELOG may take the store some commits back, and the second store show old contents when they return.
    """
    in_parts: bool
    """Whether the copy takes more than one write, so that a part of it may already be in the store."""
    ranges: tuple[Bounds, ...]
    """Staged range deletes: they go before the staged writes."""
    meta: Mapping[bytes, bytes | None]
    """Offsets and position, as meta entries."""

    @property
    def seal(self) -> bytes:
        """What the second store holds, in the same write as the last of the transaction's own."""
        return self.sequence.to_bytes(8, "big") + bytes([self.in_parts]) + self.token

    def text(self) -> str:
        """The marker as it is kept: its checksum in a line, and all the rest in another."""
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
        """Put the marker at ``path``; ``durable`` syncs it and its folder."""
        new = path.with_name(path.name + ".new")
        with open(make_file(new), "w") as file:
            file.write(self.text())
            file.flush()
            reach(MARKER_WRITTEN)
            if durable:
                os.fsync(file.fileno())
        new.replace(path)
        if durable:
            sync_folder(path.parent)
        reach(MARKER_SYNCED)

    @classmethod
    def read(cls, path: Path) -> Marker | None:
        """The marker at ``path``, or None where there is none. Raises DamagedMarkerError."""
        try:
            raw = read_file(path, _BYTES_MAX)
        except FileNotFoundError:
            return None
        except StrangeFileError as error:
            raise DamagedMarkerError(str(error)) from error
        return cls.read_text(raw, path)

    @classmethod
    def read_text(cls, raw: bytes, where: Path) -> Marker:
        """The marker that ``text`` gave, and ``where`` was found. Raises DamagedMarkerError."""
        try:
            checksum, text = raw.decode().split("\n")[:2]
            if int(checksum, 16) != crc32(text.encode()):
                raise DamagedMarkerError(f"{where} fails its checksum")
            told = json.loads(text)
            return cls(
                sequence=told["sequence"],
                token=bytes.fromhex(told["token"]),
                in_parts=told["in_parts"],
                ranges=tuple((_bytes(start), _bytes(end)) for start, end in told["ranges"]),
                meta={bytes.fromhex(key): _bytes(value) for key, value in told["meta"].items()},
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedMarkerError(f"{where} is damaged: {error}") from error


def _hex(given: bytes | None) -> str | None:
    return None if given is None else given.hex()


def _bytes(given: str | None) -> bytes | None:
    return None if given is None else bytes.fromhex(given)
