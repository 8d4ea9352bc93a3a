"""File systems in image files: created, mounted over a loop device, and copied at any moment, as a power cut does.

Writes that a loop device has completed can be read from its image file. Data that the mounted file system still holds
in memory cannot. So a copy has the content of a disk that keeps all completed writes, and no others. A disk that also
loses writes since its last flush is not simulated.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_AT_ONCE_BYTES = 1 << 20
_DEADLINE_S = 600.0


class ImageError(Exception):
    """A file system could not be created, mounted or copied on this machine, so there is no verdict."""


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A kind of file system. ``make`` is the command that creates it; the image file follows as its last argument."""

    name: str
    make: tuple[str, ...]
    size_bytes: int
    mounted_with: str = ""

    def make_in(self, image: Path) -> None:
        """Create it, empty, in the new file ``image``, which has holes. Raises: ImageError."""
        with image.open("xb") as file:
            file.truncate(self.size_bytes)
        _call(*self.make, str(image))
        # A journal full of zeros would be copied with each cut.
        _call("fallocate", "--dig-holes", str(image))


FILE_SYSTEMS = (
    FileSystem(
        "ext4", ("mkfs.ext4", "-q", "-F", "-b", "4096", "-J", "size=4", "-E", "nodiscard"), 64 << 20, "commit=1"
    ),
    # The smallest size that mkfs.xfs accepts.
    FileSystem("xfs", ("mkfs.xfs", "-q", "-f", "-K"), 300 << 20),
)
"""The file systems with which the model is compared. ext4 commits its journal every second instead of every fifth."""


def missing_for(kind: FileSystem, folder: Path) -> str:
    """Return the reason why images of ``kind`` cannot be mounted here, or "". It is tried below ``folder``."""
    if os.geteuid() != 0:
        return "only root may mount an image"
    for program in (kind.make[0], "mount", "umount"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    image, place = folder / "tried.img", folder / "tried"
    try:
        kind.make_in(image)
        with mounted(image, place, kind.mounted_with):
            return ""
    except ImageError as error:
        return str(error)
    finally:
        image.unlink(missing_ok=True)


@contextmanager
def mounted(image: Path, place: Path, options: str = "") -> Iterator[Path]:
    """Mount the file system of ``image`` at the new folder ``place``. Remove the folder and the loop device afterwards.

    Raises: ImageError.
    """
    place.mkdir()
    try:
        _call("mount", "-o", ",".join(filter(None, ("loop", options))), str(image), str(place))
        try:
            yield place
        finally:
            _unmount(place)
    finally:
        place.rmdir()


def copied_as_cut(image: Path, copy: Path) -> None:
    """Copy the mounted ``image`` as it is at one moment: read it until two reads in a row are equal.

    Bytes that two successive reads both saw were all there when the first read ended. Raises: ImageError.
    """
    deadline = time.monotonic() + _DEADLINE_S
    before, now = None, _parts(image)
    while before != now:
        if time.monotonic() > deadline:
            raise ImageError(f"{image} never stopped changing")
        before, now = now, _parts(image)
    with copy.open("xb") as file:
        file.truncate(image.stat().st_size)
        for at, data in now:
            os.pwrite(file.fileno(), data, at)


def _parts(image: Path) -> list[tuple[int, bytes]]:
    """Return the parts of the file between its holes."""
    parts: list[tuple[int, bytes]] = []
    with image.open("rb", buffering=0) as file:
        end = os.fstat(file.fileno()).st_size
        at = 0
        while at < end:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                # Only a hole follows.
                break
            upto = min(os.lseek(file.fileno(), at, os.SEEK_HOLE), at + _AT_ONCE_BYTES)
            parts.append((at, os.pread(file.fileno(), upto - at, at)))
            at = upto
    return parts


def _unmount(place: Path) -> None:
    try:
        _call("umount", str(place))
    except ImageError:
        # Another process uses it: detach it now; the kernel unmounts it when that process ends.
        _call("umount", "--lazy", str(place))
        raise


def _call(*command: str) -> None:
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_DEADLINE_S, check=False, text=True
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ImageError(f"{command[0]} did not run: {error}") from error
    if ended.returncode != 0:
        raise ImageError(f"{' '.join(command)}: {(ended.stderr or ended.stdout).strip()[-300:]}")
