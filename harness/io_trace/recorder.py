"""The recorder of I/O operations, as Python sees it: faults to plan, recordings to read. ``recorder.c`` is below it.

``recorder_library`` compiles that on first use. The file is cached for the user.

Inside a watched process, ``begin`` starts to record its operations: its I/O operations on the files below a folder, in
order. It plans a fault at one of them. ``note`` adds a line to the recording.

A recording is a file: ``MAGIC``, then one record per operation. A record is ``_HEADER``, path, target, call site, and
data to its end. ``_HEADER`` is the length of all that follows its first field, the kind as an index in ``Kind``, flags,
the lengths of path, target and call site, then index, file, offset and length. Numbers are little-endian.
``read_recording`` returns its operations as plain values.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from pathlib import Path

from harness.io_trace.call_sites import follow_calls
from stores.errors import ConfigError

MAGIC = b"iotrace2"
_FLAGS = ("-O2", "-shared", "-fPIC", "-ldl", "-lpthread")
_HEADER = struct.Struct("<IBBIIIqqqq")
_SYNCHRONOUS, _GROWS, _UNKEPT = 1, 2, 4


class Kind(StrEnum):
    """The kind of an operation. Kinds that are not in ``NOT_COUNTED`` can be killed at, torn or failed."""

    CREATE = "create"
    """A file is created under ``path``; its number is ``file`` from now on."""
    WRITE = "write"
    """``data`` is written at ``offset`` of ``file``, which grows where needed."""
    TRUNCATE = "truncate"
    """``file`` gets ``length`` bytes: cut, or zeros appended."""
    ALLOCATE = "allocate"
    """``file`` gets space for ``offset`` .. ``offset + length``; its size grows if ``grows`` is true."""
    SYNC = "sync"
    """``file`` (or a folder), its size and its names are synced: fsync and similar calls."""
    DATASYNC = "datasync"
    """``file`` and its size are synced: fdatasync."""
    SYNC_ALL = "sync_all"
    """Everything is synced: sync, syncfs."""
    RENAME = "rename"
    """``path`` becomes ``target``, and replaces a file of that name."""
    LINK = "link"
    """``target`` becomes another name of the file at ``path``."""
    UNLINK = "unlink"
    """The name ``path`` is removed."""
    MKDIR = "mkdir"
    """A folder is created under ``path``; its number is ``file`` from now on."""
    RMDIR = "rmdir"
    """The empty folder ``path`` is removed."""
    MAP_WRITABLE = "map_writable"
    """``file`` was mapped shared and writable. Writes through the map are not recorded. No operation on bytes."""
    NOTE = "note"
    """The process noted ``text`` at this place among its operations."""
    SYNC_FAILED = "sync_failed"
    """A sync of ``file`` (of everything if it is -1) returned the planned error."""


NOT_COUNTED = (Kind.MAP_WRITABLE, Kind.NOTE, Kind.SYNC_FAILED)


@dataclass(frozen=True, slots=True)
class IoOperation:
    """One operation. ``index`` numbers the operations from 0 in the order in which they were performed.

    Kinds that are not counted (a note, a map, a failed sync) have the index of the operation that follows. ``file``
    numbers are given at creation or at the first use of the file, and are never reused. The watched folder is 0.

    ``path`` is relative to that folder. For an operation through a descriptor it is the file's present name: one of
    them if there are several, "" for the watched folder and for a file without a name. So a file that existed before
    the recording began is found by the path of the first operation with its number.

    ``synchronous`` writes went through O_SYNC or O_DSYNC descriptors. An ``unkept`` write is one whose sync returned
    the planned error: its bytes can be read, but are not on the disk. ``length`` is set for TRUNCATE, ALLOCATE and
    MAP_WRITABLE.

    ``site`` is the call site (``harness.io_trace.call_sites``), "" for a thread that an engine has started.
    """

    index: int
    kind: Kind
    file: int = -1
    path: str = ""
    target: str = ""
    offset: int = 0
    length: int = 0
    data: bytes = b""
    synchronous: bool = False
    unkept: bool = False
    grows: bool = False
    text: str = ""
    site: str = ""


def read_recording(path: Path) -> list[IoOperation]:
    """Return the operations of a recording in order. An incomplete last record is left out: its write was killed.

    Raises: ConfigError if the file is no recording, or a corrupt one.
    """
    raw = path.read_bytes()
    if not MAGIC.startswith(raw[: len(MAGIC)]):
        raise ConfigError(f"{path} is not a recording of I/O operations: give a file that `recorder.begin` has written")
    try:
        operations = _parsed(raw)
    except (IndexError, ValueError) as error:
        raise ConfigError(f"{path} is a damaged recording ({error}): make a new one") from error
    index = 0
    for operation in operations:
        if operation.index != index:
            raise ConfigError(f"{path} is a damaged recording: behind operation {index - 1} comes {operation.index}")
        index += operation.kind not in NOT_COUNTED
    return operations


def _parsed(raw: bytes) -> list[IoOperation]:
    """Parse the bytes of a recording. Raises: IndexError or ValueError if they are invalid."""
    operations = []
    kinds = tuple(Kind)
    at = len(MAGIC)
    while at + _HEADER.size <= len(raw):
        rest, kind, flags, path_bytes, target_bytes, site_bytes, *numbers = _HEADER.unpack_from(raw, at)
        index, file, offset, length = numbers
        end = at + 4 + rest
        target_at = at + _HEADER.size + path_bytes
        site_at = target_at + target_bytes
        data_at = site_at + site_bytes
        if data_at > end:
            raise ValueError(f"the record at byte {at} is shorter than it says")
        if end > len(raw):
            break
        data = raw[data_at:end]
        is_note = kinds[kind] is Kind.NOTE
        operations.append(
            IoOperation(
                index=index,
                kind=kinds[kind],
                file=file,
                path=raw[target_at - path_bytes : target_at].decode(errors="surrogateescape"),
                target=raw[target_at:site_at].decode(errors="surrogateescape"),
                offset=offset,
                length=length,
                data=b"" if is_note else data,
                synchronous=bool(flags & _SYNCHRONOUS),
                unkept=bool(flags & _UNKEPT),
                grows=bool(flags & _GROWS),
                text=data.decode() if is_note else "",
                site=raw[site_at:data_at].decode(),
            )
        )
        at = end
    return operations


@dataclass(frozen=True, slots=True)
class Nothing:
    """No fault."""


@dataclass(frozen=True, slots=True)
class KillAt:
    """The process is killed before operation ``at``: exactly the first ``at`` operations have been performed."""

    at: int


@dataclass(frozen=True, slots=True)
class Tear:
    """The first ``num_bytes`` of the write that is operation ``at`` are done, then the process is killed.

    If operation ``at`` is not a write: as ``KillAt``.
    """

    at: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Fail:
    """The call that would be operation ``at`` returns ``errno`` and does nothing; if ``lasting``, so do later calls.

    A failed call is no operation: the next call that succeeds is operation ``at``. An exception is EIO in a write
    through an O_SYNC or O_DSYNC descriptor. There the sync fails: the write is done, and is operation ``at``.
    """

    at: int
    errno: int
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class Short:
    """The write that is operation ``at`` transfers only its first ``num_bytes``, 1 or more, and returns these; once.

    Nothing happens if operation ``at`` is not a write, or not longer. With ``lasting``, every later write is short too.
    """

    at: int
    num_bytes: int
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class FailThenKill:
    """The call that would be operation ``at`` fails as in ``Fail``; the process is killed before the next operation.

    So the process that continues does not know of the error.
    """

    at: int
    errno: int


Plan = Nothing | KillAt | Tear | Fail | Short | FailThenKill


def begin(root: Path, recording: Path | None = None, plan: Plan | None = None) -> None:
    """Record the operations of this process and all its threads on files below ``root``, from now on to its end.

    ``root`` is an existing folder. Operations are written to the file ``recording`` as they are performed; it lies
    elsewhere.

    Raises: ConfigError if the recorder is not loaded, the process is already watched, or the folder or file cannot be
    used.
    """
    if recording is not None and recording.resolve().is_relative_to(root.resolve()):
        raise ConfigError(f"the recording {recording} lies below {root}, which it records: choose another place")
    error = _library().operations_begin(
        os.fsencode(root), None if recording is None else os.fsencode(recording), *_arguments_of(plan or Nothing())
    )
    if error:
        raise ConfigError(f"can't watch {root} into {recording}: {os.strerror(error)}")
    if recording is not None:
        follow_calls(_library().operations_site)


def note(text: str) -> None:
    """Write ``text`` into the recording, after all operations so far. Raises: ConfigError before ``begin``."""
    line = text.encode()
    if _library().operations_note(line, len(line)):
        raise ConfigError("no I/O operations are recorded in this process: call `recorder.begin` first")


def count() -> int:
    """Return the number of operations since ``begin``, which is the index of the next one."""
    return int(_library().operations_count())


def fired() -> int:
    """Return how many calls the plan has failed or cut short so far."""
    return int(_library().operations_fired())


def _arguments_of(plan: Plan) -> tuple[int, int, int, int]:
    """Return the plan as action, at, bytes and error, with the numbers of recorder.c. Raises: ConfigError."""
    if isinstance(plan, Nothing):
        return 0, 0, 0, 0
    if plan.at < 0:
        raise ConfigError(f"{plan}: the first operation is 0")
    match plan:
        case KillAt(at):
            return 1, at, 0, 0
        case Tear(at, num_bytes) if num_bytes >= 0:
            return 2, at, num_bytes, 0
        case Fail(at, errno, lasting) if errno > 0:
            return 4 if lasting else 3, at, 0, errno
        case Short(at, num_bytes, lasting) if num_bytes > 0:
            return 7 if lasting else 5, at, num_bytes, 0
        case FailThenKill(at, errno) if errno > 0:
            return 6, at, 0, errno
    raise ConfigError(
        f"{plan} can't be done: errno and a short write's num_bytes are 1 or more, a torn one's 0 or more"
    )


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    if not hasattr(library, "operations_begin"):
        raise ConfigError("the recorder is not loaded into this process: run it in a ForkServer with preload=True")
    numbers = (ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_int)
    library.operations_begin.argtypes = (ctypes.c_char_p, ctypes.c_char_p, *numbers)
    library.operations_note.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    library.operations_site.argtypes = (ctypes.c_char_p,)
    library.operations_site.restype = None
    library.operations_count.restype = library.operations_fired.restype = ctypes.c_long
    return library


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
        binary = Path(folder, "recorder.so")
        source_file = Path(folder, "recorder.c")
        source_file.write_bytes(source)
        for compiler in _compilers():
            command = [*compiler, str(source_file), *_FLAGS, "-o", str(binary)]
            compilation = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
            if compilation.returncode == 0:
                # Rename in one step: several processes may compile it at once.
                binary.replace(library)
                return
            complaints.append(f"{' '.join(compiler)}: {compilation.stderr.decode(errors='replace').strip()[-500:]}")
    raise ConfigError(
        "no C compiler works here, and I/O faults need one: install gcc or clang with the C library's "
        f"headers, or the Python package ziglang. {' | '.join(complaints)}".rstrip()
    )


def _compilers() -> list[list[str]]:
    commands = [[path] for path in map(shutil.which, ("cc", "gcc", "clang")) if path is not None]
    if importlib.util.find_spec("ziglang") is not None:
        commands.append([sys.executable, "-P", "-m", "ziglang", "cc"])
    return commands


def _cache_folder() -> Path:
    """Return a folder of this user whose path LD_PRELOAD can carry: blanks and colons separate its entries."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "txstores")
    for folder in (cache, Path(tempfile.gettempdir(), f"txstores-{os.getuid()}")):
        if any(character in " :\t\n" for character in str(folder)):
            continue
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if folder.stat().st_uid == os.getuid() and os.access(folder, os.W_OK):
            return folder.resolve()
    raise ConfigError("there is no folder for the compiled recorder: set XDG_CACHE_HOME to one you may write to")
