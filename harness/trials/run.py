"""Run a trial: one process after another, each of which dies as its fault says, until one gets to the end."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from harness.checkers import CHECKERS, Result, Verdict, worst
from harness.checkers.evidence import Log
from harness.effects.nursery import Nursery
from harness.faults import Truncate, steps
from harness.trials.child import run_child, run_forked
from harness.trials.history import read_history
from harness.trials.layout import CHANGELOG_FILE, FOUND_FOLDER, STATE_FOLDER, TRIAL_FILE, history_file
from harness.trials.ledger import read_ledger
from harness.trials.observation import Observation, evidence, mishap, missing
from harness.trials.trial import Trial
from harness.trials.truncation import truncate
from harness.typed_maps import PLAIN

DEADLINE_S = 60.0
"""How long one process of a trial may take. RocksDB may loop for ever while it opens what a crash has left."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A trial that was run and judged.

    ``verdicts`` are the same on every run of the same trial; ``complaint``, the last thing that a failed process
    said, and ``seconds`` are not.
    """

    trial: Trial
    verdicts: tuple[Verdict, ...]
    seconds: float
    complaint: str = ""

    @property
    def result(self) -> Result:
        """The worst of the verdicts."""
        return worst(self.verdicts)

    @property
    def verdicts_text(self) -> str:
        """The verdicts as one line of JSON: the bytes that two runs have in common."""
        return json.dumps([verdict._asdict() for verdict in self.verdicts], separators=(",", ":"))


def run(
    trial: Trial, work: Path, *, code: str | None = None, deadline_s: float = DEADLINE_S, nursery: Nursery | None = None
) -> Observation:
    """Run the processes of ``trial`` in the empty folder ``work``, and keep what they leave.

    They are forked in ``nursery`` where one is given, else started; ``code`` is then their PYTHONPATH entry, that of
    this process unless given.
    """
    (work / TRIAL_FILE).write_text(trial.text)
    histories, endings, logs = [], [], []
    for number in range(len(steps(trial.fault)) + 1):
        if number:
            logs.append(_log(work, trial.records))
            _copy_state(work)
            if isinstance(steps(trial.fault)[number - 1], Truncate):
                truncate(work / CHANGELOG_FILE, _log(work), trial.records)
        module = "harness.trials.survivor" if number else "harness.trials.victim"
        if nursery is None:
            ending = run_child(module, [str(number)], work, deadline_s, code)
        else:
            ending = run_forked(nursery, module, number, work, deadline_s)
        histories.append(read_history(work / history_file(number)))
        endings.append(ending)
        if mishap(trial, number, ending, histories[-1]):
            break
    logs.append(_log(work, trial.records))
    return Observation(histories, endings, logs)


def judge(trial: Trial, observation: Observation) -> tuple[Verdict, ...]:
    """What each checker says, after whether the fault took its course at all."""
    gap = missing(trial, observation)
    course = Verdict("course", Result.UNKNOWN if gap else Result.VALID, gap)
    judged = evidence(trial, observation)
    return (course, *(check(judged) for check in CHECKERS.values()))


def examine(
    trial: Trial,
    *,
    work: Path | None = None,
    code: str | None = None,
    deadline_s: float = DEADLINE_S,
    nursery: Nursery | None = None,
) -> Outcome:
    """Run and judge ``trial``, and never raise: what goes wrong is a verdict of its own.

    It works in ``work``, an empty folder that is then left as it is, or else in a temporary one that is removed.
    """
    begun = time.monotonic()
    folder = work or Path(tempfile.mkdtemp(prefix=f"trial-{trial.id}-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        observation = run(trial, folder, code=code, deadline_s=deadline_s, nursery=nursery)
        verdicts = judge(trial, observation)
        complaint = next((ending.complaint for ending in reversed(observation.endings) if ending.complaint), "")
    except Exception as error:  # Whatever it is, the other trials go on and this one is not forgotten.
        verdicts = (Verdict("course", Result.UNKNOWN, f"the trial could not be run: {type(error).__name__}"),)
        complaint = str(error)
    finally:
        if work is None:
            shutil.rmtree(folder, ignore_errors=True)
    return Outcome(trial, verdicts, time.monotonic() - begun, complaint)


def _log(work: Path, records: str = PLAIN) -> Log:
    """The committed log, read from a copy: even looking at the file itself would change it."""
    with tempfile.TemporaryDirectory(dir=work) as aside:
        for file in work.glob(f"{CHANGELOG_FILE}*"):
            if not file.name.endswith("-shm"):
                shutil.copyfile(file, Path(aside, file.name))
        return read_ledger(Path(aside, CHANGELOG_FILE), records)


def _copy_state(work: Path) -> None:
    """Set a copy of the stores aside to look at: opening a store recovers it, and that is the next process's part."""
    shutil.rmtree(work / FOUND_FOLDER, ignore_errors=True)
    if (work / STATE_FOLDER).exists():
        shutil.copytree(work / STATE_FOLDER, work / FOUND_FOLDER)
