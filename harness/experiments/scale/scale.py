"""Run a trial of scale: its processes one after the other, and what they found as one row and those of its parts."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.budget import NEVER, TIME_OVER, Deadline, TimeOverError
from harness.experiment import check_counts
from harness.experiments.scale import steps
from harness.experiments.store_of_records import STORE
from harness.processes.apart import NoMemoryLimitError, memory_limit
from harness.processes.child import MeasurementFailedError, figures_in
from harness.progress import ProgressFile
from harness.report import text
from stores.errors import ConfigError
from stores.interface import Durability
from stores.registry import backend_named

DEADLINE_S = 600
DEADLINE_PER_RECORD_S = 0.005
DISK_TIMES = 5
"""Room for a store in half-full pages and a compaction of it, or for it and its changelog, in sizes of the state."""
Say = Callable[[str], None]


def run_scale(
    trial: ScaleTrial, folder: Path, *, say: Say = lambda _: None, code: str | None = None, deadline: Deadline = NEVER
) -> list[dict[str, Any]]:
    """Return a row of kind "scale", and rows of kind "scale_part" for the parts of the puts.

    ``folder`` exists and is empty. If a process fails, or a limit on memory can't be set, the row says so as its
    ``problem``, and lacks what was not measured. So does one whose time was over: see ``figures.is_cut``. No process is
    started after ``deadline``.
    """
    shared = {"backend": trial.backend, "durability": str(LEVEL), "records": trial.records}
    shared |= {"value_bytes": trial.value_bytes, "memory_max_bytes": trial.memory_max_bytes, "seed": trial.seed}
    row: dict[str, Any] = {"kind": "scale", **shared, "state_bytes": trial.state_bytes, "problem": "", "unlimited": ""}
    parts: list[list[float]] = []
    try:
        _check_room(trial, folder)
        with contextlib.ExitStack() as held:
            group = held.enter_context(memory_limit(trial.memory_max_bytes)) if trial.memory_max_bytes else None
            for figures in _steps(trial, folder, group, say, code, deadline):
                parts += figures.pop("parts", [])
                row |= figures
    except NoMemoryLimitError as error:
        row["unlimited"] = str(error)
    except (MeasurementFailedError, TimeOverError) as error:
        limit = f", with a limit of {text.size(trial.memory_max_bytes)} of memory" if trial.memory_max_bytes else ""
        row["problem"] = f"{error}{limit}"
    wrong = [row.pop(name, "") for name in ("read_wrong", "restore_wrong")]
    row["problem"] = "; ".join(filter(None, [row["problem"], *wrong]))
    if parts:
        row["puts_per_s"] = sum(count for count, _ in parts) / row.pop("put_s")
    if row.get("restore_s"):
        row["restore_per_s"] = trial.records / row["restore_s"]
    return [row, *({"kind": "scale_part", **shared, **each} for each in _part_rows(parts))]


def _steps(trial: ScaleTrial, folder: Path, group: Path | None, say: Say, code: str | None, deadline: Deadline) -> Any:
    order = {"backend": trial.backend, "durability": str(LEVEL), "records": trial.records}
    order |= {"value_bytes": trial.value_bytes, "seed": trial.seed}
    memory = f", {text.size(trial.memory_max_bytes)} of memory" if group is not None else ""
    deadline_s = DEADLINE_S + DEADLINE_PER_RECORD_S * trial.records
    with ProgressFile(
        folder / steps.PROGRESS_FILE, lambda line: say(f"{trial.backend}, {trial.records:,} records{memory}: {line}")
    ):
        for step in (steps.load, steps.read, steps.log, steps.restore):
            if deadline.passed:
                raise TimeOverError(TIME_OVER)
            if step is steps.log:
                # The same records are restored into another store.
                shutil.rmtree(folder / STORE)
            yield figures_in(folder, step, order, deadline_s, code=code, group=group)


def _part_rows(parts: list[list[float]]) -> list[dict[str, Any]]:
    rows, there = [], 0
    for count, seconds in parts:
        there += int(count)
        rows.append({"records_there": there, "puts_per_s": count / seconds if seconds else None})
    return rows


def _check_room(trial: ScaleTrial, folder: Path) -> None:
    free, needed = shutil.disk_usage(folder).free, DISK_TIMES * trial.state_bytes
    if free < needed:
        raise MeasurementFailedError(
            f"{folder.parent} has {text.size(free)} free and up to {text.size(needed)} are needed: set TMPDIR to a "
            "folder with more room"
        )


LEVEL = Durability.CHANGELOG
LIMIT_TIMES = 4
"""A limited store has this many times as many bytes of keys and values as its processes may use memory."""
KEY_BYTES = 16
LIMITED_RECORDS, LIMITED_VALUE_BYTES, LIMITED_MEMORY_BYTES = 280_000, 4_000, 256 << 20
"""A store that exceeds a limit four times, where the limit leaves room for Python and the caches of an engine."""


@dataclass(frozen=True, slots=True)
class ScaleTrial:
    """A store of ``records`` records with keys at random, at level CHANGELOG.

    ``memory_max_bytes`` limits the memory of the processes that use it, page cache included; 0 for no limit.
    """

    backend: str
    records: int
    seed: int
    value_bytes: int = 100
    memory_max_bytes: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError for a backend that keeps nothing, and for numbers that make no sense."""
        check_counts(records=self.records, value_bytes=self.value_bytes)
        if not backend_named(self.backend).persistent:
            raise ConfigError(f"{self.backend} has no files, so its state is bounded by memory: choose another backend")
        if LEVEL not in backend_named(self.backend).durabilities:
            raise ConfigError(f"{self.backend} does not support durability {LEVEL}: choose another backend")
        if not 0 <= self.memory_max_bytes * LIMIT_TIMES <= self.state_bytes:
            raise ConfigError(
                f"{self.records:,} records of {KEY_BYTES + self.value_bytes:,} bytes are less than {LIMIT_TIMES} times "
                f"{self.memory_max_bytes:,} bytes of memory: take more records, or less memory"
            )

    @property
    def state_bytes(self) -> int:
        """The bytes of all keys and values."""
        return self.records * (KEY_BYTES + self.value_bytes)
