"""The first process of a trial: ``python -m harness.trials.victim 0`` in the trial's work folder.

It creates everything, works, and dies where the trial's fault says.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from harness.faults import steps
from harness.trials.child import end_with_starter
from harness.trials.history import History
from harness.trials.job import Job, arm
from harness.trials.layout import TRIAL_FILE, history_file
from harness.trials.sabotage import sabotage
from harness.trials.trial import from_text
from stores.registry import backend_named


def main() -> None:
    """Work until death, or to the end of the input."""
    end_with_starter()
    work = Path.cwd()
    trial = from_text((work / TRIAL_FILE).read_text())
    step = steps(trial.fault)[0]
    settings = sabotage(trial.sabotage, backend_named(trial.backend))
    with History(work / history_file(int(sys.argv[1]))) as history:
        history.note("begin")
        job = Job(trial, work, step, history, **settings)
        arm(step, history)
        job.open()
        if trial.memory_limit_bytes is not None:
            limit_memory(trial.memory_limit_bytes)
        job.work()


def limit_memory(further_bytes: int) -> None:
    """Let this process take ``further_bytes`` of address space beyond what it has, and no more."""
    taken_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken_bytes + further_bytes, taken_bytes + further_bytes))


if __name__ == "__main__":
    main()
