"""A file system in user space that keeps a removed file under another name while it is open: FUSE, as NFS.

``python -m harness.tests.filesystems.hiding SOURCE PLACE`` shows the folder SOURCE at PLACE until it is unmounted.
Without its option ``hard_remove``, libfuse renames a file that is open at its removal to ``.fuse_hidden...``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_DEADLINE_S = 600.0


def missing() -> str:
    """Return the reason why such a file system can't be mounted here, or ""."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse can't be used"
    if shutil.which("fusermount3") is None:
        return "fusermount3 is not installed"
    try:
        import mfusepy  # type: ignore[import-untyped]  # noqa: F401
    except (ImportError, OSError) as error:
        return f"mfusepy: {error}"
    return ""


@contextmanager
def hiding(source: Path, place: Path) -> Iterator[Path]:
    """Show the folder ``source`` at the new folder ``place``, and end with the block. Raises: TimeoutError."""
    place.mkdir()
    command = [sys.executable, "-m", "harness.tests.filesystems.hiding", str(source), str(place)]
    with subprocess.Popen(command) as process:
        try:
            ends = time.monotonic() + _DEADLINE_S
            while not place.is_mount():
                if process.poll() is not None or time.monotonic() > ends:
                    raise TimeoutError(f"{place} is not mounted after {_DEADLINE_S} s")
                time.sleep(0.02)
            yield place
        finally:
            subprocess.run(["fusermount3", "-u", "-z", str(place)], check=False, capture_output=True)
            try:
                process.wait(_DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
    place.rmdir()


def serve(source: str, place: str) -> None:
    """Serve the folder ``source`` at ``place`` until it is unmounted."""
    import mfusepy

    class PassThrough(mfusepy.Operations):  # type: ignore[misc]
        """Each call goes to the folder below."""

        use_ns = True

        def getattr(self, path: str, handle: int | None = None) -> dict[str, Any]:
            found = os.lstat(source + path)
            names = ("st_mode", "st_ino", "st_dev", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks")
            times = {f"st_{name}": getattr(found, f"st_{name}_ns") for name in ("atime", "mtime", "ctime")}
            return {**{name: getattr(found, name) for name in names}, **times}

        def readdir(self, path: str, handle: int) -> list[str]:
            return [".", "..", *os.listdir(source + path)]

        def access(self, path: str, mode: int) -> int:
            if not os.access(source + path, mode):
                raise mfusepy.FuseOSError(13)
            return 0

        def create(self, path: str, mode: int, info: Any = None) -> int:
            return os.open(source + path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

        def open(self, path: str, flags: int) -> int:
            return os.open(source + path, flags & ~os.O_APPEND)

        def read(self, path: str, size: int, offset: int, handle: int) -> bytes:
            return os.pread(handle, size, offset)

        def write(self, path: str, data: bytes, offset: int, handle: int) -> int:
            return os.pwrite(handle, data, offset)

        def truncate(self, path: str, length: int, handle: int | None = None) -> int:
            os.truncate(source + path if handle is None else handle, length)
            return 0

        def fallocate(self, path: str, mode: int, offset: int, length: int, handle: int) -> int:
            if mode:
                raise mfusepy.FuseOSError(95)
            os.posix_fallocate(handle, offset, length)
            return 0

        def fsync(self, path: str, datasync: int, handle: int) -> int:
            os.fsync(handle)
            return 0

        def release(self, path: str, handle: int) -> int:
            os.close(handle)
            return 0

        def rename(self, old: str, new: str) -> int:
            os.rename(source + old, source + new)
            return 0

        def link(self, target: str, existing: str) -> int:
            os.link(source + existing, source + target)
            return 0

        def symlink(self, target: str, existing: str) -> int:
            os.symlink(existing, source + target)
            return 0

        def utimens(self, path: str, times: Any = None) -> int:
            os.utime(source + path, ns=times)
            return 0

        def chmod(self, path: str, mode: int) -> int:
            os.chmod(source + path, mode)
            return 0

        def chown(self, path: str, user: int, group: int) -> int:
            os.chown(source + path, user, group)
            return 0

        def mkdir(self, path: str, mode: int) -> int:
            os.mkdir(source + path, mode)
            return 0

        def rmdir(self, path: str) -> int:
            os.rmdir(source + path)
            return 0

        def unlink(self, path: str) -> int:
            os.unlink(source + path)
            return 0

        def readlink(self, path: str) -> str:
            return os.readlink(source + path)

        def statfs(self, path: str) -> dict[str, int]:
            found = os.statvfs(source + path)
            return {name: getattr(found, name) for name in ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_frsize")}

    mfusepy.FUSE(PassThrough(), place, foreground=True, nothreads=True)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
