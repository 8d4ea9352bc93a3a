"""The experiment that fills stores with millions of records, and times what a user does with them then."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness.budget import DEFAULT, NEVER, NIGHT, SMOKE, TIME_OVER, Deadline, TimeOverError
from harness.experiment import (
    Columns,
    Experiment,
    Figures,
    Request,
    Row,
    Rows,
    TrialPlacement,
    TrialWorker,
    check_counts,
)
from harness.experiments.scale import steps
from harness.experiments.scale.report import OUTGREW, QUERY, REPORT, findings, is_cut
from harness.experiments.scale.steps import LEVEL
from harness.experiments.store_of_records import STORE
from harness.processes.apart import NoMemoryLimitError, memory_kills, memory_limit
from harness.processes.child import MeasurementFailedError, figures_in
from harness.progress import PROGRESS_FILE, ProgressFile
from harness.report import text
from harness.report.page import Page
from harness.scenario import Grid, cut_to, full_names, set_to
from stores.errors import ConfigError
from stores.memory_limit import AvailableMemory, default_limit
from stores.registry import ALIASES, backend_named, backends

DEADLINE_S = 600
DEADLINE_PER_RECORD_S = 0.005
RECORDS_PER_S = 40_000
"""The rate at which a slow machine puts, reads and restores records, all together."""
DISK_TIMES = 5
"""Room for a store in half-full pages and a compaction of it, or for it and its changelog, in sizes of the state."""
Say = Callable[[str], None]


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

    @property
    def store_max_bytes(self) -> int | None:
        """The limit that the store gets, as a worker takes one by itself; None without a limit on the processes."""
        if not self.memory_max_bytes:
            return None
        return default_limit(AvailableMemory(self.memory_max_bytes, "the cgroup of the trial", True))


SHARED_COLUMNS: Columns = MappingProxyType(
    {
        "backend": str,
        "durability": str,
        "records": int,
        "value_bytes": int,
        "memory_max_bytes": int,
        "seed": int,
        "puts_per_s": float,
    }
)


@dataclass(frozen=True, kw_only=True)
class ScaleGrid(Grid):
    """Stores of ``records`` records show what was put, in order, also when they are opened again or restored.

    ``backends`` None means all that have files. Those of ``large_backends`` also have the sizes ``large_records``,
    which only a night tries. They are also filled with ``limited_records`` records of ``limited_value_bytes`` by
    processes that can have ``memory_max_bytes`` of memory (0: without this).
    """

    records: tuple[int, ...] = (1_000_000,)
    backends: tuple[str, ...] | None = None
    value_bytes: int = 100
    large_backends: tuple[str, ...] = ()
    large_records: tuple[int, ...] = ()
    limited_records: int = LIMITED_RECORDS
    limited_value_bytes: int = LIMITED_VALUE_BYTES
    memory_max_bytes: int = 0

    sizes = MappingProxyType(
        {
            # A process alone takes more memory than these records.
            SMOKE: {"records": cut_to(10_000), "large_records": set_to(()), "memory_max_bytes": set_to(0)},
            DEFAULT: {"large_records": set_to(())},
        }
    )
    above_0 = ("seeds", "records", "value_bytes", "large_records", "limited_records", "limited_value_bytes")

    def trials(self, seed: int) -> list[ScaleTrial]:
        """Return a trial for each size and backend. Raises: ConfigError for an unknown name, and for a senseless size.

        Those with a limit on memory come after ``records``.
        """
        persistent = [name for name, each in backends().items() if each.persistent]
        names = full_names(persistent if self.backends is None else self.backends)
        large = full_names(self.large_backends)
        trials = [ScaleTrial(name, records, seed, self.value_bytes) for records in self.records for name in names]
        if self.memory_max_bytes:
            limited = (self.limited_records, seed, self.limited_value_bytes, self.memory_max_bytes)
            trials += [ScaleTrial(name, *limited) for name in large]
        trials += [ScaleTrial(name, each, seed, self.value_bytes) for each in self.large_records for name in large]
        return trials


SIZES: Mapping[str, ScaleGrid] = MappingProxyType(
    {
        SMOKE: ScaleGrid(records=(20_000,)),
        DEFAULT: ScaleGrid(),
        NIGHT: ScaleGrid(large_records=(10_000_000, 50_000_000), memory_max_bytes=LIMITED_MEMORY_BYTES),
    }
)


class Scale(Experiment[ScaleTrial]):
    """Speeds, memory and disk of stores with up to 50,000,000 records."""

    name = "scale"
    title = "stores of many records"
    stage = "scale"
    trial = ScaleTrial
    grid = ScaleGrid
    placement = TrialPlacement.LOCAL
    share = 5
    night_share = 16
    unit = ""
    report = REPORT
    failed_by = f"""select backend || ' with ' || exact(records) || ' records: ' || problem as sentence
        from scale where problem <> '' and problem not like '{TIME_OVER}%'"""
    """Stores that did not show what was put, and processes that failed before their time was over."""
    figures_by = {
        "scale": QUERY,
        "scale_part": "select * from scale_part order by backend, records_there, seed",
    }
    columns = {
        "scale": {
            **SHARED_COLUMNS,
            "state_bytes": int,
            "commit_max_s": float,
            "gets_old_per_s": float,
            "gets_new_per_s": float,
            "gets_absent_per_s": float,
            "scan_per_s": float,
            "whole_scan_per_s": float,
            "load_peak_bytes": int,
            "read_peak_bytes": int,
            "restore_peak_bytes": int,
            "bytes_on_disk": int,
            "compact_s": float,
            "compacted_bytes": int,
            "open_s": float,
            "restore_s": float,
            "restore_per_s": float,
            "problem": str,
            "unlimited": str,
            "others_share": float,
            "steal_share": float,
        },
        "scale_part": {**SHARED_COLUMNS, "records_there": int},
    }

    def plan(self, request: Request) -> list[ScaleTrial]:
        """Return a trial for each size of the profile, with the indexed batch of each engine that has files."""
        names = tuple(name for name in request.among(ALIASES.values()) if backends()[name].persistent)
        size = replace(SIZES[request.profile], backends=names, large_backends=names)
        return size.plan(request.seed) if names else []

    def cost_s(self, trial: ScaleTrial) -> float:
        """Return the time of a slow machine."""
        return trial.records / RECORDS_PER_S * (1 + trial.value_bytes / 1_000)

    def run(self, trial: ScaleTrial, worker: TrialWorker) -> Iterable[Row]:
        """Return a row, with None for what was not measured, and one for each part of the puts."""
        worker.folder.mkdir()
        rows = run_scale(trial, worker.folder, say=worker.say, code=worker.code, deadline=worker.deadline)
        load = ("others_share", "steal_share")
        return [{**{name: None for name in self.columns[row["kind"]] if name not in load}, **row} for row in rows]

    def subject(self, trial: ScaleTrial) -> str:
        """Return the backend, the size and the limit."""
        limit = f", {trial.memory_max_bytes >> 20:,} MiB of memory" if trial.memory_max_bytes else ""
        return f"{trial.backend} with {trial.records:,} records of {trial.value_bytes:,} bytes{limit}"

    def tried(self, trial: ScaleTrial, rows: Sequence[Row]) -> int:
        """Return 1 if all of it was measured that can be, and 0 if its time was over before that."""
        return int(not is_cut(rows[0]))

    def line(self, trial: ScaleTrial, rows: Sequence[Row]) -> str:
        """Return how fast it was put and read."""
        row = rows[0]
        if missing := row["problem"] or row["unlimited"]:
            return f"{self.subject(trial)}: {missing}"
        return (
            f"{self.subject(trial)}: {row['puts_per_s']:,.0f} puts/s, {row['gets_old_per_s']:,.0f} gets/s, "
            f"restored in {row['restore_s']:.1f} s"
        )

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        """Return the page about stores of many records."""
        return REPORT.page(figures, findings=findings(figures["scale"]))


def run_scale(
    trial: ScaleTrial, folder: Path, *, say: Say = lambda _: None, code: str | None = None, deadline: Deadline = NEVER
) -> list[dict[str, Any]]:
    """Return a row of kind "scale", and rows of kind "scale_part" for the parts of the puts.

    ``folder`` exists and is empty. If a process fails, or a limit on memory can't be set, the row says so as its
    ``problem``, and lacks what was not measured. So does one whose time was over: see ``is_cut``. No process is
    started after ``deadline``.
    """
    shared = {"backend": trial.backend, "durability": str(LEVEL), "records": trial.records}
    shared |= {"value_bytes": trial.value_bytes, "memory_max_bytes": trial.memory_max_bytes, "seed": trial.seed}
    row: dict[str, Any] = {"kind": "scale", **shared, "state_bytes": trial.state_bytes, "problem": "", "unlimited": ""}
    parts: list[list[float]] = []
    try:
        _check_room(trial, folder)
        with contextlib.ExitStack() as stack:
            group = stack.enter_context(memory_limit(trial.memory_max_bytes)) if trial.memory_max_bytes else None
            try:
                for figures in _steps(trial, folder, group, say, code, deadline):
                    parts += figures.pop("parts", [])
                    row |= figures
            except MeasurementFailedError as error:
                if group is None or not memory_kills(group):
                    raise
                raise MeasurementFailedError(f"{OUTGREW}: {error}") from error
    except NoMemoryLimitError as error:
        row["unlimited"] = str(error)
    except (MeasurementFailedError, TimeOverError) as error:
        limit = f", with a limit of {text.size(trial.memory_max_bytes)} of memory" if trial.memory_max_bytes else ""
        row["problem"] = f"{error}{limit}"
    wrong = [row.pop(name, "") for name in ("read_wrong", "compact_wrong", "restore_wrong")]
    row["problem"] = "; ".join(filter(None, [row["problem"], *wrong]))
    if parts:
        row["puts_per_s"] = sum(count for count, _ in parts) / row.pop("put_s")
    if row.get("restore_s"):
        row["restore_per_s"] = trial.records / row["restore_s"]
    return [row, *({"kind": "scale_part", **shared, **each} for each in _part_rows(parts))]


def _steps(trial: ScaleTrial, folder: Path, group: Path | None, say: Say, code: str | None, deadline: Deadline) -> Any:
    order = {"backend": trial.backend, "durability": str(LEVEL), "records": trial.records}
    order |= {"value_bytes": trial.value_bytes, "seed": trial.seed, "memory_max_bytes": trial.store_max_bytes}
    memory = f", {text.size(trial.memory_max_bytes)} of memory" if group is not None else ""
    deadline_s = DEADLINE_S + DEADLINE_PER_RECORD_S * trial.records
    with ProgressFile(
        folder / PROGRESS_FILE, lambda line: say(f"{trial.backend}, {trial.records:,} records{memory}: {line}")
    ):
        for step in (steps.load, steps.read, steps.compact, steps.log, steps.restore):
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
