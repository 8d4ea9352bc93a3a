"""A process killed on a real file system, and a power cut after it: its operations, and the files found afterwards."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from harness.crash_states.files import Tree
from harness.crash_states.model import numbered
from harness.io_trace.recorder import IoOperation, read_recording
from harness.processes.fork_server import ForkServer
from harness.tests.filesystems.images import FileSystem, ImageError, copied_as_cut, mounted
from harness.tests.filesystems.writeback import write_something_back

_DEADLINE_S = 120.0
_WRITEBACKS = 3
"""The number of background writebacks between two copies."""


@dataclass(frozen=True, slots=True)
class Crash:
    """The operations of the process, and the tree found after each power cut, the earliest cut first."""

    recording: Sequence[IoOperation]
    found: Sequence[Tree]

    @property
    def position(self) -> int:
        """The position at which the process was killed."""
        return len(numbered(self.recording))


def crash(
    fork_server: ForkServer,
    kind: FileSystem,
    folder: Path,
    seed: int,
    function: str,
    arguments: dict[str, Any],
    cuts: int,
) -> Crash:
    """Run ``function`` on a new file system, kill it as ``arguments`` plan, then cut the power ``cuts`` times.

    The function gets the folder ``root``, the file ``recording`` and ``arguments``. If these contain ``beside``, it
    causes background writeback itself, and ``beside`` is the path of a file for that. ``folder`` must be empty, and is
    empty afterwards. Raises: ImageError.
    """
    image, recording = folder / "image", folder / "recording"
    copies = [folder / f"cut {number}" for number in range(cuts)]
    rng = Random(f"cuts {seed}")
    try:
        kind.make_in(image)
        with mounted(image, folder / "mounted", kind.mounted_with) as place:
            root, beside = place / "root", place / "beside"
            root.mkdir()
            for made in (root, place):
                _sync(made)
            writes_back_itself = "beside" in arguments
            given = arguments | {"root": str(root), "recording": str(recording)}
            given |= {"beside": str(beside)} if writes_back_itself else {}
            with _background_writeback(root, beside, None if writes_back_itself else rng):
                outcome = fork_server.run(function, given, deadline_s=_DEADLINE_S)
            if outcome.timed_out or (outcome.signal is None and outcome.status != 0):
                raise ImageError(f"the writer was to be killed or to end: {outcome}")
            for copy in copies:
                copied_as_cut(image, copy)
                for _ in range(_WRITEBACKS):
                    write_something_back(root, beside, rng)
        return Crash(read_recording(recording), [_found(copy, folder / "mounted", kind) for copy in copies])
    finally:
        for file in (image, recording, *copies):
            file.unlink(missing_ok=True)


def _found(copy: Path, place: Path, kind: FileSystem) -> Tree:
    """Return the files that the file system shows after it has replayed its journal."""
    with mounted(copy, place):
        return Tree.read(place / "root")


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _background_writeback(root: Path, beside: Path, rng: Random | None) -> Iterator[None]:
    """Cause background writeback at random times during the block; none without ``rng``."""
    over = threading.Event()

    def write_back_at_random(rng: Random) -> None:
        while not over.wait(rng.uniform(0, 0.01)):
            with suppress(FileNotFoundError):
                write_something_back(root, beside, rng)

    threads = [] if rng is None else [threading.Thread(target=write_back_at_random, args=(rng,))]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
