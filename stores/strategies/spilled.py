"""Staged writes as a dual store's second store keeps them: keys behind a transaction's token, values behind a tag."""

from __future__ import annotations

from collections.abc import Iterator

from stores.engines.engine import Scan
from stores.merge import Staged, StagedWrites

TOKEN_BYTES = 8
"""Length of the token before each key."""
_VALUE, _TOMBSTONE = b"\x01", b"\x00"


class SpilledWrites(StagedWrites):
    """Writes that are in the second store, in the order of ``scan``."""

    def __init__(self, scan: Scan, *, reverse: bool) -> None:
        self._scan, self._reverse = scan, reverse
        self._next: list[Staged] = []

    def take_to(self, key: bytes) -> Iterator[list[Staged]]:
        while self._fill():
            cut = sum(staged[0] >= key if self._reverse else staged[0] <= key for staged in self._next)
            taken, self._next = self._next[:cut], self._next[cut:]
            if taken:
                yield taken[::-1] if self._reverse else taken
            if self._next:
                break

    def take_some(self) -> list[Staged]:
        self._fill()
        taken, self._next = self._next, []
        return taken[::-1] if self._reverse else taken

    def _fill(self) -> bool:
        if not self._next:
            self._next = [(key[TOKEN_BYTES:], untagged(tagged)) for key, tagged in self._scan.fetch()]
        return bool(self._next)


def after(token: bytes) -> bytes:
    """The end of the keys behind ``token``; it is no key itself. A token begins with a zero, so there is always one."""
    return (int.from_bytes(token, "big") + 1).to_bytes(TOKEN_BYTES, "big")


def tagged(value: bytes | None) -> bytes:
    """A staged value, or a delete, as the second store keeps it."""
    return _TOMBSTONE if value is None else _VALUE + value


def untagged(kept: bytes) -> bytes | None:
    """The staged value, or None for a delete."""
    return kept[1:] if kept[:1] == _VALUE else None
