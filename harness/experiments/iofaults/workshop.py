"""The place where the trials of a case run: a fork server for writers and verifiers, a folder, and the resulting rows.

A trial in which a process exceeded its deadline runs once more with a longer one, before it counts as a hang. If any
other part of the harness dies, is late or raises, the trial is a harness error, never an anomaly of the library.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Self

from harness.checkers.prefix import Demand, Found, PrefixFinding, Promised, Remains, breach, check_prefix, demand
from harness.crash_states.files import Tree
from harness.experiments.iofaults.case import SILENT, IoFaultCase, repeat_command
from harness.experiments.iofaults.fault import IO_FAULTS, NEVER_READ, NOTHING, TORN_SECTORS, Plan, Row
from harness.experiments.iofaults.processes import END, folded, read_account, remains, signature
from harness.experiments.iofaults.subjects import is_transactional, shown
from harness.experiments.iofaults.workload import PASSING_KINDS, models, passing_ever, values_ever
from harness.folders import ROOT, RUNS, quick_folder
from harness.io_trace.recorder import IoOperation, Kind, read_recording
from harness.processes.fork_server import CallOutcome, ForkServer, ForkServerError
from stores.errors import ConfigError

DEADLINE_S = 10.0
"""The CPU time that a writer or a verifier may use; they use between a hundredth of a second and two seconds."""
PATIENCE = 4
"""The factor by which the deadline grows when a trial that was too late is repeated."""
_ROOM_LEFT_BYTES = 16 << 20
"""The free space that the working folder must keep. With less, an anomaly proves nothing."""

KEPT = RUNS / "recordings"
"""The folder for the recordings of anomalies found outside a run; "make clean" removes it."""

BOOT_AFTER_THAT = "the boot after that"
_KILLING = ("KillAt", "Tear", "FailThenKill")
Trial = Callable[[], tuple[Promised, PrefixFinding]]
"""A trial: what was promised, and the verdict."""


class Life(NamedTuple):
    """The end of a writer process: how it ended, its acknowledgement log, and True if it was killed as planned."""

    outcome: CallOutcome
    notes: tuple[str, ...]
    killed: bool


class Workshop:
    """Runs the trials of one case, one after the other; use it in a ``with`` block.

    ``fork_server`` is a fork server that preloads the recorder. It belongs to the caller, and its folder is empty
    afterwards. Without one, the workshop starts its own. If the case names no recording and a trial is not as promised,
    the recording is kept in ``KEPT`` for the command that repeats the trial. All other files are removed with the
    workshop.

    Raises: ConfigError if I/O operations cannot be recorded on this machine.
    """

    def __init__(self, case: IoFaultCase, seed: int, fork_server: ForkServer | None = None) -> None:
        self.case, self.seed = case, seed
        self._fork_server = fork_server or ForkServer(within=quick_folder())
        self._is_own = fork_server is None
        self._deadline_s = DEADLINE_S
        self._prepare()
        self.demanded = demand(case.level, IO_FAULTS[case.fault].promise, transactional=is_transactional(case.subject))
        """The guarantees of the subject after the case's fault."""
        states = models(seed, case.commits)
        self._models = [shown(case.subject, state, case.records) for state in states]
        self._given = {
            key: [
                (number, value if value is None else shown(case.subject, {key: value})[key]) for number, value in values
            ]
            for key, values in values_ever(seed, case.commits + 1).items()
        }
        if case.records in PASSING_KINDS:
            self._given |= passing_ever(case.commits + 1)

    @property
    def root(self) -> Path:
        """The folder that contains the subject."""
        return self.scratch("root")

    def clear(self) -> Path:
        """Empty the root folder, and return it."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        return self.root

    def place(self, tree: Tree) -> None:
        """Replace the root folder by ``tree``."""
        tree.write_into(self.clear())

    def writer(self, plan: Plan, recording: Path | None = None, *, go_on_from: int | None = None) -> Life:
        """Run a writer process under ``plan`` below an empty root.

        With ``go_on_from``, the root is kept. The writer continues after that commit, or after the one that the subject
        reports.
        """
        account = self.scratch("account")
        account.unlink(missing_ok=True)
        if go_on_from is None:
            self.clear()
        outcome = self._fork_server.run(
            "harness.experiments.iofaults.processes:run_writer",
            self._subject
            | {
                "seed": self.seed,
                "commits": self.case.commits,
                "root": str(self.root),
                "account": str(account),
                "plan": plan,
                "recording": str(recording or ""),
                "reached": go_on_from or 0,
            },
            deadline_s=self._deadline_s,
        )
        killed = outcome.signal == signal.SIGKILL and not outcome.timed_out and plan[0] in _KILLING
        return Life(outcome, tuple(read_account(account)), killed)

    def recover(self, plan: Plan, *, boot: str, recording: Path | None = None) -> CallOutcome:
        """Open and close the subject below the root under ``plan``."""
        return self._fork_server.run(
            "harness.experiments.iofaults.processes:recover",
            self._subject | {"root": str(self.root), "plan": plan, "recording": str(recording or ""), "boot": boot},
            deadline_s=self._deadline_s,
        )

    def look(self, promises: Promised, *, boot: str, verify: bool = False) -> Remains:
        """Run a verifier process below the root, and return what it read. It may ``verify`` the subject before.

        Verifiers share a child of the fork server as long as each completes, even if it had to restore the subject. A
        verifier of a mutant has a child of its own, because patched code may keep state.
        """
        shared = not self.case.mutant
        outcome = self._fork_server.run(
            "harness.experiments.iofaults.processes:run_verifier",
            self._subject
            | {
                "seed": self.seed,
                "commits": self.case.commits,
                "attempted": promises.attempted,
                "root": str(self.root),
                "boot": boot,
                "verify": verify,
            },
            deadline_s=self._deadline_s,
            shared=shared,
        )
        if outcome.timed_out:
            return Remains(ending="deadline")
        if outcome.signal == signal.SIGKILL:
            return Remains(trouble="the verifier process was killed from outside")
        if outcome.signal is not None:
            return Remains(ending=f"signal {outcome.signal}")
        if outcome.error or not isinstance(outcome.result, dict):
            return Remains(trouble=f"the verifier process raised {outcome.error or 'nothing, and reported nothing'}")
        if shared and ("later" not in outcome.result or "leaked" in outcome.result):
            # It stopped before the end, where it closes its subject.
            self._fork_server.retire()
        return remains(outcome.result)

    def verdict(
        self, promises: Promised, demanded: Demand | None = None, *, boot: str = "", verify: bool = False
    ) -> PrefixFinding:
        """Check the subject below the root against what was promised; other guarantees may be ``demanded``."""
        remaining = self.look(promises, boot=boot, verify=verify)
        return check_prefix(demanded or self.demanded, promises, remaining, self._models, self._given)

    def promises(self, life: Life) -> Promised:
        """Return what a writer process was promised, and any anomaly that it found itself."""
        outcome = life.outcome
        promises = folded(life.notes, self.demanded)
        if life.killed:
            return promises
        if outcome.status == 0:
            result = outcome.result
            if promises.broken or not result["gave_up"] or result["fired"]:
                return promises
            return replace(
                promises, broken=(Found.UNUSABLE, f"nothing failed, and the writer gave up: {result['error']}")
            )
        if outcome.timed_out:
            return replace(promises, broken=(Found.HANGING, "the writer did not come to an end"))
        if outcome.signal is None or outcome.signal == signal.SIGKILL:
            return replace(
                promises, trouble=f"the writer was killed from outside, or raised {outcome.error or 'nothing'}"
            )
        return replace(promises, broken=(Found.DEADLY, f"the writer was ended by signal {outcome.signal}"))

    def explore(self, points: Sequence[int], only: str = "") -> Iterator[Row]:
        """Yield a row for each trial of the case at the ascending ``points``, or for the trial ``only`` at each."""
        return IO_FAULTS[self.case.fault].explore(self, points, only)

    def points(self) -> range:
        """Return every point of the case. Raises: as ``recording``."""
        return IO_FAULTS[self.case.fault].points(self.recording(), self.case.variant, self.seed)

    def tried(self, point: int, only: str, description: str, trial: Trial) -> Row:
        """Run a trial, and return its row."""
        return self.row(point, only, description, *self.patiently(trial))

    def of_crash_state(self, point: int, only: str, description: str, promises: Promised, tree: Tree) -> Row:
        """Check the crash state ``tree`` after a power loss, and return the row of the trial."""

        def trial() -> tuple[Promised, PrefixFinding]:
            self.place(tree)
            verdict = self.verdict(promises, boot=BOOT_AFTER_THAT)
            if self.case.variant == TORN_SECTORS and str(verdict.found) not in (*SILENT, Found.HARNESS_ERROR):
                verdict = verdict._replace(expected=True)
            return promises, verdict

        return self.tried(point, only, description, trial) | {"digest": tree.digest(NEVER_READ).hex()}

    def row(self, point: int, only: str, description: str, promises: Promised, verdict: PrefixFinding) -> Row:
        """Return the row of one trial."""
        case = self.case
        if not verdict.expected and not (case.recording or case.mutant) and self.scratch("recording").exists():
            case = replace(case, recording=str(self._keep_recording()))
        return {
            "kind": "operation",
            **case.columns,
            "mutant": case.mutant,
            "seed": self.seed,
            "point": point,
            "only": only,
            "description": description,
            "states": 1,
            "digest": "",
            "result": str(verdict.found),
            "acknowledged": promises.acknowledged,
            "state": verdict.number,
            "attempted": promises.attempted,
            "detail": verdict.detail,
            "noticed": verdict.detected_at,
            "unverified": "",
            "expected": verdict.expected,
            "repeat": repeat_command(case, point, self.seed, only),
        }

    def patiently(self, trial: Trial) -> tuple[Promised, PrefixFinding]:
        """Run ``trial``, and run the whole trial once more with a longer deadline if a process was too late."""
        try:
            promises, verdict = trial()
            if verdict.found is Found.HANGING:
                self._deadline_s *= PATIENCE
                try:
                    promises, verdict = trial()
                finally:
                    self._deadline_s /= PATIENCE
            return promises, verdict if verdict.expected else self._with_room(verdict)
        except ForkServerError as error:
            # This trial has no verdict. The next ones run in a new fork server.
            self.renew()
            return Promised(), breach(Found.HARNESS_ERROR, str(error))

    def _with_room(self, verdict: PrefixFinding) -> PrefixFinding:
        """Return the anomaly, or a harness error if the folder is full: then the anomaly proves nothing."""
        folder = self._fork_server.folder
        free = shutil.disk_usage(folder).free
        if free >= _ROOM_LEFT_BYTES:
            return verdict
        lacking = f"{folder} has only {free:,} bytes left: make room, and run this again. It was {verdict.found}"
        return breach(Found.HARNESS_ERROR, f"{lacking}: {verdict.detail}")

    def recording(self) -> list[IoOperation]:
        """Read the case's recording, or make one if the case names none or the file does not exist.

        Raises: ForkServerError if the recorded writer process fails; ConfigError if an existing recording is
        incomplete, or of another case or seed: with it, every state would be checked wrongly.
        """
        file = Path(self.case.recording) if self.case.recording else self.scratch("recording")
        if not file.exists():
            self.undisturbed(file)
        recording = read_recording(file)
        case = self.case
        notes = [operation.text for operation in recording if operation.kind is Kind.NOTE]
        own = signature(case.subject, case.level, case.mutant, self.seed, case.commits, case.records)
        if notes[:1] != [own] or notes[-1] != END:
            raise ConfigError(
                f"{file} is no whole recording {own}, but {notes[0] if notes else 'empty'}: give the one that was made "
                "of it, or leave it out to make a new one"
            )
        return recording

    def undisturbed(self, recording: Path | None = None) -> int:
        """Run a writer process without faults, and return its number of operations.

        Raises: ForkServerError if it does not complete its work.
        """
        outcome = (life := self.writer(NOTHING, recording)).outcome
        if outcome.status != 0 or outcome.result["gave_up"]:
            complaint = outcome.error or outcome.result or life.notes[-2:]
            raise ForkServerError(f"nothing was to happen to this writer of {self.case.subject}: {complaint}")
        return int(outcome.result["operations"])

    def renew(self) -> None:
        """Replace the fork server, with an empty folder, after a ForkServerError."""
        self._fork_server.restart()
        self._prepare()

    def _prepare(self) -> None:
        with suppress(ForkServerError):
            # This only saves time. The next call that needs the fork server reports the error.
            self._fork_server.prepare(
                "harness.experiments.iofaults.processes:know", {"seed": self.seed, "commits": self.case.commits}
            )

    def scratch(self, name: str) -> Path:
        """Return a path beside the root, for temporary files of a trial."""
        return self._fork_server.folder / name

    def close(self) -> None:
        """End every process of the trials, and remove their files."""
        if self._is_own:
            self._fork_server.close()
            return
        try:
            self._fork_server.retire()
            for entry in self._fork_server.folder.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        except (ForkServerError, OSError):
            self._fork_server.restart()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def _subject(self) -> dict[str, str]:
        return {
            "name": self.case.subject,
            "level": self.case.level,
            "mutant": self.case.mutant,
            "records": self.case.records,
        }

    def _keep_recording(self) -> Path:
        """Copy this case's own recording to a file that outlives the workshop, and return its path.

        The trial is repeated from it. The path is relative to the project's folder if the file lies there, as in
        commands.
        """
        source = self.scratch("recording")
        name = f"{self.case.subject}-{self.case.level}-{blake2b(source.read_bytes(), digest_size=6).hexdigest()}"
        copy = KEPT / name
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            # Rename in one step: other processes may write or read the same file.
            beside = copy.with_name(f"{name}.{os.getpid()}.new")
            shutil.copyfile(source, beside)
            beside.replace(copy)
        return copy.relative_to(ROOT) if copy.is_relative_to(ROOT) else copy.absolute()
