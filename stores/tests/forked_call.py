"""A function called in a process of its own, which it may kill: forked from the server of ``store_process``."""

from __future__ import annotations

import os
import signal
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from stores import failpoints
from stores.strategies.store.transactions import StoreTransactions
from stores.tests.store_process import forked, kill_at, pipe

DEADLINE_S = 600.0
WITHIN_PUT_MANY = "test.within_put_many"
"""The failpoint in a ``put_many`` of two or more pairs: a store has staged one half of them."""


def was_killed(call: Callable[..., object], *arguments: object) -> bool:
    """Call ``call``, a function of a module, with arguments that can be pickled.

    Returns whether SIGKILL ended its process: False where it returned. Fails if it raised, or did not end in time. Its
    temporary files are removed, which a killed process can't do itself.
    """
    ours, theirs = pipe()
    with TemporaryDirectory(prefix="killed-") as temporary:
        process = forked(_carry_out, theirs, temporary, call, arguments)
        theirs.close()
        process.join(DEADLINE_S)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise AssertionError(f"{call.__name__} did not end in {DEADLINE_S} s")
    with ours:
        assert process.exitcode in (0, -signal.SIGKILL), ours.recv() if ours.poll() else process.exitcode
    return process.exitcode != 0


def _stage_in_halves() -> None:
    """Let this process reach WITHIN_PUT_MANY."""
    failpoints.declare(WITHIN_PUT_MANY, "a store has staged a half of the pairs")
    stage = StoreTransactions._stage_list

    def staged(store: StoreTransactions, writes: dict[bytes, bytes | None]) -> None:
        pairs, middle = list(writes.items()), len(writes) // 2
        if middle:
            stage(store, dict(pairs[:middle]))
            failpoints.reach(WITHIN_PUT_MANY)
        stage(store, dict(pairs[middle:]))

    StoreTransactions._stage_list = staged  # type: ignore[method-assign]


def _carry_out(
    connection: Connection, temporary: str, call: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    os.environ["TMPDIR"] = tempfile.tempdir = temporary
    try:
        call(*arguments)
    except BaseException:
        connection.send(traceback.format_exc())
        raise SystemExit(1) from None


def call_until_killed(
    call: Callable[..., object], folder: Path, failpoint: str, hit: int = 1, *arguments: object
) -> bool:
    """Call ``call``, a function of a module, in another process until it is killed at its ``hit``-th ``failpoint``.

    It is called with ``folder`` and ``arguments``, which can be pickled.

    Returns whether it was: False where the call has ended before.
    """
    return was_killed(_call_until, call, folder, failpoint, hit, arguments)


def _call_until(
    call: Callable[..., object], folder: Path, failpoint: str, hit: int, arguments: tuple[object, ...]
) -> None:
    if failpoint == WITHIN_PUT_MANY:
        _stage_in_halves()
    kill_at(failpoint, hit)
    call(folder, *arguments)
