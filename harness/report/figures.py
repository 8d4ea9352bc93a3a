"""The figures of a report, computed from raw rows: medians with their spread, and trials with their outcome.

Pure functions from rows to plain dicts, in an order that depends on their content only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from harness.report import effect_figures
from harness.report.rows import Row

Figure = dict[str, Any]

BASELINE = "rocksdb-direct"
"""The backend without isolation, against which others are compared."""
THROUGHPUT_KEY = ("workload", "durability", "backend", "partitions", "records_per_commit")
OPENING_KEY = ("durability", "backend", "records")
CRASH_KEY = ("scenario", "durability", "guarantee", "backend", "failpoint", "fault")
EARLY_COMMIT_KEY = ("durability", "backend", "limit_bytes")
_EARLY_COMMIT_MEDIANS = ("records", "records_per_s", "commits", "predicted", "exceeded", "peak_memory_bytes")
_THROUGHPUT_MEDIANS = (
    "records",
    "records_per_s",
    "commit_p50_us",
    "commit_p99_us",
    "store_commit_p50_us",
    "store_commit_p99_us",
    "bytes_written",
    "bytes_on_disk",
    "peak_memory_bytes",
    "open_files",
    "open_after_kill_s",
    "replayed",
)


def throughput(rows: Iterable[Row]) -> list[Figure]:
    """Return one figure per configuration: medians over repeats, the lowest and highest rate, the longest commit."""
    figures = []
    for key, group in _grouped(rows, THROUGHPUT_KEY):
        rates = _values(group, "records_per_s")
        figures.append(
            {
                "kind": "throughput",
                **key,
                "repeats": len(group),
                **{name: _median(group, name) for name in _THROUGHPUT_MEDIANS},
                "records_per_s_low": min(rates, default=None),
                "records_per_s_high": max(rates, default=None),
                "commit_max_us": max(_values(group, "commit_max_us"), default=None),
                "end_state": _end_state({str(row["end_state"]) for row in group}),
            }
        )
    return figures


def opening(rows: Iterable[Row]) -> list[Figure]:
    """Return one figure per backend, level and size: medians over repeats, and the slowest time until ready."""
    return [
        {
            "kind": "opening",
            **key,
            "repeats": len(group),
            **{name: _median(group, name) for name in ("open_s", "restore_s", "replayed")},
            "ready_s": median([_ready_s(row) for row in group]),
            "ready_s_high": max(_ready_s(row) for row in group),
        }
        for key, group in _grouped(rows, OPENING_KEY)
    ]


def crash(rows: Iterable[Row]) -> list[Figure]:
    """Return one figure per cell of the crash matrix: the number of trials, and of each result.

    A trial's result is the worst of its checkers' results. ``expected`` is the expected result, and ``as_expected`` the
    number of trials with it.
    """
    trials = crash_trials(rows)
    figures = []
    for key, group in _grouped(trials, (*CRASH_KEY, "expected")):
        counts = {
            result: sum(trial["result"] == result for trial in group) for result in ("valid", "anomaly", "unknown")
        }
        figures.append(
            {
                "kind": "crash",
                **key,
                "trials": len(group),
                **counts,
                "as_expected": sum(trial["as_expected"] for trial in group),
            }
        )
    return figures


def crash_trials(rows: Iterable[Row]) -> list[Figure]:
    """Return one figure per trial: the worst of its verdicts, the details of its checkers, and ``as_expected``.

    If an anomaly is expected, because of a mutant, one trial of the scenario and backend with an anomaly is enough.
    """
    trials = []
    for key, group in _grouped(rows, ("trial_id", *CRASH_KEY, "seed", "repeat_command", "expected")):
        results = {str(row["result"]) for row in group}
        found = sorted(
            f"{row['checker']}: {row['detail'] or row['result']}" for row in group if row["result"] != "valid"
        )
        trials.append({**key, "result": _worst(results), "found": found})
    caught = {(trial["scenario"], trial["backend"]) for trial in trials if trial["result"] == "anomaly"}
    for trial in trials:
        defect_found = trial["expected"] == "anomaly" and (trial["scenario"], trial["backend"]) in caught
        trial["as_expected"] = trial["result"] == trial["expected"] or (defect_found and trial["result"] == "valid")
    return trials


def _worst(results: set[str]) -> str:
    if "anomaly" in results:
        return "anomaly"
    return "valid" if results == {"valid"} else "unknown"


def benchmarks(rows: Iterable[Row]) -> list[Figure]:
    """Return store-level figures unchanged, in order."""
    return _in_order([{**row, "kind": "benchmark"} for row in rows])


def ratios(rows: Iterable[Row]) -> list[Figure]:
    """Return the ratios in order. ``met`` is True if the threshold is reached, None if there is none."""
    return _in_order(
        [
            {**row, "kind": "ratio", "met": None if row["at_least"] is None else row["ratio"] >= row["at_least"]}
            for row in rows
        ]
    )


def amplification(rows: Iterable[Row]) -> list[Figure]:
    """Return the counts in order, each with the bytes that an engine was given per byte put into its store."""
    return _in_order(
        [{**row, "kind": "amplification", "written_per_byte": row["bytes_written"] / row["bytes_put"]} for row in rows]
    )


def large_steps(rows: Iterable[Row]) -> list[Figure]:
    """Return the steps in order, each with ``bounded`` and ``atomic``.

    ``bounded`` is True if the step kept its memory bound, None if it has none. ``atomic`` is True if it was one commit:
    all of it is there afterwards, and a store with isolation showed nothing before.
    """
    return _in_order(
        [
            {
                **row,
                "kind": "large_step",
                "bounded": None if row["bound_bytes"] is None else row["peak_bytes"] <= row["bound_bytes"],
                "atomic": row["state"] == "equal"
                and row["commits"] == 1
                and not (row["transactional"] and row["seen_early"]),
            }
            for row in rows
        ]
    )


def visibility(rows: Iterable[Row]) -> list[Figure]:
    """Return the times until writes were seen, unchanged, in order."""
    return _in_order([{**row, "kind": "visibility"} for row in rows])


def latencies(rows: Iterable[Row]) -> list[Figure]:
    """Return percentiles of puts and of commits, each compared with the backend without isolation at the same level.

    ``against_baseline`` is the ratio of medians, or None if the baseline was not measured.
    """
    figures = [{**row, "kind": "latency"} for row in rows]
    own = [figure for figure in figures if figure["backend"] == BASELINE]
    medians = {(figure["durability"], figure["operation"]): figure["p50_us"] for figure in own}
    for figure in figures:
        baseline = medians.get((figure["durability"], figure["operation"]))
        figure["against_baseline"] = figure["p50_us"] / baseline if baseline else None
    return sorted(figures, key=lambda one: (one["durability"], one["operation"] != "put", one["backend"]))


def early_commits(rows: Iterable[Row]) -> list[Figure]:
    """Return one figure per backend and limit: the largest staged size, and medians of the rest.

    ``against_none`` is the rate divided by the same backend's rate without a limit, or None if that was not measured.
    """
    figures = [
        {
            "kind": "early_commit",
            **key,
            "repeats": len(group),
            "uncommitted_max_bytes": max(_values(group, "uncommitted_max_bytes")),
            **{name: _median(group, name) for name in _EARLY_COMMIT_MEDIANS},
        }
        for key, group in _grouped(rows, EARLY_COMMIT_KEY)
    ]
    unlimited = {
        (figure["durability"], figure["backend"]): figure["records_per_s"]
        for figure in figures
        if figure["limit_bytes"] is None
    }
    for figure in figures:
        free = unlimited.get((figure["durability"], figure["backend"]))
        figure["against_none"] = figure["records_per_s"] / free if free else None
    return figures


def all_figures(rows: Mapping[str, Sequence[Row]]) -> dict[str, list[Figure]]:
    """Return the figures of every kind, by kind; an empty list for a kind that was not measured."""
    made: Mapping[str, Callable[[Iterable[Row]], list[Figure]]] = {
        "throughput": throughput,
        "opening": opening,
        "benchmark": benchmarks,
        "amplification": amplification,
        "early_commit": early_commits,
        "large_step": large_steps,
        "visibility": visibility,
        "latency": latencies,
        "ratio": ratios,
        "crash": crash,
    }
    return {
        **{kind: make(rows.get(kind, ())) for kind, make in made.items()},
        "effect": effect_figures.effects(rows),
        "mutant": effect_figures.mutants(rows.get("mutant", ())),
        "detection": effect_figures.detections(rows.get("mutant", ())),
    }


def distinct(figures: Sequence[Figure], *names: str) -> list[tuple[Any, ...]]:
    """Return the distinct combinations of values that figures have under ``names``, in their order."""
    return list(dict.fromkeys(tuple(figure[name] for name in names) for figure in figures))


def _grouped(rows: Iterable[Row], names: Sequence[str]) -> list[tuple[Figure, list[Row]]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    ordered = sorted(groups.items(), key=lambda item: _sortable(item[0]))
    return [(dict(zip(names, key, strict=True)), group) for key, group in ordered]


def _in_order(figures: list[Figure]) -> list[Figure]:
    return sorted(figures, key=lambda figure: _sortable(tuple(figure[name] for name in sorted(figure))))


def _sortable(key: tuple[Any, ...]) -> tuple[tuple[bool, Any], ...]:
    return tuple((value is not None, value if value is not None else 0) for value in key)


def _values(rows: Iterable[Row], name: str) -> list[float]:
    return [row[name] for row in rows if row.get(name) is not None]


def _median(rows: Iterable[Row], name: str) -> float | None:
    values = _values(rows, name)
    return median(values) if values else None


def _ready_s(row: Row) -> float:
    return float(row["open_s"]) + float(row["restore_s"] or 0)


def _end_state(found: set[str]) -> str:
    return next((state for state in ("different", "not compared") if state in found), "equal")
