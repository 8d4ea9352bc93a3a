"""Where the trials of a sweep are made: a nursery for victims and judges, a folder to work in, and what becomes a row.

A judge that was too late is given more time, once, before anything is called hanging. Whoever else of the harness dies,
is too late or raises makes the trial a harness error, never a find.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from harness.checkers.prefix import Demand, Found, Judgement, Promised, Remains, demand, judged, promised
from harness.disk.files import Tree
from harness.effects.nursery import Nursery, NurseryError, Outcome
from harness.effects.recording import Effect, Kind, read_recording
from harness.folders import ROOT, RUNS, quick_folder
from harness.sweeps.case import Case, repeat_command
from harness.sweeps.judge import remains
from harness.sweeps.passing import PASSING_KINDS, passing_ever
from harness.sweeps.subjects import is_transactional, shown
from harness.sweeps.victim import END, read_account, signature
from harness.sweeps.workload import models, values_ever
from stores.errors import ConfigError

DEADLINE_S = 10.0
"""How much of its own time a victim or a judge may take; they take a hundredth of a second to two."""
PATIENCE = 4
"""How many times longer one that was too late may take when it is tried again."""

NEVER_READ = ("*/LOG",)
"""Files that engines write for people and never read again: what is in them makes no state another one."""
_ROOM_LEFT_BYTES = 16 << 20
"""What must be left wherever sweeps work: with less, a find says nothing."""

KEPT = RUNS / "recordings"
"""Where the recordings of finds are kept that belong to no run; they go with "make clean"."""

Row = dict[str, Any]
Plan = list[Any]
"""A plan of steering as its name and numbers."""
NOTHING: Plan = ["Nothing"]
_KILLING = ("Kill", "Tear", "FailThenKill")


class Life(NamedTuple):
    """What came of a victim: how its process ended, its notes, and why it is not to be judged."""

    outcome: Outcome
    notes: tuple[str, ...]
    killed: bool


class Workshop:
    """Makes the trials of one case, one after the other; use it in a ``with`` block.

    ``nursery``, which preloads the recorder, is the caller's, and given back with an empty folder; unless there is one
    the workshop starts its own. Where the case names no recording, that of a trial which is not as promised is kept in
    the folder ``kept`` (``KEPT`` unless given), for the command that repeats it; all else goes with the workshop.

    Raises: ConfigError where effects can't be steered here.
    """

    def __init__(self, case: Case, seed: int, nursery: Nursery | None = None, kept: Path | None = None) -> None:
        self.case, self.seed = case, seed
        self._kept = kept or KEPT
        self._nursery = nursery or Nursery(within=quick_folder())
        self._is_own = nursery is None
        self._deadline_s = DEADLINE_S
        self._prepare()
        states = models(seed, case.commits)
        self._models = [shown(case.subject, state, case.records) for state in states]
        self._given = {
            key: [
                (number, value if value is None else shown(case.subject, {key: value})[key]) for number, value in given
            ]
            for key, given in values_ever(seed, case.commits + 1).items()
        }
        if case.records in PASSING_KINDS:
            self._given |= passing_ever(case.commits + 1)

    @property
    def root(self) -> Path:
        """The folder that the subject lies in."""
        return self.scratch("root")

    def clear(self) -> Path:
        """An empty root."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        return self.root

    def place(self, tree: Tree) -> None:
        """Put ``tree`` where the root is."""
        tree.write_into(self.clear())

    def victim(self, plan: Plan, recording: Path | None = None, *, go_on_from: int | None = None) -> Life:
        """Let a victim work below a root of its own, under ``plan``.

        Or let it go on, below the root as it is, from commit ``go_on_from``, or whichever the subject itself tells.
        """
        account = self.scratch("account")
        account.unlink(missing_ok=True)
        if go_on_from is None:
            self.clear()
        outcome = self._nursery.run(
            "harness.sweeps.victim:run",
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

    def recover(self, plan: Plan, *, boot: str, recording: Path | None = None) -> Outcome:
        """Open and close the subject as it lies below the root, under ``plan``."""
        return self._nursery.run(
            "harness.sweeps.judge:recover",
            self._subject
            | {
                "root": str(self.root),
                "plan": plan,
                "recording": str(recording or ""),
                "boot": boot,
            },
            deadline_s=self._deadline_s,
        )

    def look(self, told: Promised, *, boot: str, verify: bool = False) -> Remains:
        """What a judge sees below the root, who may ``verify`` the subject before.

        Judges follow each other in one process while they get to their end, if only after restoring. A mutant's may
        remember what it did, and has a process of its own.
        """
        shared = not self.case.mutant
        outcome = self._nursery.run(
            "harness.sweeps.judge:run",
            self._subject
            | {
                "seed": self.seed,
                "commits": self.case.commits,
                "attempted": told.attempted,
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
            return Remains(trouble="the judge was killed from outside")
        if outcome.signal is not None:
            return Remains(ending=f"signal {outcome.signal}")
        if outcome.error or not isinstance(outcome.result, dict):
            return Remains(trouble=f"the judge raised {outcome.error or 'nothing, and told nothing'}")
        if shared and ("later" not in outcome.result or "leaked" in outcome.result):
            # It did not get to its end, where it closes its subject.
            self._nursery.retire()
        return remains(outcome.result)

    def judge(self, told: Promised, demanded: Demand, *, boot: str = "", verify: bool = False) -> Judgement:
        """Judge what lies below the root by what was promised."""
        return judged(demanded, told, self.look(told, boot=boot, verify=verify), self._models, self._given)

    def told(self, life: Life, demanded: Demand) -> Promised:
        """What a victim was promised, and what was wrong with it already while it lived."""
        outcome = life.outcome
        told = folded(life.notes, demanded)
        if life.killed:
            return told
        if outcome.status == 0:
            result = outcome.result
            if told.broken or not result["gave_up"] or result["fired"]:
                return told
            return replace(told, broken=(Found.UNUSABLE, f"nothing failed, and the victim gave up: {result['error']}"))
        if outcome.timed_out:
            return replace(told, broken=(Found.HANGING, "the victim did not come to an end"))
        if outcome.signal is None or outcome.signal == signal.SIGKILL:
            return replace(told, trouble=f"the victim was killed from outside, or raised {outcome.error or 'nothing'}")
        return replace(told, broken=(Found.DEADLY, f"the victim was ended by signal {outcome.signal}"))

    def demanded(self, fault: str) -> Demand:
        """What the case's subject owes after ``fault``."""
        return demand(self.case.level, fault, transactional=is_transactional(self.case.subject))

    def row(self, point: int, only: str, description: str, told: Promised, judgement: Judgement) -> Row:
        """One row of the sweep's results."""
        case = self.case
        if not judgement.expected and not (case.recording or case.mutant) and self.scratch("recording").exists():
            case = replace(case, recording=str(self._keep_recording()))
        return {
            "backend": case.subject,
            "durability": case.level,
            "fault": case.fault,
            "variant": case.variant,
            "mutant": case.mutant,
            "records": case.records,
            "seed": self.seed,
            "point": point,
            "only": only,
            "description": description,
            "states": 1,
            "digest": "",
            "result": str(judgement.found),
            "acknowledged": told.acknowledged,
            "state": judgement.number,
            "attempted": told.attempted,
            "detail": judgement.detail,
            "noticed": judgement.noticed,
            "unverified": "",
            "expected": judgement.expected,
            "repeat": repeat_command(case, point, self.seed, only),
        }

    def patiently(self, trial: Callable[[], tuple[Promised, Judgement]]) -> tuple[Promised, Judgement]:
        """Run ``trial``, whole, a second time with more time where it was too late the first time."""
        try:
            told, judgement = trial()
            if judgement.found is Found.HANGING:
                self._deadline_s *= PATIENCE
                try:
                    told, judgement = trial()
                finally:
                    self._deadline_s /= PATIENCE
            return told, judgement if judgement.expected else self._with_room(judgement)
        except NurseryError as error:
            # Of this trial nothing is known; those after it are for a nursery that lives.
            self.renew()
            return Promised(), Judgement(Found.HARNESS_ERROR, None, False, str(error))

    def _with_room(self, judgement: Judgement) -> Judgement:
        """A find, unless the folder is full: then it says nothing about the subject."""
        folder = self._nursery.folder
        free = shutil.disk_usage(folder).free
        if free >= _ROOM_LEFT_BYTES:
            return judgement
        told = f"{folder} has only {free:,} bytes left: make room, and run this again. It was {judgement.found}"
        return Judgement(Found.HARNESS_ERROR, None, False, f"{told}: {judgement.detail}")

    def recording(self) -> list[Effect]:
        """The case's recording: read where it gives one, else made by a victim that nothing happens to.

        Raises: NurseryError where that victim does not get to its end; ConfigError where the one that is there is
        not whole, or of another case or seed: by it every state would be judged wrongly.
        """
        made = Path(self.case.recording) if self.case.recording else self.scratch("recording")
        if not made.exists():
            self.undisturbed(made)
        recording = read_recording(made)
        case = self.case
        notes = [effect.text for effect in recording if effect.kind is Kind.NOTE]
        own = signature(case.subject, case.level, case.mutant, self.seed, case.commits, case.records)
        if notes[:1] != [own] or notes[-1] != END:
            raise ConfigError(
                f"{made} is no whole recording {own}, but {notes[0] if notes else 'empty'}: give the one that was made "
                "of it, or leave it out to make a new one"
            )
        return recording

    def undisturbed(self, recording: Path | None = None) -> int:
        """Let a victim that nothing happens to come to its end; how many effects it had.

        Raises: NurseryError where it does not.
        """
        outcome = (life := self.victim(NOTHING, recording)).outcome
        if outcome.status != 0 or outcome.result["gave_up"]:
            said = outcome.error or outcome.result or life.notes[-2:]
            raise NurseryError(f"nothing was to happen to this victim of {self.case.subject}: {said}")
        return int(outcome.result["effects"])

    def renew(self) -> None:
        """Go on in another nursery, with an empty folder, after a NurseryError."""
        self._nursery.restart()
        self._prepare()

    def _prepare(self) -> None:
        with suppress(NurseryError):
            # Whoever needs the nursery tells what is wrong with it; this only saves time.
            self._nursery.prepare("harness.sweeps.victim:know", {"seed": self.seed, "commits": self.case.commits})

    def scratch(self, name: str) -> Path:
        """A path beside the root, for what a sweep keeps meanwhile."""
        return self._nursery.folder / name

    def close(self) -> None:
        """End every process of the trials, and what they left with them."""
        if self._is_own:
            self._nursery.close()
            return
        try:
            self._nursery.retire()
            for left in self._nursery.folder.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        except (NurseryError, OSError):
            self._nursery.restart()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """A copy of this case's own recording that outlives the workshop: a find is repeated from it.

        Its path is the project's where it lies there, as commands name it.
        """
        made = self.scratch("recording")
        name = f"{self.case.subject}-{self.case.level}-{blake2b(made.read_bytes(), digest_size=6).hexdigest()}"
        kept = self._kept / name
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            # In one step: others may be at it, or read it.
            beside = kept.with_name(f"{name}.{os.getpid()}.new")
            shutil.copyfile(made, beside)
            beside.replace(kept)
        return kept.relative_to(ROOT) if kept.is_relative_to(ROOT) else kept.absolute()


def folded(notes: Sequence[str], demanded: Demand) -> Promised:
    """What notes of a victim add up to."""
    try:
        return promised(notes, keeps=demanded.keeps and demanded.transactional)
    except ValueError as error:
        return Promised(trouble=str(error))
