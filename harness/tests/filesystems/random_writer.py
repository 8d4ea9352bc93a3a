"""A random writer: a process that makes all common file calls on a few files, in an order drawn by a seed.

It runs in a child of the fork server.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from harness.experiments.iofaults.processes import to_plan
from harness.io_trace import recorder
from harness.tests.filesystems.writeback import write_something_back

_BYTES_MAX = 40_000
_FILES_MAX = 8
_WRITEBACK_SHARE = 0.3


def run(*, root: str, recording: str, beside: str, seed: int, calls: int, plan: list[Any]) -> int:
    """Make ``calls`` calls below the empty ``root``, with background writeback. Return the number of operations."""
    rng, writeback = Random(f"calls {seed}"), Random(f"writeback {seed}")
    recorder.begin(Path(root), Path(recording), to_plan(plan))
    writer = _RandomWriter(Path(root), rng)
    for _ in range(calls):
        writer.call()
        if writeback.random() < _WRITEBACK_SHARE:
            write_something_back(Path(root), Path(beside), writeback)
    return recorder.count()


class _RandomWriter:
    def __init__(self, root: Path, rng: Random) -> None:
        self._root, self._rng = root, rng
        self._made = 0
        self._files: list[Path] = []
        self._folders = [root]
        self._doing: list[tuple[int, Callable[[], None]]] = [
            (6, self._create),
            (8, self._append),
            (6, self._overwrite),
            (3, self._write_beyond),
            (2, self._write_synchronously),
            (3, self._truncate),
            (1, self._allocate),
            (4, lambda: self._sync(os.fsync)),
            (3, lambda: self._sync(os.fdatasync)),
            (2, self._sync_folder),
            (4, self._rename),
            (2, self._replace),
            (1, self._rename_folder),
            (2, self._link),
            (3, self._unlink),
            (1, self._mkdir),
        ]

    def call(self) -> None:
        weights = [weight for weight, _ in self._doing]
        do = self._rng.choices([do for _, do in self._doing], weights)[0]
        if not self._files or (do == self._create and len(self._files) >= _FILES_MAX):
            do = self._unlink if self._files else self._create
        do()

    def _create(self) -> None:
        path = self._new()
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        self._files.append(path)

    def _append(self) -> None:
        self._write(lambda size: size)

    def _overwrite(self) -> None:
        self._write(lambda size: self._rng.randrange(size + 1))

    def _write_beyond(self) -> None:
        self._write(lambda size: size + self._rng.randrange(_BYTES_MAX // 2))

    def _write_synchronously(self) -> None:
        self._write(lambda size: self._rng.randrange(size + 1), os.O_DSYNC)

    def _truncate(self) -> None:
        path = self._any()
        size = path.stat().st_size
        os.truncate(path, self._rng.choice((0, self._rng.randrange(size + 1), size + self._rng.randrange(9000))))

    def _allocate(self) -> None:
        descriptor = os.open(self._any(), os.O_WRONLY)
        os.posix_fallocate(descriptor, self._rng.randrange(_BYTES_MAX), self._rng.randint(1, _BYTES_MAX))
        os.close(descriptor)

    def _sync(self, how: Callable[[int], None]) -> None:
        self._through(self._any(), how)

    def _sync_folder(self) -> None:
        self._through(self._rng.choice(self._folders), os.fsync)

    def _rename(self) -> None:
        source, target = self._any(), self._new()
        os.rename(source, target)
        self._files[self._files.index(source)] = target

    def _replace(self) -> None:
        source, target = self._any(), self._any()
        if not target.samefile(source):
            os.rename(source, target)
            self._files.remove(source)

    def _rename_folder(self) -> None:
        if len(self._folders) > 1:
            source = self._rng.choice(self._folders[1:])
            target = source.with_name(f"{self._next('folder')}")
            os.rename(source, target)
            self._folders[self._folders.index(source)] = target
            self._files = [target / path.name if path.parent == source else path for path in self._files]

    def _link(self) -> None:
        target = self._new()
        os.link(self._any(), target)
        self._files.append(target)

    def _unlink(self) -> None:
        path = self._any()
        path.unlink()
        self._files.remove(path)

    def _mkdir(self) -> None:
        if len(self._folders) < 4:
            self._folders.append(self._root / self._next("folder"))
            self._folders[-1].mkdir()

    def _write(self, where: Callable[[int], int], flags: int = 0) -> None:
        descriptor = os.open(self._any(), os.O_WRONLY | flags)
        length = self._rng.choice((self._rng.randint(1, 300), 4096, self._rng.randint(1, _BYTES_MAX)))
        offset = where(os.fstat(descriptor).st_size)
        # No two sectors have the same bytes, so that none is explained by another one's value.
        os.pwrite(descriptor, self._rng.randbytes(length), offset)
        os.close(descriptor)

    def _through(self, path: Path, how: Callable[[int], None]) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        how(descriptor)
        os.close(descriptor)

    def _any(self) -> Path:
        return self._rng.choice(self._files)

    def _new(self) -> Path:
        return self._rng.choice(self._folders) / self._next("file")

    def _next(self, kind: str) -> str:
        self._made += 1
        return f"{kind}-{self._made}"
