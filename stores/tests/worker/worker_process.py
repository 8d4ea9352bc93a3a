"""A worker in a process of its own, which may be killed at a failpoint of a rebalance."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import pytest

from stores import failpoints
from stores.changelog import group

DEADLINE_S = 600.0
SESSION = dict.fromkeys(["session.timeout.ms", "max.poll.interval.ms"], str(round(2 * DEADLINE_S * 1000)))
"""Settings for a session that is longer than any wait of a test: what comes before its end did not wait for it."""
IDLE = r"tasks, [\d,]+ records/s, lag 0$"
"""A status line without a restore and without anything to do."""
_APPLICATIONS = "stores.tests.worker.counting_app"
COUNTING = f"{_APPLICATIONS}:app"
BATCHED = f"{_APPLICATIONS}:batched"
"""The application that gets batches."""
over_both_forms = pytest.mark.parametrize("application", [COUNTING, BATCHED], ids=["records", "batches"])
"""Run a test with the application that counts record by record, and with the one that gets batches."""
_STATUS = re.compile(r"[\w.-]+: (queries at \S+, )?\d+ tasks")
_REPORT_CHARACTERS = 3_000


class WorkerProcess:
    """``python -m stores.worker`` in the folder ``place/NAME``, or a ``command`` of Python. A ``with`` block ends it.

    ``dies_at`` is a failpoint at which it kills itself, from its next rebalance on if ``in_rebalance``. If ``verbose``
    it logs its restores. ``python`` is that of another environment, which has the library installed.
    """

    _in_folder: ClassVar[dict[Path, list[WorkerProcess]]] = {}

    def __init__(
        self,
        folder: Path,
        name: str,
        properties: Mapping[str, str],
        *,
        application: str = COUNTING,
        dies_at: str = "",
        in_rebalance: bool = False,
        verbose: bool = False,
        command: Sequence[str] = ("-m", "stores.worker"),
        python: Path | None = None,
    ) -> None:
        config = folder / f"{name}.properties"
        all_properties = {
            "state.dir": str(folder / "state"),
            "commit.interval.ms": "50",
            "status.interval.ms": "50",
            **properties,
        }
        config.write_text("# a comment\n" + "".join(f"{key} = {value}\n" for key, value in all_properties.items()))
        self._errors = folder / f"{name}.stderr"
        start = ["-m", __name__, dies_at, str(int(in_rebalance))] if dies_at else command
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [python or sys.executable, *start, application, "--config", config, *["--verbose"][: int(verbose)]],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": "" if python else os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        self._in_folder.setdefault(folder, []).append(self)

    @classmethod
    def in_folder(cls, folder: Path) -> list[WorkerProcess]:
        """Return the processes that were started in a folder."""
        return list(cls._in_folder.get(folder, ()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def errors(self) -> str:
        """Its standard error so far."""
        return self._errors.read_text()

    @property
    def runs(self) -> bool:
        """False if it has ended."""
        return self._process.poll() is None

    @property
    def report(self) -> str:
        """Its exit status if it has ended, and the end of its standard error, with the newest status line alone."""
        status = "runs" if self.runs else f"has ended with status {self._process.returncode}"
        lines = self.errors.splitlines()
        newest = [line for line in lines if _STATUS.match(line)][-1:]
        report = "\n".join([line for line in lines if not _STATUS.match(line)] + newest)
        return f"the worker {self._errors.stem!r} {status}: {report[-_REPORT_CHARACTERS:]}"

    def await_line(self, pattern: str) -> None:
        """Wait until its newest status line matches."""
        deadline = time.monotonic() + DEADLINE_S
        while not re.search(pattern, (self.errors.splitlines() or [""])[-1]):
            assert self.runs, self.report
            assert time.monotonic() < deadline, f"{pattern}: {self.report}"
            time.sleep(0.02)

    def await_caught_up(self, tasks: int) -> None:
        """Wait until it has so many tasks, and has processed all input that there is now."""
        deadline = time.monotonic() + DEADLINE_S
        num_lines = len(self.errors.splitlines())
        # The next line may have been computed before.
        while len(lines := self.errors.splitlines()) < num_lines + 2 or not re.search(f"{tasks} {IDLE}", lines[-1]):
            assert self.runs, self.report
            assert time.monotonic() < deadline, self.report
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill it, and wait for its end."""
        self._process.kill()
        self._process.wait()

    def await_text(self, text: str) -> None:
        """Wait until it has written a text to its standard error."""
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.errors:
            assert self.runs, self.report
            assert time.monotonic() < deadline, f"{text}: {self.report}"
            time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it."""
        self._process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end; return its exit status."""
        return self._process.wait(DEADLINE_S)

    def terminate(self) -> int:
        """Ask it to end; return its exit status."""
        self.send(signal.SIGTERM)
        return self.ended()


def die() -> None:
    """End this process like a crash."""
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    from stores.worker.__main__ import main as run_worker

    dies_at, in_rebalance, *arguments = sys.argv[1:]
    if int(in_rebalance) and dies_at != group.BEFORE_REVOKE:
        failpoints.arm(group.BEFORE_REVOKE, lambda: failpoints.arm(dies_at, die))
    else:
        failpoints.arm(dies_at, die)
    return run_worker(arguments)


if __name__ == "__main__":
    sys.exit(main())
