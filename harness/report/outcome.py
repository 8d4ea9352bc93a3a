"""What came of a run, in a sentence for each thing that can go wrong, each with the section that has the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.report import text
from harness.report.effect_tables import is_promised
from harness.report.figures import Figure

Figures = Mapping[str, Sequence[Figure]]


def outcome(figures: Figures) -> str:
    """A list in Markdown, in bold where something is wrong."""
    return "".join(f"* {sentence}\n" for sentence in _sentences(figures))


def ratios_reached(figures: Figures, section: str = "") -> str:
    """How many of the ratios that have a threshold reach it; a link to ``section`` if there is one."""
    asked = [figure["met"] for figure in figures["ratio"] if figure["met"] is not None]
    return _judged("ratios with a threshold", section, len(asked), asked.count(True), "reached it")


def _sentences(figures: Figures) -> Iterator[str]:
    crashes = figures["crash"]
    yield _judged(
        "crash trials",
        "crashes",
        sum(cell["trials"] for cell in crashes),
        sum(cell["as_expected"] for cell in crashes),
        "ended as expected",
    )
    promised = [figure for figure in figures["effect"] if is_promised(figure)]
    tried = sum(figure["distinct"] + figure["no_verdict"] for figure in promised)
    yield _judged(
        "states and trials of faults below the process",
        "faults-below-the-process",
        tried,
        tried - sum(figure["wrong"] for figure in promised),
        "kept what was promised",
    )
    yield _judged(
        "trials of defects built in on purpose",
        "whether-this-would-see-a-defect",
        len(figures["mutant"]),
        sum(figure["expected"] for figure in figures["mutant"]),
        "ended as they should: the faults that can show the defect do, the others do not",
    )
    states = [figure["end_state"] for figure in figures["throughput"] if figure["end_state"] != "not compared"]
    yield _judged(
        "measured configurations",
        "throughput-of-a-task",
        len(states),
        states.count("equal"),
        "ended with what Spark SQL computes",
    )
    limited = [figure for figure in figures["early_commit"] if figure["limit_bytes"] is not None]
    yield _judged(
        "limits on the memory of uncommitted writes",
        "memory-commits-that-only-the-limit-asks-for",
        len(limited),
        sum(figure["uncommitted_max_bytes"] <= figure["limit_bytes"] for figure in limited),
        "were never passed",
    )
    steps = figures["large_step"]
    yield _judged(
        "steps larger than the limit",
        "memory-one-step-larger-than-the-limit",
        len(steps),
        sum(figure["atomic"] and figure["bounded"] is not False for figure in steps),
        "were one commit, and took no more memory than their bound where they have one",
    )
    yield ratios_reached(figures, "ratios")


def _judged(what: str, section: str, number: int, good: int, verdict: str) -> str:
    if not number:
        return f"No {what} in this run."
    linked = f"[{what}](#{section})" if section else what
    told = f"{text.exact(good)} of {text.exact(number)} {linked} {verdict}."
    return told if good == number else f"**{told}**"
