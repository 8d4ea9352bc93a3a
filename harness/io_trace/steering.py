"""Fault injection from inside a watched process: begin to record its effects, plan a fault at one, write notes."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from stores.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Nothing:
    """No fault."""


@dataclass(frozen=True, slots=True)
class Kill:
    """The process is killed before effect ``at``: exactly the first ``at`` effects have been performed."""

    at: int


@dataclass(frozen=True, slots=True)
class Tear:
    """The first ``num_bytes`` of the write that is effect ``at`` are done, then the process is killed.

    If effect ``at`` is not a write: as ``Kill``.
    """

    at: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Fail:
    """The call that would be effect ``at`` returns ``errno`` and does nothing; if ``lasting``, so do all later calls.

    A failed call is no effect: the next call that succeeds is effect ``at``. An exception is EIO in a write through an
    O_SYNC or O_DSYNC descriptor. There the sync fails: the write is done, and is effect ``at``.
    """

    at: int
    errno: int
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class Short:
    """The write that is effect ``at`` transfers only its first ``num_bytes``, 1 or more, and returns that number; once.

    Nothing happens if effect ``at`` is not a write, or not longer. With ``lasting``, every later write is short too.
    """

    at: int
    num_bytes: int
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class FailThenKill:
    """The call that would be effect ``at`` fails as in ``Fail``; the process is killed before the next effect.

    So the process that continues does not know of the error.
    """

    at: int
    errno: int


Plan = Nothing | Kill | Tear | Fail | Short | FailThenKill


def begin(root: Path, recording: Path | None = None, plan: Plan | None = None) -> None:
    """Record the effects of this process and all its threads on files below ``root``, from now on to its end.

    ``root`` is an existing folder. Effects are written to the file ``recording`` as they are performed; it lies
    elsewhere.

    Raises: ConfigError if the recorder is not loaded, the process is already watched, or the folder or file cannot be
    used.
    """
    if recording is not None and recording.resolve().is_relative_to(root.resolve()):
        raise ConfigError(f"the recording {recording} lies below {root}, which it records: choose another place")
    error = _library().effects_begin(
        os.fsencode(root), None if recording is None else os.fsencode(recording), *_arguments_of(plan or Nothing())
    )
    if error:
        raise ConfigError(f"can't watch {root} into {recording}: {os.strerror(error)}")


def note(text: str) -> None:
    """Write ``text`` into the recording, after all effects so far. Raises: ConfigError before ``begin``."""
    said = text.encode()
    if _library().effects_note(said, len(said)):
        raise ConfigError("no I/O operations are recorded in this process: call `steering.begin` first")


def count() -> int:
    """Return the number of effects since ``begin``, which is the index of the next one."""
    return int(_library().effects_count())


def fired() -> int:
    """Return how many calls the plan has failed or cut short so far."""
    return int(_library().effects_fired())


def _arguments_of(plan: Plan) -> tuple[int, int, int, int]:
    """Return the plan as action, at, bytes and error, with the numbers of recorder.c. Raises: ConfigError."""
    if isinstance(plan, Nothing):
        return 0, 0, 0, 0
    if plan.at < 0:
        raise ConfigError(f"{plan}: the first effect is 0")
    match plan:
        case Kill(at):
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
    if not hasattr(library, "effects_begin"):
        raise ConfigError("the recorder is not loaded into this process: run it in a ForkServer with preload=True")
    library.effects_begin.argtypes = (
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_long,
        ctypes.c_long,
        ctypes.c_int,
    )
    library.effects_note.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    library.effects_count.restype = library.effects_fired.restype = ctypes.c_long
    return library
