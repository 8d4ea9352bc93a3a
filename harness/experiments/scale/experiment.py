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
from harness.experiment import Columns, Experiment, Request, Rows, TrialPlacement, TrialWorker, check_counts
from harness.experiments.scale import steps
from harness.experiments.scale.steps import LEVEL, PARTS
from harness.experiments.store_of_records import STORE
from harness.processes.apart import NoMemoryLimitError, memory_kills, memory_limit
from harness.processes.child import MeasurementFailedError, figures_in
from harness.progress import PROGRESS_FILE, ProgressFile
from harness.report import text
from harness.report.charts import Chart
from harness.report.database import busy
from harness.report.figures import Figure, Figures
from harness.report.listing import Column, Listing, Plot, Report
from harness.report.page import Page, PageFinding
from harness.report.rows import Row
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

    ``backends`` None means all that have files. ``limited_backends`` are also filled with ``limited_records`` records
    of ``limited_value_bytes`` by processes that can have ``memory_max_bytes`` of memory (0: without this). ``large``
    are pairs of a backend and a number of records, which only a night tries: without a limit, and with a quarter of
    their keys and values as memory.
    """

    records: tuple[int, ...] = (1_000_000,)
    backends: tuple[str, ...] | None = None
    value_bytes: int = 100
    large: tuple[tuple[str, int], ...] = ()
    limited_backends: tuple[str, ...] = ()
    limited_records: int = LIMITED_RECORDS
    limited_value_bytes: int = LIMITED_VALUE_BYTES
    memory_max_bytes: int = 0

    sizes = MappingProxyType(
        {
            # A process alone takes more memory than these records.
            SMOKE: {"records": cut_to(10_000), "large": set_to(()), "memory_max_bytes": set_to(0)},
            DEFAULT: {"large": set_to(())},
        }
    )
    above_0 = ("seeds", "records", "value_bytes", "limited_records", "limited_value_bytes")

    def trials(self, seed: int) -> list[ScaleTrial]:
        """Return a trial for each size and backend. Raises: ConfigError for an unknown name, and for a senseless size.

        The largest come last, those with a limit on memory after the others.
        """
        persistent = [name for name, each in backends().items() if each.persistent]
        names = full_names(persistent if self.backends is None else self.backends)
        trials = [ScaleTrial(name, records, seed, self.value_bytes) for records in self.records for name in names]
        if self.memory_max_bytes:
            limited = (self.limited_records, seed, self.limited_value_bytes, self.memory_max_bytes)
            trials += [ScaleTrial(name, *limited) for name in full_names(self.limited_backends)]
        large = [ScaleTrial(backend_named(name).name, each, seed, self.value_bytes) for name, each in self.large]
        return [*trials, *large, *(replace(each, memory_max_bytes=each.state_bytes // LIMIT_TIMES) for each in large)]


LARGE = (
    ("rocksdb", 10_000_000),
    ("sqlite", 10_000_000),
    ("rocksdb", 50_000_000),
    ("lmdb", 50_000_000),
    ("rocksdb", 100_000_000),
)
SIZES: Mapping[str, ScaleGrid] = MappingProxyType(
    {
        SMOKE: ScaleGrid(records=(20_000,)),
        DEFAULT: ScaleGrid(),
        NIGHT: ScaleGrid(large=LARGE, memory_max_bytes=LIMITED_MEMORY_BYTES),
    }
)

_METHOD = f"""\
A process puts all records into a new store at level CHANGELOG, in commits of {steps.COMMIT_RECORDS:,}, or of
{text.size(steps.COMMIT_BYTES_MAX)} if that is less. Keys are hashes, so those of a commit are at random places of the
store. *Longest commit* is that of the whole load. *P99.9* is that of single puts, without commits; one in
{steps.TIMED_OF} is timed.

A fresh process opens the store, whose files are in the page cache as far as they fit. It looks up to
{steps.LOOKUPS_MAX:,} keys of each kind up: *old* keys are from the first tenth of the puts, *new* ones from the last,
*absent* ones were never put. *Scans* read {steps.SCAN_RECORDS:,} records from a key at random, *whole scan* all of
them. After a compaction *updates* read up to {steps.UPDATES_MAX:,} keys at random and put other values; commits are
part of the time.

*Windows* of an hour are put into another store, one window for every {steps.WINDOWS_OF} records, over {steps.HOURS}
hours of which it keeps {steps.HOURS_KEPT}. Expired windows are dropped by segments of half that time. Another process
restores a task's store of the same records from its changelog, which has them in the order of the puts.

*Peak memory* is that of a process, with the pages of files that it maps: for LMDB that is mostly page cache. *Disk* is
counted after a clean close of the load, and *compacted* after `txstores compact`. *Written* are all bytes that the
process of the puts has passed to the kernel, compactions included. Both are over the bytes of keys and values, and so
is the disk of the windows that are kept. Each value that is looked up, the number of records and their order are
checked.

With a limit, all of these processes are in a cgroup that limits their memory and page cache. The store has half of it
as `memory_max_bytes`. Each figure is from one store, not repeated.
"""


QUERY = f"""select *, {busy("scale")} as busy, 1.0 * bytes_on_disk / nullif(state_bytes, 0) as disk_times,
    1.0 * bytes_written / nullif(state_bytes, 0) as written_times,
    1.0 * compacted_bytes / nullif(state_bytes, 0) as compacted_times,
    1.0 * window_bytes_on_disk / nullif(window_bytes_kept, 0) as window_disk_times
    from scale order by backend, busy, bytes_on_disk, records"""
"""The stores, with the bytes written and those on disk over those of the keys and values that they have."""


OUTGREW = "it needs more memory than its limit"
"""The beginning of the problem of a store whose process the kernel killed for that."""


def is_cut(row: Mapping[str, Any]) -> bool:
    """Return True if the time was over before all of a row was measured. That is no failure."""
    return str(row["problem"]).startswith(TIME_OVER)


def findings(figures: Sequence[Figure]) -> list[PageFinding]:
    """Return how many stores showed what was put, and a finding about those that their limit on memory has killed.

    These say nothing about records. Stores whose time was over, or that could not have a limit, do not count.
    """
    measured = [figure for figure in figures if not is_cut(figure) and not figure["unlimited"]]
    outgrown = [figure for figure in measured if str(figure["problem"]).startswith(OUTGREW)]
    whole = [figure for figure in measured if figure not in outgrown]
    good = sum(not figure["problem"] for figure in whole)
    verdict = "showed every record, in the memory that they may use"
    results = [PageFinding("stores of many records", len(whole), good, verdict)]
    if outgrown:
        needs = "; ".join(map(_need, outgrown))
        limited = sum(bool(figure["memory_max_bytes"]) for figure in measured)
        results.append(
            PageFinding("limits on the memory of a store", limited, limited - len(outgrown), f"were enough: {needs}")
        )
    return results


def _need(figure: Figure) -> str:
    state, limit = text.size(figure["state_bytes"]), text.size(figure["memory_max_bytes"])
    return f"{figure['backend']} with {state} of keys and values needs more than {limit}"


_STORE = (
    Column("backend"),
    Column("records", "records", text.exact),
    Column("value", "value_bytes", lambda bytes_: f"{bytes_:,} B"),
    Column("memory limit", "size(nullif(memory_max_bytes, 0))", right=True),
)
_SPEEDS = Listing(
    "Speeds at level CHANGELOG, per second",
    "scale_figure",
    (
        *_STORE,
        Column("puts", "puts_per_s", text.count),
        Column("updates", "updates_per_s", text.count),
        Column("windows", "window_puts_per_s", text.count),
        Column("gets, old", "gets_old_per_s", text.count),
        Column("gets, new", "gets_new_per_s", text.count),
        Column("gets, absent", "gets_absent_per_s", text.count),
        Column("scans", "scan_per_s", text.count),
        Column("whole scan", "whole_scan_per_s", text.count),
        Column("restored", "restore_per_s", text.count),
        Column("p99.9 of puts", "put_p999_s", text.duration),
        Column("longest commit", "commit_max_s", text.duration),
        Column("longest of updates", "update_commit_max_s", text.duration),
        Column("longest of windows", "window_commit_max_s", text.duration),
    ),
)
_SIZES = Listing(
    "Memory, disk and time to open at level CHANGELOG",
    "scale_figure",
    (
        *_STORE,
        Column("keys and values", "state_bytes", text.size),
        Column("disk", "bytes_on_disk", text.size),
        Column("disk, times the data", "disk_times", text.ratio),
        Column("written, times the data", "written_times", text.ratio),
        Column("compacted", "compacted_times", text.ratio),
        Column("compacted in", "compact_s", text.duration),
        Column("disk of windows, times those kept", "window_disk_times", text.ratio),
        Column("peak memory, puts", "load_peak_bytes", text.size),
        Column("reads", "read_peak_bytes", text.size),
        Column("restore", "restore_peak_bytes", text.size),
        Column("open", "open_s", text.duration),
        Column("restore in", "restore_s", text.duration),
        Column(
            "note",
            f"""case when unlimited <> '' then 'not measured: ' || unlimited when problem <> '' then problem
                when busy then 'busy machine' else '{text.NONE}' end""",
        ),
    ),
)


_MARKS = f"""with part as (
        select *, count(*) over store as parts,
            cast({100 // PARTS} * row_number() over (store order by records_there) as text) as step
        from scale_part_figure window store as (partition by memory_max_bytes, value_bytes, records, backend)
    )
    select exact(records) || ' records of ' || exact(value_bytes) || ' bytes'
            || iif(memory_max_bytes, ', ' || size(memory_max_bytes) || ' of memory', '') as title,
        '{LEVEL}' as level, backend, puts_per_s as value, step, step as measure
    from part where parts = {PARTS} order by memory_max_bytes, value_bytes, records, backend, records_there"""


REPORT = Report(
    ("scale",),
    "scale",
    "Stores of many records",
    (
        (
            "Stores are filled with {iif(count(*), 'up to ' || exact(max(records)), 'many')} records, whose keys are "
            "at random.",
            "scale_figure where puts_per_s",
        ),
        "Then they are looked up, scanned, opened and restored.",
    ),
    (_SPEEDS, _SIZES),
    _METHOD,
    (
        Plot(
            Chart(
                "scale",
                "Puts per second, by how many of its records a store has",
                "lines",
                (),
                "puts/s",
                "puts/s",
                "% of the records",
            ),
            _MARKS,
        ),
    ),
)


class Scale(Experiment[ScaleTrial]):
    """Speeds, memory and disk of stores with up to 100,000,000 records."""

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
            "put_p999_s": float,
            "commit_max_s": float,
            "bytes_written": int,
            "updates_per_s": float,
            "update_commit_max_s": float,
            "window_puts_per_s": float,
            "window_commit_max_s": float,
            "window_bytes_kept": int,
            "window_bytes_on_disk": int,
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
        size = SIZES[request.profile]
        large = tuple((name, each) for name, each in size.large if ALIASES[name] in names)
        size = replace(size, backends=names, limited_backends=names, large=large)
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
    wrong = [row.pop(name) for name in list(row) if name.endswith("_wrong")]
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
        for step in steps.STEPS:
            if deadline.passed:
                raise TimeOverError(TIME_OVER)
            yield figures_in(folder, step, order, deadline_s, code=code, group=group)
            if step is steps.update:
                # The same records are restored into another store.
                shutil.rmtree(folder / STORE)
            elif step is steps.windows:
                shutil.rmtree(folder / steps.WINDOWS)


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
