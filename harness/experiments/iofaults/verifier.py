"""The verifier process: opens the store after a fault, recovers, reads all data, makes two commits, reopens, reads.

It returns plain data; a checker compares it. If opening or reading reports that the state cannot be trusted, it follows
the error's advice: it wipes the store, restores it from the changelog (here the workload's own model), and continues.
It runs in a child of the fork server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from harness.checkers.prefix import Remains
from harness.experiments.iofaults.subjects import Subject, shown, subject
from harness.experiments.iofaults.workload import State, afterwards, model
from harness.experiments.iofaults.writer import to_plan, wants_wiping
from harness.io_trace import recorder
from harness.mutants.inner_names import boot_as
from harness.mutants.registry import patch
from stores.errors import StoreError


def run(
    *,
    name: str,
    level: str,
    mutant: str,
    seed: int,
    commits: int,
    attempted: int,
    root: str,
    boot: str,
    verify: bool = False,
    records: str = "",
) -> dict[str, Any]:
    """Read the subject below ``root``, and ``verify`` it before.

    ``boot`` replaces the ID of the machine's present boot; "" keeps the real one.
    """
    patch(mutant, name)
    boot_as(boot)
    verifier = _Verifier(
        subject(name, Path(root), level, records), partial(shown, name, records=records), seed, commits, attempted
    )
    return verifier.look(verify=verify)


def recover(
    *, name: str, level: str, mutant: str, root: str, plan: list[Any], recording: str = "", boot: str, records: str = ""
) -> dict[str, Any]:
    """Open and close the subject below ``root`` under ``plan``: the recovery in which a second fault strikes."""
    patch(mutant, name)
    boot_as(boot)
    recovering = subject(name, Path(root), level, records)
    recorder.begin(Path(root), Path(recording) if recording else None, to_plan(plan))
    leaked = ""
    for call in (recovering.open, recovering.close):
        try:
            call()
        except StoreError:
            # The verifier process, which runs next, reports the error.
            continue
        except Exception as error:
            leaked = leaked or _described(call.__name__, error)
    return {"operations": recorder.count(), "fired": recorder.fired(), "leaked": leaked}


def remains(reported: Mapping[str, Any]) -> Remains:
    """Convert the result of a verifier process into the checker's form."""
    fields = dict(reported)
    for name in ("state", "added", "later", "wanted", "restored"):
        if fields.get(name) is not None:
            fields[name] = {bytes.fromhex(key): bytes.fromhex(value) for key, value in fields[name].items()}
    return Remains(**fields)


class _Verifier:
    def __init__(
        self, subject: Subject, expected: Callable[[State], State], seed: int, commits: int, attempted: int
    ) -> None:
        self._subject, self._expected, self._seed = subject, expected, seed
        self._commits, self._attempted = commits, attempted
        self._reported: dict[str, Any] = {}

    def look(self, *, verify: bool) -> dict[str, Any]:
        try:
            stage = "open"
            self._subject.open()
            if verify:
                stage = "verify"
                self._subject.verify()
            stage = "read"
            state, offset, position = self._subject.read()
            self._reported |= {"state": _text(state), "offset": offset, "position": position}
            stage = "afterwards"
            self._write_afterwards()
        except StoreError as error:
            self._reported |= {"error": type(error).__name__, "error_detail": f"from {stage}: {error}", "stage": stage}
            if wants_wiping(error):
                self._restore()
        except Exception as error:
            self._reported["leaked"] = _described(stage, error)
        return self._reported

    def _write_afterwards(self) -> None:
        added: dict[bytes, bytes] = {}
        for number in (1, 2):
            written = afterwards(number)
            self._subject.add(written, self._commits + number)
            added |= written
        self._subject.close()
        self._subject.open()
        later, offset, position = self._subject.read()
        self._subject.close()
        self._reported |= {"added": _text(self._expected(added)), "later": _text(later)}
        self._reported |= {"added_number": self._commits + number, "later_offset": offset, "later_position": position}

    def _restore(self) -> None:
        wanted = model(self._seed, self._attempted)
        self._reported |= {"wanted": _text(self._expected(wanted)), "wanted_number": self._attempted}
        stage = "close"
        try:
            with suppress(StoreError):
                # A database that is to be wiped need not be closed cleanly, but its lock must be released.
                self._subject.close()
            stage = "wipe"
            self._subject.wipe()
            stage = "open after wiping"
            self._subject.open()
            stage = "restore"
            self._subject.restore(wanted, self._attempted)
            self._subject.close()
            stage = "open after restoring"
            self._subject.open()
            restored, offset, _ = self._subject.read()
            self._reported |= {"restored": _text(restored), "restored_offset": offset}
            stage = "after restoring"
            self._write_afterwards()
        except StoreError as error:
            self._reported["error_detail"] += f"; then {type(error).__name__} from {stage}: {error}"
        except Exception as error:
            self._reported["leaked"] = _described(stage, error)


def _text(state: Mapping[bytes, bytes]) -> dict[str, str]:
    """Return a state in a form that JSON can carry."""
    return {key.hex(): value.hex() for key, value in state.items()}


def _described(stage: str, error: Exception) -> str:
    return f"{type(error).__name__} from {stage}: {error}"
