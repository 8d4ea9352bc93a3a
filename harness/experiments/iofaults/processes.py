"""The processes of a trial, which run in children of the fork server.

The writer process makes the workload's commits, until a fault stops it, and logs what was acknowledged. It follows the
advice of errors. It repeats a commit that may be tried again. It closes a store that must be opened again, opens it,
and continues from its offset.

The verifier process opens the store after the fault, recovers it, reads all data, makes two commits, opens it again and
reads again. It returns plain data; a checker compares it. If opening or reading reports that the state cannot be
trusted, it follows the error's advice: it wipes the store, restores it from the changelog (here the workload's own
model), and continues.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, get_args

from harness.checkers.prefix import DETECTING, Demand, Promised, Remains, promised
from harness.experiments.iofaults.subjects import is_transactional, shown, subject
from harness.experiments.iofaults.subjects.subject import Subject
from harness.experiments.iofaults.workload import State, afterwards, changes, model, models, values_ever
from harness.io_trace import recorder
from harness.mutants import patch
from harness.mutants.inner_names import boot_as
from stores.errors import StoreError

T = TypeVar("T")
OPENINGS_MAX = 4
"""The number of times a writer process opens its subject before it gives up: once, and again after errors."""
TRIES_MAX = 2
"""The number of times it calls commit for the same transaction of the same open store."""
END = "end"
"""The last line of the acknowledgement log of a writer process that completed its work."""


class Account:
    """The acknowledgement log: a note in the recording, and a line in a file that survives a kill, for each event."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def note(self, text: str) -> None:
        """Append one line, unbuffered."""
        recorder.note(text)
        line = text.replace("\n", " ").encode() + b"\n"
        if os.write(self._descriptor, line) != len(line):
            raise OSError("a note was not written whole")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)


def read_account(path: Path) -> list[str]:
    """Return the lines of a writer's acknowledgement log; none if the file does not exist."""
    return path.read_text().splitlines() if path.exists() else []


def folded(notes: Sequence[str], demanded: Demand) -> Promised:
    """Return what the lines of a writer's acknowledgement log promise."""
    try:
        return promised(notes, keeps=demanded.keeps and demanded.transactional)
    except ValueError as error:
        return Promised(trouble=str(error))


def run_writer(
    *,
    name: str,
    level: str,
    mutant: str,
    seed: int,
    commits: int,
    root: str,
    account: str,
    plan: list[Any],
    recording: str = "",
    reached: int = 0,
    records: str = "",
) -> dict[str, Any]:
    """Make ``commits`` commits on the subject below ``root`` under ``plan``. Close and reopen it once, halfway.

    ``reached`` is the last commit that was made before, for a subject that cannot report it.

    Returns what the recorder has counted: the number of ``operations``, and how many calls the plan ``fired`` at. It
    also returns whether the writer ``gave_up``, and the last ``error``.
    """
    patch(mutant, name)
    with Account(Path(account)) as notes:
        recorder.begin(Path(root), Path(recording) if recording else None, to_plan(plan))
        notes.note(signature(name, level, mutant, seed, commits, records))
        writer = _Writer(name, subject(name, Path(root), level, records), notes, seed, commits, reached, records)
        try:
            finished = writer.work()
        except _LeakedError as leak:
            notes.note(f"leaked {leak}")
            finished = False
        if finished:
            notes.note(END)
        return {
            "operations": recorder.count(),
            "fired": recorder.fired(),
            "gave_up": not finished,
            "error": writer.error,
        }


def know(*, seed: int, commits: int) -> None:
    """Compute the commits and states of ``seed``, so that the children of this process need not do it."""
    models(seed, commits)
    values_ever(seed, commits)


def signature(name: str, level: str, mutant: str, seed: int, commits: int, records: str = "") -> str:
    """Return the first line of a writer's acknowledgement log: it names the case and the seed."""
    return f"of {json.dumps([name, level, mutant, seed, commits, *filter(None, [records])])}"


def to_plan(told: list[Any]) -> recorder.Plan:
    """Return the plan for its name and arguments."""
    name, *numbers = told
    [kind] = [kind for kind in get_args(recorder.Plan) if kind.__name__ == name]
    plan: recorder.Plan = kind(*numbers)
    return plan


class _LeakedError(Exception):
    """The library raised an exception that is not a `StoreError`."""


class _ReopenError(Exception):
    """The subject must be closed and opened again."""


class _Writer:
    def __init__(
        self, name: str, subject: Subject, notes: Account, seed: int, commits: int, reached: int, records: str
    ) -> None:
        self._name, self._subject, self._notes, self._records = name, subject, notes, records
        self._seed, self._commits = seed, commits
        self._reached = reached
        self.error = ""
        """The library's last error, "TYPE: message"."""
        self._rest = commits // 2
        """After this commit the subject is closed and opened again."""

    def work(self) -> bool:
        """Make the commits. Return False if the writer gave up."""
        for _ in range(OPENINGS_MAX):
            try:
                self._open()
                while self._reached < self._commits:
                    self._commit(self._reached + 1)
                    if self._reached == self._rest:
                        self._rest = 0
                        self._call("close", self._subject.close)
                        self._open()
                self._call("close", self._subject.close)
                return True
            except _ReopenError as reopen:
                self.error = f"{type(reopen.__cause__).__name__}: {reopen.__cause__}"
                with suppress(_ReopenError):
                    # The next opening reports the error.
                    self._call("close", self._subject.close)
        return False

    def _open(self) -> None:
        reached = self._call("open", self._subject.open)
        if reached is not None:
            self._notes.note(f"open {reached}")
            self._reached = reached

    def _commit(self, number: int) -> None:
        self._call("stage", self._subject.stage, changes(self._seed, number), model(self._seed, number))
        self._notes.note(f"attempt {number}")
        for attempt in range(TRIES_MAX):
            try:
                self._subject.commit(number)
            except StoreError as error:
                if attempt + 1 == TRIES_MAX or self._subject.must_reopen(error):
                    raise _ReopenError from error
                self._check_unchanged(number)
            except Exception as error:
                raise _leak("commit", error) from error
            else:
                break
        self._notes.note(f"ack {number}")
        self._reached = number

    def _check_unchanged(self, number: int) -> None:
        """Check that the last commit is still visible after an error that says "changed nothing, commit again"."""
        if not is_transactional(self._name):
            return
        state, offset, _ = self._call("read", self._subject.read)
        if (offset or 0) != number - 1 or state != shown(self._name, model(self._seed, number - 1), self._records):
            self._notes.note(f"visible commit {number} failed, was to be tried again, and can be read")

    def _call(self, stage: str, function: Callable[..., T], *arguments: Any) -> T:
        try:
            return function(*arguments)
        except StoreError as error:
            raise _ReopenError from error
        except Exception as error:
            raise _leak(stage, error) from error


def _leak(stage: str, error: Exception) -> _LeakedError:
    return _LeakedError(f"{type(error).__name__} from {stage}: {error}")


def run_verifier(
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
            if type(error).__name__ in DETECTING:
                # It asks to wipe the subject, and to restore it from its changelog.
                self._restore()
        except Exception as error:
            self._reported["leaked"] = _described(stage, error)
        return self._reported

    def _write_afterwards(self) -> None:
        additions: dict[bytes, bytes] = {}
        for number in (1, 2):
            pairs = afterwards(number)
            self._subject.add(pairs, self._commits + number)
            additions |= pairs
        self._subject.close()
        self._subject.open()
        later, offset, position = self._subject.read()
        self._subject.close()
        self._reported |= {"added": _text(self._expected(additions)), "later": _text(later)}
        self._reported |= {"added_number": self._commits + number, "later_offset": offset, "later_position": position}

    def _restore(self) -> None:
        state = model(self._seed, self._attempted)
        self._reported |= {"wanted": _text(self._expected(state)), "wanted_number": self._attempted}
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
            if self._attempted:  # Else the changelog is empty.
                self._subject.restore(state, self._attempted)
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
