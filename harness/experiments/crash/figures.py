"""The figures of crash trials: one per trial, and one per cell of the crash matrix."""

from __future__ import annotations

from collections.abc import Iterable

from harness.report.figures import Figure, Figures, grouped
from harness.report.page import Finding
from harness.report.rows import Row

KEY = ("scenario", "durability", "guarantee", "backend", "failpoint", "fault")


def crash(rows: Iterable[Row]) -> list[Figure]:
    """Return one figure per cell of the crash matrix: the number of trials, and of each result.

    A trial's result is the worst of its checkers' results. ``expected`` is the expected result, and ``as_expected`` the
    number of trials with it.
    """
    trials = crash_trials(rows)
    figures = []
    for key, group in grouped(trials, (*KEY, "expected")):
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
    for key, group in grouped(rows, ("trial_id", *KEY, "seed", "repeat_command", "expected")):
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


def crash_finding(figures: Figures) -> Finding:
    """Return how many trials ended as expected, those of mutants included."""
    cells = figures["crash"]
    trials, good = (sum(cell[name] for cell in cells) for name in ("trials", "as_expected"))
    return Finding("crash trials", trials, good, "ended as expected")
