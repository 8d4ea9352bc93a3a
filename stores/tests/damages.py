"""Ways to damage a file, for tests of what a store or a task makes of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

PAGE_BYTES = 4096


def damages(size: int, seed: int) -> Iterator[tuple[str, Callable[[Path], object]]]:
    """Each way to take or change some of the ``size`` bytes of a file, with a name."""

    def garble(length: int) -> Callable[[Path], object]:
        def apply(file: Path) -> None:
            with open(file, "r+b") as stream:
                stream.write(Random(seed).randbytes(min(length, size)))

        return apply

    yield "removed", Path.unlink
    yield "emptied", lambda file: os.truncate(file, 0)
    if size:
        yield "cut", lambda file: os.truncate(file, size // 2)
        if size > PAGE_BYTES:
            yield "cut by a page", lambda file: os.truncate(file, size - PAGE_BYTES)
        yield "cut by a byte", lambda file: os.truncate(file, size - 1)
        yield "zeroed", lambda file: file.write_bytes(bytes(size))
        yield "garbled at its start", garble(64)
        yield "garbled in its first sector", garble(512)
        yield "garbled", garble(size)
