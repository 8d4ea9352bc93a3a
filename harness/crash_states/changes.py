"""The changes of a recording: each is of the names of a file or of its bytes, and durable, pending or torn.

``Content`` is the bytes of one file, as a value that is cheap to change and cheap to compare: a tuple of pages, shared
between contents that differ elsewhere. Each page carries its own hash. The hash of a content is a sum over its pages,
so a change of one page costs one page, whatever the file's size. ``NameChange`` and ``DataChange`` are what one
operation changes. ``File`` is one file on a disk: its durable bytes, and pending changes, any of which may be lost or
torn.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from hashlib import blake2b
from random import Random

from harness.io_trace.recorder import IoOperation, Kind

PAGE_BYTES = 4096
_TOTAL_MASK = (1 << 128) - 1
_WRITTEN_AT_ONCE = 256

Page = tuple[bytes, int]
_ZERO: Page = (bytes(PAGE_BYTES), 0)


def _page(data: bytes) -> Page:
    # A page of zeros adds nothing to the sum, so that a hole equals zeros that were written.
    if data == _ZERO[0]:
        return _ZERO
    return data, int.from_bytes(blake2b(data, digest_size=16).digest(), "little")


class Content:
    """The bytes of a file. A content never changes: each change returns another content.

    Bytes of the last page beyond ``size`` are zeros, as they must be if the file grows again.
    """

    __slots__ = ("_digest", "_pages", "_total", "size")

    def __init__(self, size: int = 0, pages: tuple[Page, ...] = (), total: int = 0) -> None:
        self.size = size
        self._pages = pages
        self._total = total
        self._digest = b""

    @classmethod
    def of(cls, data: bytes) -> Content:
        """Return the content with the bytes ``data``."""
        return cls().written(0, data)

    @property
    def digest(self) -> bytes:
        """A hash of 24 bytes: equal for equal bytes, and different for others but for negligible chance."""
        if not self._digest:
            self._digest = self.size.to_bytes(8, "little") + self._total.to_bytes(16, "little")
        return self._digest

    def written(self, offset: int, data: bytes) -> Content:
        """Return the content with ``data`` at ``offset``. Bytes between the old end and ``offset`` are zeros."""
        if not data:
            return self
        end = offset + len(data)
        pages = list(self._pages)
        beyond = -(-end // PAGE_BYTES)
        if beyond > len(pages):
            pages.extend([_ZERO] * (beyond - len(pages)))
        total = self._total
        for number in range(offset // PAGE_BYTES, beyond):
            begin = number * PAGE_BYTES
            first, last = max(offset - begin, 0), min(end - begin, PAGE_BYTES)
            old, mark = pages[number]
            new = data[begin + first - offset : begin + last - offset]
            if last - first < PAGE_BYTES:
                new = old[:first] + new + old[last:]
            if new != old:
                pages[number] = page = _page(new)
                total += (page[1] - mark) * (2 * number + 1)
        return Content(max(self.size, end), tuple(pages), total & _TOTAL_MASK)

    def resized(self, length: int) -> Content:
        """Return the content cut to ``length`` bytes, or with zeros appended up to there."""
        pages = self._pages[: -(-length // PAGE_BYTES)]
        total = self._total
        for number in range(len(pages), len(self._pages)):
            total -= self._pages[number][1] * (2 * number + 1)
        inside = length % PAGE_BYTES
        if length < self.size and inside:
            number = len(pages) - 1
            page = _page(pages[number][0][:inside].ljust(PAGE_BYTES, b"\0"))
            total += (page[1] - pages[number][1]) * (2 * number + 1)
            pages = (*pages[:-1], page)
        missing = -(-length // PAGE_BYTES) - len(pages)
        return Content(length, pages + (_ZERO,) * missing, total & _TOTAL_MASK)

    def read(self) -> bytes:
        """Return all bytes."""
        return b"".join([data for data, _ in self._pages])[: self.size]

    def write_to(self, descriptor: int) -> None:
        """Write the bytes into an empty file that is open for writing. Pages of zeros become holes."""
        pages = self._pages
        at = 0
        while at < len(pages):
            if pages[at] is _ZERO:
                at += 1
                continue
            upto = at + 1
            while upto < len(pages) and upto - at < _WRITTEN_AT_ONCE and pages[upto] is not _ZERO:
                upto += 1
            data = b"".join([page for page, _ in pages[at:upto]])[: self.size - at * PAGE_BYTES]
            length = os.pwrite(descriptor, data, at * PAGE_BYTES)
            if length != len(data):
                raise OSError(f"only {length} of {len(data)} bytes of a state were written")
            at = upto
        if not pages or pages[-1] is _ZERO:
            os.ftruncate(descriptor, self.size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Content({self.size} bytes, {self._total:x})"


Entry = tuple[int, str]
"""A folder's number, and a name in it."""


@dataclass(frozen=True, slots=True)
class NameChange:
    """A change of names: the entries ``removed``, and the entry ``added``, which names ``file`` from now on."""

    index: int
    file: int
    removed: tuple[Entry, ...]
    added: Entry | None
    creates: bool
    bit: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bit", 1 << self.index)

    @property
    def folders(self) -> frozenset[int]:
        """The folders whose entries it changes."""
        return frozenset(folder for folder, _ in (*self.removed, *((self.added,) if self.added else ())))

    def apply(self, names: dict[Entry, int]) -> None:
        for entry in self.removed:
            names.pop(entry, None)
        if self.added is not None:
            names[self.added] = self.file


@dataclass(frozen=True, slots=True)
class DataChange:
    """A change of the bytes or the size of ``file``. ``grows`` is True if it made the file longer.

    ``gap`` is the distance from the old end to the beginning of the write.
    """

    index: int
    file: int
    operation: IoOperation
    grows: bool
    gap: int = 0
    bit: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bit", 1 << self.index)

    def is_of(self, patterns: tuple[str, ...]) -> bool:
        """Return True if the file's path at the time of the change matches ``patterns``."""
        return matches(self.operation.path, patterns)

    def apply(self, content: Content) -> Content:
        operation = self.operation
        if operation.kind is Kind.WRITE:
            return content.written(operation.offset, operation.data)
        if operation.kind is Kind.TRUNCATE:
            return content.resized(operation.length)
        return content.resized(max(content.size, operation.offset + operation.length))


Change = NameChange | DataChange


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    """Return True if ``path`` matches one of ``patterns``, in which ``*`` stands for any text, ``/`` too."""
    return any(fnmatchcase(path, pattern) for pattern in patterns)


class Rest(StrEnum):
    """The content of the rest of a torn write."""

    MISSING = "missing"
    """Nothing was written after the tear, and the size does not include it."""
    ZEROS = "zeros"
    """Nothing was written after the tear, but the size includes it."""
    BEFORE = "before"
    """The part before the tear was not written; the part after it was."""
    NOISE = "noise"
    """As ``ZEROS``, but with earlier bytes of the disk, for which noise stands. Beyond the model."""


@dataclass(frozen=True, slots=True)
class WriteTear:
    """A tear of write ``operation``, ``at`` so many of its bytes.

    A negative ``at`` with ``MISSING``: nothing of the write was written, nor so many of the zeros before it.
    """

    operation: int
    at: int
    rest: Rest


def torn(content: Content, change: DataChange, tear: WriteTear) -> Content:
    """Return ``content`` with the part of the write that reached the disk."""
    operation = change.operation
    head, end = operation.data[: max(tear.at, 0)], operation.offset + len(operation.data)
    if tear.at < 0:
        return content.resized(max(content.size, operation.offset + tear.at))
    if tear.rest is Rest.BEFORE:
        return content.written(operation.offset + tear.at, operation.data[tear.at :])
    size = content.size
    if tear.rest in (Rest.ZEROS, Rest.NOISE):
        content = content.resized(max(size, end))
    if tear.rest is Rest.NOISE:
        start = max(size, operation.offset + tear.at)
        noise = Random(f"{tear.operation} {tear.at}").randbytes(max(end - start, 0))
        content = content.written(start, noise)
    return content.written(operation.offset, head)


class File:
    """One file: its durable content, and its later changes. Changes in ``durable_bits`` are durable on their own."""

    def __init__(self, content: Content) -> None:
        self.content = content
        self.changes: list[DataChange] = []
        self.bits = 0
        self.durable_bits = 0
        self._made: dict[int, Content] = {}
        self._made_before: dict[int, Content] = {}

    def add(self, change: DataChange) -> None:
        self.changes.append(change)
        self.bits |= change.bit

    def grown_at(self) -> int:
        """Return the index of the last pending change that extended the file, or -1."""
        pending = (change for change in self.changes if not change.bit & self.durable_bits)
        return max((change.index for change in pending if change.grows), default=-1)

    def turn(self) -> None:
        """Drop cached contents that were used neither at this position nor at the one before."""
        if self._made:
            self._made_before, self._made = self._made, {}

    def with_kept(self, kept: int, tears: tuple[WriteTear, ...] = ()) -> Content:
        """Return the content with the changes whose bits are ``kept``, and all durable ones."""
        kept = (kept | self.durable_bits) & self.bits
        torn_ones = {1 << tear.operation: tear for tear in tears if kept >> tear.operation & 1} if tears else None
        if not torn_ones:
            return self._made.get(kept) or self._with(kept)
        first = min(torn_ones)
        content = self._with(kept & (first - 1))
        for change in self.changes:
            if change.bit in torn_ones:
                content = torn(content, change, torn_ones[change.bit])
            elif change.bit & kept and change.bit > first:
                content = change.apply(content)
        return content

    def _with(self, kept: int) -> Content:
        # States of adjacent positions differ in their last change, so each is derived from the state without it.
        whole = kept
        later: list[tuple[DataChange, int]] = []
        for change in reversed(self.changes):
            if not kept or kept in self._made or kept in self._made_before:
                break
            if change.bit & kept:
                later.append((change, kept))
                kept ^= change.bit
        nearest = self._made.get(kept) or self._made_before.get(kept)
        content = self.content if nearest is None else nearest
        for change, bits in reversed(later):
            content = change.apply(content)
            self._made[bits] = content
        self._made[whole] = content
        return content
