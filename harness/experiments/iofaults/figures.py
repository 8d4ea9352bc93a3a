"""Figures about I/O faults: the trials of each backend at each level, and their results.

Pure functions from rows to plain dicts, in an order that depends on their content only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from harness.checkers.prefix import Found
from harness.experiments.iofaults.case import (
    HELD_STRICTLY,
    NOT_TRIED,
    OLD_VARIANTS,
    SILENT,
    STRICT,
    TORN_SECTORS,
    is_wrong,
)
from harness.report.figures import Figure, Figures
from harness.report.page import Finding
from harness.report.rows import Row

KEY = ("durability", "fault", "variant", "backend")
MEASURED = "measured"
"""The wanted result of a mutant that is only measured."""
REPORTED_ONLY = (STRICT, TORN_SECTORS)
"""Variants of power loss whose anomalies are only reported; see ``is_promised`` for the exception."""
MUTANTS = "Mutants"
"""The title of their part of the page."""
_APART = (Found.VALID, Found.DETECTED, Found.HARNESS_ERROR)


def result_of(row: Row) -> str:
    """Return the result of a trial; rows of earlier versions have another word for ``Found.DETECTED``."""
    return str(Found.DETECTED) if row["result"] == "noticed" else str(row["result"] or "")


def effects(rows: Mapping[str, Sequence[Row]]) -> list[Figure]:
    """Return one figure per level, fault, variant and backend.

    ``points`` were explored, of ``points_in_all`` (0 in rows without that number). ``distinct`` counts the trials with
    a verdict; for power loss, the crash states among them that differ by paths and bytes. ``lost_at_most`` is the
    largest number of lost commits among whole states. ``lost`` counts the states that should have had more commits.

    ``restored`` were detected and restored. ``silent`` is wrong content that was not detected; ``other`` is any other
    result but valid. ``wrong`` counts the trials that fail the run.

    For corruption at rest, ``by_opening``, ``by_reading`` (or by later commits) and ``by_verifying`` count the steps
    that detected it; the last only if no other step does. ``unverified`` counts the cases of this last kind that harm a
    reader that does not verify: by wrong data, or the end of the process.
    """
    trials = _grouped(rows.get("effect", ()))
    figures = []
    for key, subsets in sorted(_grouped(rows.get("effect_slice", ())).items()):
        own = trials.get(key, [])
        found = Counter(result_of(row) for row in own)
        figures.append(
            {
                "kind": "effect",
                **dict(zip(KEY, key, strict=True)),
                "points": sum(row["points"] for row in subsets),
                "points_in_all": _in_all(subsets),
                "states": sum(row["states"] for row in subsets),
                "trials": len(own),
                "distinct": len(
                    {row["digest"] or place for place, row in enumerate(own) if row["result"] != Found.HARNESS_ERROR}
                ),
                "lost_at_most": max((_lost(row) for row in own), default=0),
                "restored": found[Found.DETECTED],
                "torn": found[Found.TORN] + found[Found.PHANTOM],
                "lost": found[Found.LOST],
                "silent": sum(found[result] for result in SILENT),
                "other": sum(number for result, number in found.items() if result not in (*_APART, *SILENT)),
                **_detected(own),
                "no_verdict": found[Found.HARNESS_ERROR],
                "unexpected": sum(not row["expected"] for row in own),
                "wrong": sum(is_wrong(row) for row in own),
                "seconds": sum(row["seconds"] for row in subsets),
                "blind_spots": next((row["blind_spots"] for row in subsets if row["blind_spots"]), ""),
            }
        )
    return figures


def mutants(rows: Iterable[Row]) -> list[Figure]:
    """Return each mutant with the fault that had to detect it, or to miss it, and the number of states tried.

    Mutants that were only measured are left out; see ``detections``.
    """
    figures = [{**row, "kind": "mutant", "result": result_of(row)} for row in rows if row["wanted"] != MEASURED]
    return sorted(figures, key=lambda figure: (figure["mutant"], figure["backend"], figure["wanted"], figure["slice"]))


def detections(rows: Iterable[Row]) -> list[Figure]:
    """Return how often the default profile's own trials detected each mutant: one figure per mutant and backend.

    ``runs`` is the number of seeds, ``found`` the number of those at which the mutant was detected. Rows of earlier
    versions do not contain this.
    """
    made: dict[tuple[str, str, str], list[bool]] = {}
    for row in rows:
        if row.get("by_gate") is not None:
            made.setdefault((row["mutant"], row["backend"], row["fault"]), []).append(row["by_gate"])
    return [
        {
            "kind": "detection",
            **dict(zip(("mutant", "backend", "fault"), key, strict=True)),
            "runs": len(found),
            "found": sum(found),
        }
        for key, found in sorted(made.items())
    ]


def is_promised(figure: Figure) -> bool:
    """Return True if a figure's anomalies fail the run. For two of the models most anomalies are only reported."""
    strictly = (figure["fault"], figure["durability"]) == HELD_STRICTLY and figure["variant"] == STRICT
    return strictly or figure["variant"] not in REPORTED_ONLY


def fault_findings(figures: Figures) -> tuple[Finding, ...]:
    """Return how many states and trials kept their promise, and how many trials of mutants ended as expected."""
    promised = [figure for figure in figures["effect"] if is_promised(figure)]
    tried = sum(figure["distinct"] + figure["no_verdict"] for figure in promised)
    kept = tried - sum(figure["wrong"] for figure in promised)
    mutants_ = [figure for figure in figures["mutant"] if figure["result"] != NOT_TRIED]
    return (
        Finding("states and trials of I/O faults", tried, kept, "kept what was promised"),
        Finding(
            "trials of mutants",
            len(mutants_),
            sum(figure["expected"] for figure in mutants_),
            "ended as expected: the faults that can detect the mutant do, the others do not",
            MUTANTS,
        ),
    )


def _detected(rows: Sequence[Row]) -> dict[str, int]:
    """Count the detections by step. Rows of earlier versions do not name the step."""
    by = Counter(row.get("noticed") or "" for row in rows)
    return {
        "by_opening": by["open"],
        "by_reading": by["read"] + by["afterwards"],
        "by_verifying": by["verify"],
        "unverified": sum(bool(row.get("unverified")) for row in rows),
    }


def _lost(row: Row) -> int:
    """Return how many acknowledged commits a whole state lacks."""
    return 0 if row["state"] is None else max(0, int(row["acknowledged"]) - int(row["state"]))


def _in_all(subsets: Iterable[Row]) -> int:
    """Return the points of a case, summed over its seeds. Rows of earlier versions do not contain them."""
    by_seed = {row["seed"]: row.get("points_in_all") or 0 for row in subsets}
    return sum(by_seed.values())


def _grouped(rows: Iterable[Row]) -> dict[tuple[str, ...], list[Row]]:
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        variant = OLD_VARIANTS.get(row["variant"], row["variant"])
        groups.setdefault((row["durability"], row["fault"], variant, row["backend"]), []).append(row)
    return groups
