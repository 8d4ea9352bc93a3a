"""The C library that records I/O operations and injects faults: compiled on first use, cached for the user."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

from stores.errors import ConfigError

_FLAGS = ("-O2", "-shared", "-fPIC", "-ldl", "-lpthread")


def recorder_library() -> Path:
    """Return the library's file, for LD_PRELOAD. Compile it if this user has not compiled this source before.

    Raises: ConfigError if this is not Linux, or no C compiler works; the message says what to install.
    """
    if sys.platform != "linux":
        raise ConfigError(f"I/O faults need Linux (LD_PRELOAD): this is {sys.platform}")
    source = resources.files("harness.io_trace").joinpath("recorder.c").read_bytes()
    digest = hashlib.sha256(source + platform.machine().encode()).hexdigest()[:16]
    library = _cache_folder() / f"recorder-{digest}.so"
    if not library.exists():
        _compile(source, library)
    return library


def _compile(source: bytes, library: Path) -> None:
    complaints = []
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = Path(folder, "recorder.so")
        written = Path(folder, "recorder.c")
        written.write_bytes(source)
        for compiler in _compilers():
            command = [*compiler, str(written), *_FLAGS, "-o", str(built)]
            ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
            if ended.returncode == 0:
                # Rename in one step: several processes may compile it at once.
                built.replace(library)
                return
            complaints.append(f"{' '.join(compiler)}: {ended.stderr.decode(errors='replace').strip()[-500:]}")
    raise ConfigError(
        "no C compiler works here, and I/O faults need one: install gcc or clang with the C library's "
        f"headers, or the Python package ziglang. {' | '.join(complaints)}".rstrip()
    )


def _compilers() -> list[list[str]]:
    found = [[path] for path in map(shutil.which, ("cc", "gcc", "clang")) if path is not None]
    if importlib.util.find_spec("ziglang") is not None:
        found.append([sys.executable, "-P", "-m", "ziglang", "cc"])
    return found


def _cache_folder() -> Path:
    """Return a folder of this user whose path LD_PRELOAD can carry: blanks and colons separate its entries."""
    chosen = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "txstores")
    for folder in (chosen, Path(tempfile.gettempdir(), f"txstores-{os.getuid()}")):
        if any(character in " :\t\n" for character in str(folder)):
            continue
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if folder.stat().st_uid == os.getuid() and os.access(folder, os.W_OK):
            return folder.resolve()
    raise ConfigError("there is no folder for the compiled recorder: set XDG_CACHE_HOME to one you may write to")
