"""Every input has its output: exactly one under exactly-once, in order; at least one otherwise.

Source: KIP-129, "Motivation"; a reader of the output sees committed records only.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.checkers.evidence import Evidence
from harness.checkers.verdict import Verdict, verdict


def outputs(evidence: Evidence) -> Verdict:
    """Check the committed records of the output.

    Under at-least-once only their keys count: an input that is processed again may read its own earlier writes.
    """
    return verdict("outputs", _anomalies(evidence), evidence.missing)


def _anomalies(evidence: Evidence) -> Iterator[str]:
    if evidence.missing:
        return
    got = [(record.key, record.value) for record in evidence.final_log.outputs]
    wanted = list(evidence.expected.outputs)
    lost = sorted({key for key, _ in wanted} - {key for key, _ in got})
    if lost:
        yield f"{len(lost)} inputs have no output, first {lost[0]!r}"
    if not evidence.exactly_once:
        return
    keys = [key for key, _ in got]
    twice = sorted({key for key in keys if key is not None and keys.count(key) > 1})
    if twice:
        yield f"{len(twice)} inputs have several outputs, first {twice[0]!r}"
    for at, (one, other) in enumerate(zip(got, wanted, strict=False)):
        if one != other:
            yield f"output {at} is {one!r} instead of {other!r}"
    if len(got) != len(wanted):
        yield f"{len(got)} outputs instead of {len(wanted)}"
