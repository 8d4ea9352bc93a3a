"""The changes of an engine's data since an earlier commit, as a file: the keys that were written, and their values.

Writes at random change nearly all pages of a file that is changed in place. So a snapshot of such an engine may consist
of the files of an earlier one, and of what has changed since. Only keys are kept for that, in memory
(``stores.changed_keys``). Their values are read from a read transaction of the new commit.

A file of changes has blocks of pairs, little-endian:

    kind                      1 byte    R ranges that were removed, M all meta entries, K keys with their values
    count                     4 bytes
    lengths                   4 bytes for each first part, then for each second part: 0 for none, else the length plus 1
    first parts, second parts

They come in this order, keys in ascending order. A key without a value was deleted.

Source: O'Neil et al., "The Log-Structured Merge-Tree", 1996; Flink, "Incremental Checkpoints".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import accumulate, islice, pairwise
from pathlib import Path
from struct import calcsize, pack, unpack
from typing import IO, Protocol

from stores.changed_keys import ChangedKeys
from stores.engines.engine import Capture, Engine, Writes
from stores.errors import StoreCorruptedError, StoreUnavailableError
from stores.files.plain_files import translated_system_errors
from stores.ordered import SORTED_AT_ONCE

CHANGES_FILE = "changes"
_RANGES, _META, _KEYS = b"R", b"M", b"K"
_HEAD = "<cI"
_PAIRS_AT_ONCE, _BLOCK_BYTES = 64, 1 << 20
"""A block has so many pairs at most: values may be much larger than those before them."""

Part = bytes | None
_Pairs = Sequence[tuple[Part, Part]]


class ChangesReading(Protocol):
    """A read transaction for the values of the first data family. ``end`` may be called on any thread."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of ``keys``. Raises: StoreCorruptedError; StoreUnavailableError, also after ``end``."""

    def end(self) -> None:
        """Release it, once a call of ``get_many`` has ended. May be called more than once."""


class ChangesCapture(Capture):
    """A capture of the changes in ``runs``, as one file: the meta entries, and the values as ``reading`` has them."""

    def __init__(
        self, reading: ChangesReading, meta: Mapping[bytes, bytes], runs: Sequence[ChangedKeys], folder: Path
    ) -> None:
        """Begin it. ``runs`` follow each other. The last one joins the others when it is complete.

        Raises: StoreUnavailableError.
        """
        self._reading, self._meta, self._runs, self._folder = reading, meta, runs, folder
        try:
            with translated_system_errors(folder):
                folder.mkdir()
        except BaseException:
            self.end()
            raise

    def complete(self) -> None:
        try:
            *earlier, changed = self._runs
            for run in earlier:
                changed.join(run)
            keys, ranges = changed.keys, changed.ranges
            # Looked at last: they may be released meanwhile, and later without harm.
            if not changed.complete:
                raise StoreUnavailableError("the changed keys were forgotten meanwhile: the next snapshot is whole")
            with translated_system_errors(self._folder), open(self._folder / CHANGES_FILE, "xb") as file:
                _write(file, _RANGES, list(ranges))
                _write(file, _META, list(self._meta.items()))
                for pairs in self._pairs(_in_order(keys)):
                    _write(file, _KEYS, pairs)
        finally:
            self.end()

    def _pairs(self, keys: Iterator[bytes]) -> Iterator[_Pairs]:
        count = 1
        while some := list(islice(keys, count)):
            values = self._reading.get_many(some)
            yield list(zip(some, values, strict=True))
            # About a megabyte, if the next ones are as large as these.
            num_bytes = sum(map(len, some)) + sum(len(value) for value in values if value is not None)
            count = min(_PAIRS_AT_ONCE, 2 * count, 1 + _BLOCK_BYTES * len(some) // num_bytes)

    def end(self) -> None:
        self._reading.end()


def _in_order(keys: Iterable[bytes]) -> Iterator[bytes]:
    """Return the keys in order. They are sorted a piece at a time, because all other threads wait for each sort."""
    rest = iter(keys)
    return merge(*iter(lambda: sorted(islice(rest, SORTED_AT_ONCE)), []))


def apply_changes(path: Path, engine: Engine, applied: Callable[[], None] = lambda: None) -> None:
    """Write the changes in the file ``path`` to ``engine``, which has the data of the commit before them.

    ``applied`` is called again and again. An exception in it ends the call.

    Raises: StoreCorruptedError, StoreUnavailableError, CommitFailedError.
    """
    meta: dict[bytes, Part] = dict.fromkeys(engine.meta())
    with translated_system_errors(path), open(path, "rb") as file:
        for kind, pairs in _blocks(file):
            if kind == _META:
                meta.update((_present(name), value) for name, value in pairs)
            elif kind == _RANGES:
                engine.write([Writes(pairs, {})], {}, durable=False)
            elif kind == _KEYS:
                engine.write([Writes((), {_present(key): value for key, value in pairs})], {}, durable=False)
            else:
                raise StoreCorruptedError(f"a file of changes has a block of the kind {kind!r}: remove the snapshot")
            applied()
    engine.write([], meta)


def _write(file: IO[bytes], kind: bytes, pairs: _Pairs) -> None:
    columns = [[pair[at] for pair in pairs] for at in range(2)]
    lengths = [0 if part is None else 1 + len(part) for column in columns for part in column]
    file.write(pack(_HEAD, kind, len(pairs)) + pack(f"<{len(lengths)}I", *lengths))
    file.writelines(part for column in columns for part in column if part is not None)


def _blocks(file: IO[bytes]) -> Iterator[tuple[bytes, _Pairs]]:
    num_bytes = os.fstat(file.fileno()).st_size
    while file.tell() < num_bytes:
        kind, count = unpack(_HEAD, _read(file, calcsize(_HEAD)))
        lengths = unpack(f"<{2 * count}I", _read(file, 8 * count))
        sizes = [max(length - 1, 0) for length in lengths]
        content = _read(file, sum(sizes))
        places = pairwise(accumulate(sizes, initial=0))
        parts = [content[start:end] if length else None for length, (start, end) in zip(lengths, places, strict=True)]
        yield kind, list(zip(parts[:count], parts[count:], strict=True))


def _read(file: IO[bytes], num_bytes: int) -> bytes:
    # A damaged length may be larger than memory: no more is asked for than there is.
    left = os.fstat(file.fileno()).st_size - file.tell()
    if num_bytes > left:
        raise StoreCorruptedError(f"a file of changes ends {num_bytes - left:,} bytes too early: remove the snapshot")
    return file.read(num_bytes)


def _present(part: Part) -> bytes:
    if part is None:
        raise StoreCorruptedError("a file of changes has a value without a key: remove the snapshot")
    return part
