"""The results of a run: one sentence for each kind of check, with a link to the section that has the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.report import text
from harness.report.effect_tables import is_promised
from harness.report.figures import Figure

Figures = Mapping[str, Sequence[Figure]]


def outcome(figures: Figures) -> str:
    """Return a list in Markdown, with failed checks in bold."""
    return "".join(f"* {sentence}\n" for sentence in _sentences(figures))


def ratios_reached(figures: Figures, section: str = "") -> str:
    """Return how many ratios with a threshold reach it, with a link to ``section`` if one is given."""
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
        "states and trials of I/O faults",
        "io-faults",
        tried,
        tried - sum(figure["wrong"] for figure in promised),
        "kept what was promised",
    )
    yield _judged(
        "trials of mutants",
        "mutants",
        len(figures["mutant"]),
        sum(figure["expected"] for figure in figures["mutant"]),
        "ended as expected: the faults that can detect the mutant do, the others do not",
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
        "were never exceeded",
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
