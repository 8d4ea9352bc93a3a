"""The bytes of one file, as a value that is cheap to change and cheap to compare.

A content is a tuple of pages, shared between contents that differ elsewhere. Each page carries its own hash. The hash
of a content is a sum over its pages, so a change of one page costs one page, whatever the file's size.
"""

from __future__ import annotations

import os
from hashlib import blake2b

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
            written = os.pwrite(descriptor, data, at * PAGE_BYTES)
            if written != len(data):
                raise OSError(f"only {written} of {len(data)} bytes of a state were written")
            at = upto
        if not pages or pages[-1] is _ZERO:
            os.ftruncate(descriptor, self.size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Content({self.size} bytes, {self._total:x})"
