"""A later process of a trial: ``python -m harness.experiments.crash.survivor NUMBER`` in the trial's work folder.

It reads a copy of the stores that the last process left. Then it recovers, restores, and works to the end of the input,
unless the trial's fault kills it on the way.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from harness import replay
from harness.experiments.crash.observation import History
from harness.experiments.crash.operations import STORES
from harness.experiments.crash.trial import FOUND_FOLDER, STATE_FOLDER, TRIAL_FILE, Trial, history_file
from harness.experiments.crash.writer import INPUT, TASK, Job, arm, changelog_partition, dump, store_options
from harness.faults import steps
from harness.mutants.registry import patch
from harness.processes.child import end_with_starter
from harness.typed_maps import view_as_map
from stores.interface import IsolationLevel
from stores.registry import backend_named, open_store
from stores.tasks import StateDirectory


def work(number: int) -> None:
    """Note the state that is found, continue from it, and note the final state."""
    folder = Path.cwd()
    trial = replay.from_text(Trial, (folder / TRIAL_FILE).read_text())
    planned = steps(trial.fault)
    step = planned[number] if number < len(planned) else None
    patch(trial.mutant, backend_named(trial.backend).name)
    with History(folder / history_file(number)) as history:
        history.note("found", stores={store: found(trial, folder / FOUND_FOLDER, store) for store in STORES})
        job = Job(trial, folder, step, history)
        arm(step, history)
        reports = job.open()
        history.note("restored", stores=job.reported(reports))
        job.work()
        if step is None and backend_named(trial.backend).persistent:
            history.note(
                "final", states={store: found(trial, folder / STATE_FOLDER, store)["state"] for store in STORES}
            )


def found(trial: Trial, folder: Path, store: str) -> dict[str, Any]:
    """Open one store below ``folder`` alone, and return its content after recovery and its declared properties."""
    path = StateDirectory(folder).store_folder(TASK, trial.backend, store)
    with open_store(
        trial.backend, path, name=store, durability=trial.durability, options=store_options(trial)
    ) as opened:
        return {
            "state": dump(view_as_map(trial.records, opened.read_only(IsolationLevel.READ_COMMITTED))),
            "committed_offset": opened.committed_offset(changelog_partition(store)),
            "position": opened.position(IsolationLevel.READ_COMMITTED).get(INPUT),
            "recovery": opened.recover().outcome,
            "transactional": opened.transactional,
            "manages_offsets": opened.manages_offsets,
            "persistent": opened.persistent,
        }


if __name__ == "__main__":
    end_with_starter()
    work(int(sys.argv[1]))
