"""The time until a store is open and restored after a kill, against the number of records in it.

A store is filled and closed cleanly, as a long-lived one mostly is on disk. Then, for each repeat, commits of 1,000
records follow. In one more commit the process is killed after the changelog has it, and before the store has it. A
fresh process opens the task. It replays that last commit, and those before it if a kill may lose them at this level.

If a kill may lose them (RocksDB without a WAL loses its memtable), the commits almost fill a write buffer, with at most
half as many records as the store has. Otherwise there are ten. A store that is not transactional is wiped and restored.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from harness.experiments.opening import steps as opening_steps
from harness.experiments.opening.steps import ORDER_FILE, figures_file
from harness.folders import temporary_folder
from harness.processes.measured import figures_of, write_figures
from stores.errors import ConfigError
from stores.interface import Durability
from stores.registry import backend_named

DEADLINE_S = 180
DEADLINE_PER_RECORD_S = 0.0002


@dataclass(frozen=True, slots=True)
class OpeningTrial:
    """One store that is filled once, then killed and opened ``repeats`` times."""

    backend: str
    durability: Durability
    records: int
    repeats: int
    seed: int

    def __post_init__(self) -> None:
        backend = backend_named(self.backend)
        if self.durability not in backend.durabilities or not backend.persistent:
            raise ConfigError(f"{self.backend} at {self.durability} keeps nothing to open: choose another")
        if min(self.records, self.repeats) < 1:
            raise ConfigError("records and repeats count from 1")


def run_opening(trial: OpeningTrial, *, code: str | None = None, within: Path | None = None) -> list[dict[str, Any]]:
    """Return the rows of a trial, of kind "opening", one per repeat. ``code`` and ``within`` are as for ``run``.

    Raises: MeasurementFailedError.
    """
    order = {name: getattr(trial, name) for name in ("backend", "durability", "records", "seed")}
    with temporary_folder("opening", within) as folder:
        write_figures(folder / ORDER_FILE, order)
        step = partial(_step, trial, folder, code)
        step("fill")
        rows = []
        for repeat in range(trial.repeats):
            step("tail")
            rows.append({"kind": "opening", **order, "repeat": repeat, **step("reopen")})
        return rows


def ratios(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of kind "ratio": a store opens within a second after a kill, and a full one as fast as a small one.

    There is one for each backend and level that does not replay its whole changelog; more than 1 is faster than
    required.
    """
    ready: dict[tuple[str, str], dict[int, list[float]]] = {}
    for row in rows:
        if row["replayed"] >= row["records"]:
            continue
        by_size = ready.setdefault((row["backend"], row["durability"]), {})
        by_size.setdefault(row["records"], []).append(row["open_s"] + row["restore_s"])
    found = []
    for (backend, durability), by_size in sorted(ready.items()):
        small, large = min(by_size), max(by_size)
        shared = {"kind": "ratio", "subject": backend, "durability": durability, "records_per_commit": None}
        times = {size: median(seconds) for size, seconds in by_size.items()}
        found.append(
            {
                **shared,
                "claim": f"open and restored after a kill, with {large:,} records, against one second",
                "yardstick": "one second",
                "ratio": 1 / times[large],
                "at_least": 1.0,
            }
        )
        if large > small:
            found.append(
                {
                    **shared,
                    "claim": f"open and restored after a kill, with {large:,} records against {small:,}",
                    "yardstick": backend,
                    "ratio": times[small] / times[large],
                    "at_least": 1.0,
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
