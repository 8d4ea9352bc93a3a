"""The place in the library's code that each I/O operation of a recording comes from.

All I/O of a Python process happens inside functions in C: those of ``os``, and those of the engines' packages. The
interpreter calls a profile function before each of them. That function notes the two innermost frames of the library
and the function in C, for the recorder to read. A thread that an engine has started by itself has no place.

Only recordings pay for this: a profile function makes each Python call slower.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import stores

FRAMES = 2
"""The number of the library's innermost frames in a place."""
_LIBRARY = str(Path(stores.__file__).parent)


def follow_calls(tell: Callable[[bytes], object]) -> None:
    """Call ``tell`` with the place of each call from now on, in its thread; a place is kept for ever.

    A place is ``module.function > module.function > function in C``, and has no line numbers, so that it stays the
    same when other code changes.
    """
    places: dict[tuple[CodeType | str, ...], bytes] = {}
    running = _Running()

    def profile(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call":
            name = getattr(called, "__qualname__", called.__name__)
            codes = _own_codes(frame)
            place = places.get((*codes, name))
            if place is None:
                place = " > ".join([*map(_named, reversed(codes)), name]).encode()
                places[(*codes, name)] = place
            running.places.append(place)
            tell(place)
        elif event in ("c_return", "c_exception") and running.places:
            running.places.pop()
            # A function in C may call Python, which calls other functions in C: after these the first one goes on.
            if running.places:
                tell(running.places[-1])

    threading.setprofile(profile)
    sys.setprofile(profile)


class _Running(threading.local):
    """The places of the functions in C that run in this thread, the innermost last."""

    def __init__(self) -> None:
        self.places: list[bytes] = []


def _own_codes(frame: FrameType | None) -> tuple[CodeType, ...]:
    """Return the code of the library's innermost frames, the innermost first."""
    codes: list[CodeType] = []
    while frame is not None and len(codes) < FRAMES:
        if frame.f_code.co_filename.startswith(_LIBRARY):
            codes.append(frame.f_code)
        frame = frame.f_back
    return tuple(codes)


def _named(code: CodeType) -> str:
    return f"{Path(code.co_filename).stem}.{code.co_qualname}"
