"""The comparison of two runs: ratios of medians with intervals, cell by cell, and what got worse.

Rows of the same cell are compared: the same workload, level, backend and commit size, or the same state that is opened.
A difference is one whose interval excludes 1. The intervals are wide enough that, in 95 % of comparisons of equal runs,
none of them does (Bonferroni). Five repeats of one cell cannot give that confidence, so the deviations of all cells of
a measure count as well.

Repeats of one run say nothing about what differs between runs: a machine whose clock or caches others use is slower in
one of them. Each measurement of throughput also times fixed work that has nothing to do with stores. The interval of a
time contains the ratio as it is, and as it is with both machines at the same speed. No interval is narrower than 1 % to
each side: repeats that are equal to the byte do not make the next run equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from statistics import median
from typing import Any

from harness.experiments.needs import MEASURES, FigureColumn
from harness.experiments.opening.report import KEY as OPENING_KEY
from harness.experiments.registry import kinds
from harness.experiments.throughput.report import KEY as THROUGHPUT_KEY
from harness.processes.load import BUSY_REPEATS, is_busy
from harness.report import text
from harness.report.figures import CONFIDENCE, REPEATS_MIN, Interval, grouped, log_deviations, ratio_interval, values
from harness.report.page import TextTable
from harness.report.rows import FACTS_FILE, Row, missing_columns, read_facts, read_rows
from stores.errors import ConfigError

_MACHINE = ("cpu", "memory_bytes", "disk")
"""The parts of an environment that make a machine; software may differ, because it may be what is compared."""
_NOTHING = (
    "the runs have no cell in common: compare two runs of one profile, such as those of "
    "`make bench ARGS='--only throughput'`"
)
Cell = tuple[Any, ...]


_KEYS: Mapping[str, Sequence[str]] = {"throughput": THROUGHPUT_KEY, "opening": OPENING_KEY}


@dataclass(frozen=True)
class Compared:
    """One measure of one cell in both runs. ``ratio`` is above 1 where B is better."""

    measure: FigureColumn
    cell: Cell
    a: float
    b: float
    ratio: Interval
    busy: bool
    repeats: int = REPEATS_MIN
    """The number of repeats in the run that has fewer."""
    drift: float = 1.0
    """The speed of B's machine over that of A's while this cell was measured."""

    @property
    def is_repeated(self) -> bool:
        """True if both runs have enough repeats for an interval."""
        return self.repeats >= REPEATS_MIN

    @property
    def differs(self) -> bool:
        """True if the interval of the ratio excludes 1. A few repeats have none, so nothing differs."""
        return self.is_repeated and not self.ratio.low <= 1 <= self.ratio.high

    def is_worse(self, share: float) -> bool:
        """Return True if B is worse by more than ``share``: the whole interval is beyond it."""
        return self.is_repeated and self.ratio.high < 1 - share

    @property
    def verdict(self) -> str:
        """The cell of a table: better, worse, no difference, or how few repeats there are."""
        if not self.is_repeated:
            return "measured once" if self.repeats == 1 else f"measured {self.repeats} times only"
        if not self.differs:
            return "no difference"
        return "better" if self.ratio.median > 1 else "**worse**"


def compare(a: Path, b: Path, runs: Path, *, fail: float | None = None) -> int:
    """Print how run ``b`` differs from run ``a``. Return 1 if a figure is worse by more than ``fail``, a share, else 0.

    A run is a folder, or a name in ``runs``. Figures that were measured on a busy machine count, and are named.

    Raises: ConfigError for a folder that is not that of a finished run, runs of other versions of the harness or of
    different machines, and runs that have nothing in common that can be compared.
    """
    folders = [_folder(run, runs) for run in (a, b)]
    facts = [_facts(folder) for folder in folders]
    _check_machines(*(each["environment"] for each in facts))
    rows_a, rows_b = (_rows(folder) for folder in folders)
    figures = compared(rows_a, rows_b, seed=int(facts[1]["seed"]))
    if not figures:
        raise ConfigError(_NOTHING)
    print(comparison_table(figures, folders[0].name, folders[1].name).plain())
    differ = [each for each in figures if each.differs]
    if drifts := [each.drift for each in figures if each.drift != 1]:
        print(f"\nThe machine of B was {median(drifts):.2f} times as fast as that of A; the intervals contain that.")
    judged = sum(each.is_repeated for each in figures)
    if judged:
        print(f"\n{len(differ)} of {judged} figures differ." if differ else "\nNo difference.")
    if judged < len(figures):
        print(f"\nNot judged: {len(figures) - judged} figures with fewer than {REPEATS_MIN} repeats in a run.")
    if busy := sum(each.busy for each in figures):
        print(f"\nThe machine was busy with other work during {busy} of {len(figures)} figures.")
    if fail is None:
        return 0
    worse = [each for each in figures if each.is_worse(fail)]
    print(f"Worse by more than {100 * fail:g} %: {len(worse)}.")
    return 1 if worse else 0


def compared(a: Mapping[str, Sequence[Row]], b: Mapping[str, Sequence[Row]], seed: int) -> list[Compared]:
    """Return every measure of every cell that both runs have, given their rows by kind.

    Of those with fewer than five repeats in one of them only the medians are compared.
    """
    pairs = []
    for kind, names in _KEYS.items():
        of_a, of_b = (_cells(rows.get(kind, ()), names) for rows in (a, b))
        for cell in (cell for cell in of_a if cell in of_b):
            for measure in (each for each in MEASURES if each.kind == kind):
                before, after = values(of_a[cell], measure.name), values(of_b[cell], measure.name)
                if not before or not after or not min(*before, *after) > 0:
                    continue
                if measure.same_work and _records(of_a[cell]) != _records(of_b[cell]):
                    continue
                busy = _busy(of_a[cell]) or _busy(of_b[cell])
                drift = _drift(of_a[cell], of_b[cell]) if measure.is_time else 1.0
                pairs.append((measure, cell, before, after, busy, drift))
    repeated = [pair for pair in pairs if min(len(pair[2]), len(pair[3])) >= REPEATS_MIN]
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(repeated))
    deviations = {
        measure: log_deviations(group for each, _, *groups, _, _ in repeated if each is measure for group in groups)
        for measure in MEASURES
    }

    def ratio(measure: FigureColumn, before: list[float], after: list[float], drift: float) -> Interval:
        above, below = (after, before) if measure.more_is_better else (before, after)
        if min(len(before), len(after)) < REPEATS_MIN:
            return Interval(nan, median(above) / median(below), nan, 0.0)
        return _widened(ratio_interval(above, below, seed, confidence, deviations[measure]), drift)

    return [
        Compared(
            measure,
            cell,
            median(before),
            median(after),
            ratio(measure, before, after, drift),
            busy,
            min(len(before), len(after)),
            drift,
        )
        for measure, cell, before, after, busy, drift in pairs
    ]


def _widened(ratio: Interval, drift: float) -> Interval:
    """Return the interval that also contains what it would be with both machines at the same speed."""
    wide = ratio.at_least()
    return wide._replace(low=min(wide.low, wide.low / drift), high=max(wide.high, wide.high / drift))


def _drift(a: Sequence[Row], b: Sequence[Row]) -> float:
    before, after = (values(rows, "machine_speed") for rows in (a, b))
    return median(after) / median(before) if before and after else 1.0


def comparison_table(found: Sequence[Compared], a: str, b: str) -> TextTable:
    """Return the figures of both runs with their ratios: those that differ first, the worst of them at the top."""
    ordered = sorted(found, key=lambda each: (not each.differs, each.ratio.median if each.differs else 0))
    rows = [
        [
            _named(each),
            each.measure.words,
            each.measure.shown(each.a),
            each.measure.shown(each.b),
            text.ratio(each.ratio.median),
            f"{text.ratio(each.ratio.low)} to {text.ratio(each.ratio.high)}" if each.is_repeated else text.NONE,
            each.verdict + (", busy" if each.busy else ""),
        ]
        for each in ordered
    ]
    caption = f"A is {a}, B is {b}; a ratio above 1 says that B is better"
    return TextTable(caption, ("cell", "figure", "A", "B", "ratio", "interval", "B is"), rows, range(2, 6))


def _named(each: Compared) -> str:
    names = dict(zip(_KEYS[each.measure.kind], each.cell, strict=True))
    size = f"{names['records_per_commit']:,} per commit" if "records_per_commit" in names else f"{names['records']:,}"
    workload = f"{names['workload']}, " if "workload" in names else ""
    return f"{names['backend']}, {names['durability']}, {workload}{size}"


def _cells(rows: Iterable[Row], names: Sequence[str]) -> dict[Cell, list[Row]]:
    return {tuple(key[name] for name in names): group for key, group in grouped(rows, names)}


def _records(rows: Sequence[Row]) -> set[Any]:
    return {row["records"] for row in rows}


def _busy(rows: Sequence[Row]) -> bool:
    return sum(map(is_busy, rows)) > BUSY_REPEATS * len(rows)


def _folder(run: Path, runs: Path) -> Path:
    for folder in (run, runs / run):
        if (folder / FACTS_FILE).is_file():
            return folder.resolve()
    there = sorted(facts_file.parent.name for facts_file in runs.glob(f"*/{FACTS_FILE}"))[-3:] if runs.is_dir() else []
    newest = f"; the newest are {', '.join(there)}" if there else ""
    raise ConfigError(f"no run {str(run)!r}: give the folder of a run, or its name in {runs}{newest}")


def _facts(folder: Path) -> dict[str, Any]:
    facts = read_facts(folder)
    environment = facts.get("environment")
    if not isinstance(environment, dict):
        raise ConfigError(f"the run in {folder} was given up before its end: there is nothing to compare")
    if lacking := sorted({*_MACHINE} - environment.keys() | {"seed"} - facts.keys()):
        raise ConfigError(f"{folder / FACTS_FILE} lacks {', '.join(lacking)}: it is of another version of the harness")
    return facts


def _rows(folder: Path) -> dict[str, list[Row]]:
    columns = {kind: kinds()[kind] for kind in _KEYS}
    if missing := missing_columns(folder, columns):
        raise ConfigError(f"the rows are of another version of the harness: {'; '.join(missing)}. Run it again")
    rows: dict[str, list[Row]] = {kind: list(read_rows(folder, kind, columns)) for kind in _KEYS}
    rows["opening"] = [{**row, "ready_s": row["open_s"] + (row["restore_s"] or 0)} for row in rows["opening"]]
    return rows


def _check_machines(a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    different = [name for name in _MACHINE if a[name] != b[name]]
    if different:
        differences = "; ".join(f"{name.removesuffix('_bytes')}: {a[name]} against {b[name]}" for name in different)
        raise ConfigError(f"the runs are of different machines, so their figures do not compare ({differences})")
