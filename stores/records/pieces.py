"""Writes of many pairs in pieces of a bounded size, without a commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from stores.interface import KeyValueStore

PIECE_BYTES: Final = 1 << 20
"""The keys and values of one write of ``restore_in_pieces``."""
Pairs = list[tuple[bytes, bytes | None]]
"""Keys and values to write; None deletes."""


def restore_in_pieces(store: KeyValueStore, steps: Iterable[Pairs]) -> None:
    """Write pairs as restores of a bounded size. A kill between two of them keeps the first. No step is cut."""
    for piece in in_pieces(steps, PIECE_BYTES):
        store.restore(piece, {})


def in_pieces(steps: Iterable[Sequence[tuple[bytes, bytes | None]]], num_bytes: int) -> Iterator[Pairs]:
    """Join ``steps`` to pieces of about ``num_bytes`` of keys and values. No step is cut."""
    piece: Pairs = []
    piece_bytes = 0
    for step in steps:
        piece += step
        piece_bytes += sum(len(key) + len(value or b"") for key, value in step)
        if piece_bytes >= num_bytes:
            yield piece
            piece, piece_bytes = [], 0
    if piece:
        yield piece
