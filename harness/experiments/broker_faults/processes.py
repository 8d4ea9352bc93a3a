"""A process of a trial from outside: it runs beside others, is watched by its files, stopped, continued and killed."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from harness.budget import check_time, seconds_for
from harness.checkers.counting import PROCESS, Finding
from harness.experiments.broker_faults.trial import NOTED, POLL_S, STATUS, go_file, reached_file
from harness.processes.child import (
    ARGUMENTS_FILE,
    FIGURES_FILE,
    MeasurementFailedError,
    child_environment,
    end,
    last_complaint,
    python,
    read_figures,
    start,
    write_figures,
)

DEADLINE_S = 600.0
"""The time for which a trial waits for one thing. A task tries for 30 s by default; several may do so in a row."""
_WORKERS = 2
_DEATHS_NAMED = 3
_COMPLAINT_MAX = 300
"""The characters of a complaint that a finding has."""


class BrokenPromiseError(Exception):
    """A process of a trial failed, or did not end."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.finding = Finding(PROCESS, sentence)


class TrialProcess:
    """A process that runs ``module`` in a new folder, by which it is named. A ``with`` block ends it.

    ``code`` is its import path; None is that of this process. Raises, all methods: BrokenPromiseError if it failed, or
    a thing does not happen in time; TimeOverError, see ``harness.budget``.
    """

    def __init__(self, module: str, folder: Path, arguments: Mapping[str, Any], code: str | None) -> None:
        folder.mkdir()
        write_figures(folder / ARGUMENTS_FILE, dict(arguments))
        self._folder = folder
        self._count = 0
        self._process = start(python(module, str(folder)), folder, child_environment(code, folder))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        end(self._process)

    def await_reached(self, hit: int) -> None:
        """Wait until it waits at its place, for the ``hit``-th time. Raises: MeasurementFailedError if it ends."""
        self._count = hit
        if not self._has_reached():
            self.figures()
            raise MeasurementFailedError(f"{self._name} did not come to the place of the fault")

    def reached(self) -> bool:
        """Wait until it waits at its place once more; return False if it ends before that."""
        self._count += 1
        return self._has_reached()

    def go(self) -> None:
        """Let it continue from its place."""
        (self._folder / go_file(self._count)).touch()

    def await_error(self) -> None:
        """Wait until its task has reported an error that passes, or it has ended."""
        mark = self._folder / NOTED
        self._await("report an error", lambda: mark.exists() or self._has_ended())

    @property
    def has_reported_errors(self) -> bool:
        """True if its task has reported an error that passes."""
        return (self._folder / NOTED).exists()

    def status(self) -> tuple[int, int]:
        """Return the number of tasks that a worker runs, and that of the records that they have processed."""
        file = self._folder / STATUS
        if not file.exists():
            return 0, 0
        status = json.loads(file.read_text())
        return status["running"], status["done"]

    def death(self) -> Finding | None:
        """Return how it has ended; None if it runs."""
        if not self._has_ended():
            return None
        try:
            self.figures()
        except BrokenPromiseError as error:
            return error.finding
        return Finding(PROCESS, f"{self._name} has ended by itself")

    def await_done(self, running: int, done: int) -> None:
        """Wait until a worker runs so many tasks, which have processed so many records together."""

        def is_done() -> bool:
            if self._has_ended():
                self.figures()
                raise BrokenPromiseError(f"{self._name} has ended by itself")
            return self.status() == (running, done)

        self._await(f"process {done} records in {running} tasks", is_done)

    def stop(self) -> None:
        """Stop it where it is (SIGSTOP)."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it continue after ``stop``."""
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Ask it to end (SIGTERM), and wait for its end."""
        self._process.send_signal(signal.SIGTERM)
        self.figures()

    def await_kill(self) -> None:
        """Wait for its death by SIGKILL. Raises: MeasurementFailedError if it ended by itself."""
        if self._ended() != -signal.SIGKILL:
            self.figures()
            raise MeasurementFailedError(f"{self._name} did not come to the place at which it is killed")

    def figures(self) -> dict[str, Any]:
        """Wait for its end, and return its figures."""
        status = self._ended()
        if status != 0:
            raise BrokenPromiseError(f"{self._name} ended with status {status}: {self._complaint()}")
        return read_figures(self._folder / FIGURES_FILE)

    def last_complaint(self) -> str:
        """Return a sentence with the last warning or error that it has logged."""
        return f"{self._name} logged last: {self._complaint() or 'nothing'}"

    def _complaint(self) -> str:
        return last_complaint(self._folder).replace(str(self._folder.parent), "WORK")[:_COMPLAINT_MAX]

    @property
    def _name(self) -> str:
        return f"the process {self._folder.name!r}"

    def _has_reached(self) -> bool:
        mark = self._folder / reached_file(self._count)
        self._await("reach its place", lambda: mark.exists() or self._has_ended())
        return mark.exists()

    def _has_ended(self) -> bool:
        return self._process.poll() is not None

    def _ended(self) -> int:
        self._await("end", self._has_ended)
        return int(self._process.returncode)

    def _await(self, what: str, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds_for(DEADLINE_S)
        while not happened():
            if time.monotonic() > deadline:
                check_time()
                raise BrokenPromiseError(f"{self._name} did not {what} within {DEADLINE_S:.0f} s")
            time.sleep(POLL_S)


class Workers:
    """The busy workers of a trial, two at any time; ``start_one`` starts another one."""

    def __init__(self, start_one: Callable[[], TrialProcess]) -> None:
        self._start_one = start_one
        self._living: list[TrialProcess] = []
        self.deaths: list[str] = []
        """The sentence of each death."""

    def start(self) -> None:
        """Start all of them."""
        while len(self._living) < _WORKERS:
            self._living.append(self._start_one())

    def replace_dead(self) -> None:
        """Start a worker for each one that has ended."""
        for worker in list(self._living):
            if (death := worker.death()) is not None:
                self._living.remove(worker)
                self._note(death)
        self.start()

    def await_done(self, running: int, done: int) -> None:
        """Wait until they run so many tasks, which have processed so many records together.

        Raises: BrokenPromiseError if that takes too long.
        """
        deadline = time.monotonic() + seconds_for(DEADLINE_S)
        while True:
            self.replace_dead()
            statuses = [worker.status() for worker in self._living]
            if (sum(each[0] for each in statuses), sum(each[1] for each in statuses)) == (running, done):
                return
            if time.monotonic() > deadline:
                check_time()
                complaints = "; ".join(worker.last_complaint() for worker in self._living)
                raise BrokenPromiseError(
                    f"the workers did not process {done} records within {DEADLINE_S:.0f} s of the last fault, but "
                    f"{statuses}; {len(self.deaths)} died {self.deaths[:_DEATHS_NAMED]}; {complaints}"
                )
            time.sleep(POLL_S)

    def terminate(self) -> None:
        """Ask each to end, which it must do in order."""
        for worker in self._living:
            try:
                worker.terminate()
            except BrokenPromiseError as error:
                self._note(error.finding)

    def findings(self) -> list[Finding]:
        """Return a finding if workers have died."""
        if not self.deaths:
            return []
        return [Finding(PROCESS, f"{len(self.deaths)} workers died: {'; '.join(self.deaths[:_DEATHS_NAMED])}")]

    def _note(self, death: Finding) -> None:
        self.deaths.append(death.sentence)
