"""The order of a bench: a first answer within two minutes, rounds until it is decided, then all the rest.

A user asks which backend to take, and whether it keeps its promises. The experiments that answer this run first, in
rounds, until every pick is decided or their part of the time is over. The first round is short, and has every backend
at every level. All others follow, each with its share of the time that is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from harness.budget import NEVER, NIGHT, Budget, Deadline, TimeOverError, ended_by
from harness.experiment import Claim, Experiment, Outcome, Request, Rows, TrialPlacement, TrialWorker
from harness.experiments.registry import kinds
from harness.folders import temporary_folder
from harness.processes.child import MeasurementFailedError
from harness.processes.load import LoadWatch, load_columns
from harness.progress import Progress
from harness.report.coverage import Seen, Share
from harness.report.rows import Row, by_kind, write_rows
from harness.spark.gang import Gangs
from harness.spark.runner import run_trials
from harness.spark.session import Session, SparkFailedError

PROBLEMS_MAX = 3
"""After so many trials have failed, no further one runs: they may all fail for the same reason."""
ANSWER = "answer"
ANSWER_SHARE, NIGHT_ANSWER_SHARE = 650.0, 200.0
"""The part of a budget for what picks rest on, relative to the shares of the experiments that follow.

In a night it is a third. Picks that half an hour does not decide differ by little more than what makes no difference.
"""
FIRST_ANSWER_S = 110.0
"""The seconds of the first round of all experiments that answer, which is short."""
Say = Callable[[str], None]


class ExperimentRun:
    """One experiment in a run: its plan, and what has come of it so far. Rows are written to the run's folder.

    ``cover`` gets the classes of points that its trials have tried.
    """

    def __init__(
        self,
        experiment: Experiment[Any],
        trials: Sequence[Any],
        request: Request,
        claim: Claim,
        run_folder: Path,
        cover: Callable[[Sequence[Seen]], object] = lambda _: None,
    ) -> None:
        self.experiment, self.trials = experiment, trials
        self._request, self._claim, self._run_folder, self._cover = request, claim, run_folder, cover
        self._gangs: Gangs | None = None
        self._spreads = 0
        self.outcome = Outcome()
        """The rows as the trials have returned them, the problems and the extent."""
        self.rows: list[Row] = []
        """The rows for the report."""
        self.share = Share()
        """The time that its local trials had when they last began."""

    @property
    def is_local(self) -> bool:
        """True if its trials need no Spark."""
        return self.experiment.placement is TrialPlacement.LOCAL

    def run(self, trials: Sequence[Any], spark: Session | None, say: Say, deadline: Deadline = NEVER) -> None:
        """Run some trials where the experiment says.

        Rows of local trials are written when a trial ends. If others are interrupted, the rows of those that were
        finished are written.
        """
        if self.is_local:
            self.share = Share(max(0.0, deadline.remaining_s), min(map(self.experiment.cost_s, trials), default=0.0))
            self.outcome.add(run_local(self.experiment, trials, say, deadline, self._keep))
            return

        def take(outcome: Outcome) -> None:
            self.outcome.add(outcome)
            rows = self.experiment.finish(trials, outcome.rows, self._claim)
            self._keep(rows)
            self._cover(self.experiment.covered(self.trials, rows))

        def salvage(rows: list[Row]) -> None:
            take(Outcome(rows))

        assert spark is not None
        if self.experiment.placement is TrialPlacement.GANG:
            self._gangs = self._gangs or Gangs(spark, self._request.seed, self._request.log, say)
            take(self._gangs.run(trials, deadline, salvage))
        else:
            self._spreads += 1
            name = self.experiment.name + (f"-{self._spreads}" if self._spreads > 1 else "")
            folder = self._run_folder / "trials" / name
            take(run_trials(spark, self.experiment, trials, folder, say, deadline, salvage))

    def next_round(self, remaining_s: float) -> list[Any]:
        """Return the trials of the next round, see ``Experiment.next_round``."""
        return self.experiment.next_round(self.trials, self.outcome.rows, remaining_s)

    def rest(self) -> list[Any]:
        """Return the trials that run after all rounds."""
        return self.experiment.rest(self.trials, self.outcome.rows)

    def close(self) -> None:
        """Write the rows that are made of those of all local trials."""
        if self.is_local:
            row_ids = set(map(id, self.rows))
            rows = self.experiment.finish(self.trials, self.rows, self._claim)
            self._keep([row for row in rows if id(row) not in row_ids])
            self._cover(self.experiment.covered(self.trials, rows))

    def extents(self) -> Mapping[str, tuple[int, int]]:
        """Return what was tried of the plan and what was planned, by unit."""
        counted = Outcome()
        if not self.outcome.extent:
            for trial in self.trials:
                unit, size = self.experiment.extent(trial)
                counted.count(unit, 0, size)
        counted.add(self.outcome)
        return self.experiment.extents(self.trials, counted)

    def _keep(self, rows: Sequence[Row]) -> None:
        self.rows.extend(rows)
        keep_rows(self._run_folder, rows)


def keep_rows(run_folder: Path, rows: Sequence[Row]) -> None:
    """Add rows of any kinds to those of a run. Raises: ConfigError, as ``write_rows``."""
    for kind, group in by_kind(rows, kinds()).items():
        write_rows(run_folder, kind, group, kinds())


def run_local(
    experiment: Experiment[Any],
    trials: Sequence[Any],
    say: Say,
    deadline: Deadline = NEVER,
    keep: Callable[[list[Row]], object] = lambda _: None,
) -> Outcome:
    """Run the trials one after the other, until ``deadline``, as far as those before them have not made them needless.

    At the deadline the processes of a trial are killed, and it counts as left out. A trial that fails is a problem, and
    the next one runs; after ``PROBLEMS_MAX`` problems none does. ``say`` gets lines of progress, ``keep`` the rows of
    each trial when it ends. Each row has the load of the machine during its trial (``load_columns``), unless the
    experiment has measured that of a part.
    """
    outcome = Outcome()
    with temporary_folder(experiment.name) as folder, ended_by(deadline):
        for number, planned in enumerate(trials, 1):
            rows = None
            trial = experiment.still_needed(planned, outcome.rows)
            if trial is None:
                continue
            if len(outcome.problems) < PROBLEMS_MAX and deadline.remaining_s > experiment.cost_s(trial):
                own = _own_deadline(experiment, trial, trials[number:], deadline)
                rows = _tried(experiment, trial, TrialWorker(folder / f"{number}", deadline=own, say=say), outcome)
            unit, size = experiment.extent(trial)
            outcome.count(unit, 0 if rows is None else experiment.tried(trial, rows), size)
            if rows:
                keep(rows)
                outcome.rows.extend(rows)
                if line := experiment.line(trial, rows):
                    say(f"{number}/{len(trials)}  {line}")
    return outcome


def _own_deadline(experiment: Experiment[Any], trial: Any, others: Sequence[Any], deadline: Deadline) -> Deadline:
    """Return the deadline of a trial that begins now: earlier than that of all if it can leave time to others."""
    kept_s = experiment.kept_s(others)
    fits = deadline.remaining_s > experiment.cost_s(trial) + kept_s
    return replace(deadline, at=deadline.at - kept_s) if fits else deadline


def _tried(experiment: Experiment[Any], trial: Any, worker: TrialWorker, outcome: Outcome) -> list[Row] | None:
    """Return the rows of a local trial; None if the time was over, or if it failed, which is then a problem."""
    watch = LoadWatch()
    try:
        rows = list(experiment.run(trial, worker))
    except TimeOverError:
        return None
    except (MeasurementFailedError, RuntimeError, TimeoutExpired) as error:
        outcome.problems.append(f"a trial of {experiment.words or experiment.title} failed: {error}")
        return None
    load = load_columns([watch.figures()])
    return [{**load, **row} for row in rows]


class BenchRun:
    """The parts of a bench, until ``end``. ``show`` gets all rows so far by kind when a round is over."""

    def __init__(
        self,
        parts: Sequence[ExperimentRun],
        profile: str,
        progress: Progress,
        end: Deadline = NEVER,
        show: Callable[[Rows], None] = lambda _: None,
    ) -> None:
        self.parts = parts
        self._profile, self._progress, self._end, self._show = profile, progress, end, show
        self._spark: Session | None = None
        self.problems: list[str] = []
        """The failures besides those of trials."""

    def run(self, session: Callable[[], AbstractContextManager[Session]]) -> None:
        """Run all parts, within a session of Spark if one of them needs it. Without Spark, the local ones run."""
        try:
            if all(part.is_local for part in self.parts):
                self._run(self.parts)
            else:
                self._progress.stage("starting Spark")
                with session() as self._spark:
                    self._progress.say("it runs")
                    self._run(self.parts)
        except SparkFailedError as error:
            self.problems.append(str(error))
            self._spark = None
            self._run([part for part in self.parts if part.is_local])

    def close(self) -> None:
        """Write the rows that are made of others: at the end, also after an interruption."""
        for part in self.parts:
            part.close()

    def _run(self, parts: Sequence[ExperimentRun]) -> None:
        shares: dict[Hashable, float] = {part: part.experiment.share_in(self._profile) for part in parts}
        answering = [part for part in parts if part.experiment.answers]
        if answering:
            of_answer = NIGHT_ANSWER_SHARE if self._profile == NIGHT else ANSWER_SHARE
            self._answer(answering, Budget(self._end, {**shares, ANSWER: of_answer}).deadline(ANSWER))
        rest = {part: trials for part in parts if (trials := part.rest())}
        budget = Budget(self._end, {part: shares[part] for part in rest})
        for title, group in groupby(rest, key=lambda part: part.experiment.title):
            self._progress.stage(title)
            for part in group:
                part.run(rest[part], self._spark, self._progress.say, budget.deadline(part))

    def _answer(self, answering: Sequence[ExperimentRun], until: Deadline) -> None:
        """Run the first round of all, then further ones until none is needed or the time is over."""
        first_s = min(FIRST_ANSWER_S, 0.9 * self._end.remaining_s)
        first = replace(until, at=until.clock() + first_s) if math.isfinite(until.at) else until
        until = max(first, until, key=lambda each: each.at)
        # Later rounds end with the part that takes longest, so that it has all that others leave of the time.
        longest_last = sorted(answering, key=lambda part: part.experiment.share)
        more = self._round(answering, first)
        while more and not until.passed:
            more = self._round(longest_last, until)

    def _round(self, answering: Sequence[ExperimentRun], until: Deadline) -> bool:
        """Run a round of each part that needs one, and show the rows. Return False if there is none."""
        budget = Budget(until, {part: part.experiment.share for part in answering})
        ran = False
        for part in answering:
            deadline = budget.deadline(part)
            if trials := part.next_round(until.remaining_s):
                ran = True
                self._progress.stage(part.experiment.title)
                part.run(trials, self._spark, self._progress.say, deadline)
        if ran:
            self._progress.end_stage()
            self._show(by_kind([row for part in self.parts for row in part.rows], kinds()))
        return ran
