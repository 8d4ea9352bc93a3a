"""The time until a store is open and restored after a kill, against the number of records in it.

Each store is filled and closed cleanly, as a long-lived one mostly is on disk. Repeats come in rounds: each round has
every backend once, in an order shuffled by the seed. In a repeat, commits of 1,000 records follow. In one more commit
the process is killed after the changelog has it, and before the store has it. A fresh process opens the task. It
replays that last commit, and those before it if a kill may lose them at this level.

If a kill may lose them (RocksDB without a WAL loses its memtable), the commits almost fill a write buffer, with at most
half as many records as the store has. Otherwise there are ten. A store that is not transactional is wiped and restored.

In each repeat, a copy of the killed store's files is also opened by itself, without a changelog, and another copy with
the bare engine. Opening and recovering a store is compared with the latter.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from harness.budget import NEVER, Deadline
from harness.experiments.opening import steps as opening_steps
from harness.experiments.opening.steps import ORDER_FILE, figures_file
from harness.folders import temporary_folder
from harness.processes.load import LoadWatch, load_columns
from harness.processes.measured import figures_of, write_figures
from stores.errors import ConfigError
from stores.interface import Durability
from stores.registry import backend_named

DEADLINE_S = 180
DEADLINE_PER_RECORD_S = 0.0002
BARE_AT_LEAST = 0.5
"""A store may take twice as long to open and recover as its engine takes to open the same files."""


@dataclass(frozen=True, slots=True)
class OpeningTrial:
    """Stores of the same size, one per backend, that are filled once, then killed and opened ``repeats`` times."""

    backends: tuple[str, ...]
    durability: Durability
    records: int
    repeats: int
    seed: int

    def __post_init__(self) -> None:
        if not self.backends:
            raise ConfigError("a trial of opening needs one or more backends")
        for name in self.backends:
            backend = backend_named(name)
            if self.durability not in backend.durabilities or not backend.persistent:
                raise ConfigError(f"{name} at {self.durability} keeps nothing to open: choose another")
        if min(self.records, self.repeats) < 1:
            raise ConfigError("records and repeats count from 1")


def run_opening(
    trial: OpeningTrial, *, code: str | None = None, within: Path | None = None, deadline: Deadline = NEVER
) -> list[dict[str, Any]]:
    """Return the rows of a trial, of kind "opening", one per repeat. ``code`` and ``within`` are as for ``run``.

    After ``deadline`` no store is filled or opened: there are fewer rows then.

    Raises: MeasurementFailedError.
    """
    shared = {name: getattr(trial, name) for name in ("durability", "records", "seed")}
    rows: list[dict[str, Any]] = []
    with temporary_folder("opening", within) as scratch:
        for backend in trial.backends:
            if deadline.passed:
                return rows
            (scratch / backend).mkdir()
            write_figures(scratch / backend / ORDER_FILE, {"backend": backend, **shared})
            _step(trial, scratch / backend, code, "fill")
        for repeat in range(trial.repeats):
            order = list(trial.backends)
            random.Random(f"opening {trial.seed} {repeat}").shuffle(order)
            for backend in order:
                if deadline.passed:
                    return rows
                step = partial(_step, trial, scratch / backend, code)
                step("tail")
                watch = LoadWatch()
                figures = {**step("apart"), **step("reopen")}
                row = {"kind": "opening", "backend": backend, **shared, "repeat": repeat}
                rows.append({**row, **figures, **load_columns([watch.figures()])})
    return rows


def ratios(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of kind "ratio", for each backend and level that does not replay its whole changelog.

    The largest store opens within a second after a kill: more than 1 is faster. A store of any size, without the replay
    of the tail, opens and recovers at most twice as slowly as the bare engine opens the same files.
    """
    ready: dict[tuple[str, str], dict[int, list[Mapping[str, Any]]]] = {}
    for row in rows:
        if row["replayed"] >= row["records"]:
            continue
        by_size = ready.setdefault((row["backend"], row["durability"]), {})
        by_size.setdefault(row["records"], []).append(row)
    found = []
    for (backend, durability), by_size in sorted(ready.items()):
        large = max(by_size)
        shared = {"kind": "ratio", "subject": backend, "durability": durability, "records_per_commit": None}
        ready_s = median(row["open_s"] + row["restore_s"] for row in by_size[large])
        found.append(
            {
                **shared,
                "claim": f"open and restored after a kill, with {large:,} records, against one second",
                "yardstick": "one second",
                "ratio": 1 / ready_s,
                "at_least": 1.0,
            }
        )
        for size, group in sorted(by_size.items()):
            compared = [row for row in group if row["bare_s"] is not None]
            if not compared:
                continue
            found.append(
                {
                    **shared,
                    "claim": f"opening and recovering {size:,} records, against opening the files with the bare engine",
                    "yardstick": f"bare {backend_named(backend).engine}",
                    "ratio": median(row["bare_s"] for row in compared) / median(row["alone_s"] for row in compared),
                    "at_least": BARE_AT_LEAST,
                }
            )
    return found


def _step(trial: OpeningTrial, folder: Path, code: str | None, step: str) -> dict[str, Any]:
    dies = step == "tail"
    return figures_of(
        opening_steps.__name__,
        [step, str(folder)],
        folder=folder,
        code=code,
        deadline_s=DEADLINE_S + DEADLINE_PER_RECORD_S * trial.records,
        status=-signal.SIGKILL if dies else 0,
        file=None if dies else figures_file(step),
    )
