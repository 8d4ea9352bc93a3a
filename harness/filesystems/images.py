"""File systems in image files: made, mounted over a loop device, and copied at any moment, as a power cut leaves them.

What a loop device has completed lies in its image file, for whoever reads that; what the mounted file system still
keeps in memory does not. So a copy is what a disk holds that keeps all it was given and was given no more. A disk that
also loses what it was given since its last flush is not played.
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
_DEADLINE_S = 30.0


class ImageError(Exception):
    """A file system could not be made, mounted or copied here: no verdict on anything."""


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A kind of file system. ``make`` is the command that makes it in the image file named behind it."""

    name: str
    make: tuple[str, ...]
    size_bytes: int
    mounted_with: str = ""

    def make_in(self, image: Path) -> None:
        """Make it, empty, in the new file ``image``, which has holes. Raises: ImageError."""
        with image.open("xb") as file:
            file.truncate(self.size_bytes)
        _call(*self.make, str(image))
        # A log written full of zeros would be copied with each cut.
        _call("fallocate", "--dig-holes", str(image))


FILE_SYSTEMS = (
    FileSystem(
        "ext4", ("mkfs.ext4", "-q", "-F", "-b", "4096", "-J", "size=4", "-E", "nodiscard"), 64 << 20, "commit=1"
    ),
    # The smallest that mkfs.xfs makes.
    FileSystem("xfs", ("mkfs.xfs", "-q", "-f", "-K"), 300 << 20),
)
"""The ones the model is held against. ext4 commits its journal each second, not each fifth."""


def missing_for(kind: FileSystem, folder: Path) -> str:
    """Why images of ``kind`` can't be mounted here, "" where they can. Tried out below ``folder``."""
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
    """The file system of ``image`` at the folder ``place``, which is made and goes again, as does the loop device.

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
    """Copy the mounted ``image`` as it is at one moment: read again and again until it has not changed meanwhile.

    What two reads one after the other both saw was there when the first ended, everywhere. Raises: ImageError.
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
    """What lies in the file between its holes."""
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
        # Somebody is still in there: gone from here now, and from the machine when they end.
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
