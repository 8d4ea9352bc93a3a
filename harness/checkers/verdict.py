"""The verdict of one checker on one trial."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class Result(StrEnum):
    """The result of a checker. Only ``VALID`` passes."""

    VALID = "valid"
    ANOMALY = "anomaly"
    UNKNOWN = "unknown"


class Verdict(NamedTuple):
    """``detail`` describes the anomaly or the missing evidence, in words that are equal in every run; "" if valid."""

    checker: str
    result: Result
    detail: str = ""


def verdict(checker: str, anomalies: Iterable[str], missing: str = "") -> Verdict:
    """Return the first of ``anomalies``, or unknown if evidence is ``missing``, or valid."""
    for found in anomalies:
        return Verdict(checker, Result.ANOMALY, found)
    return Verdict(checker, Result.UNKNOWN, missing) if missing else Verdict(checker, Result.VALID)


def worst(verdicts: Iterable[Verdict]) -> Result:
    """Return the worst result: anomaly, then unknown, then valid; unknown if there is no verdict."""
    results = {verdict.result for verdict in verdicts}
    if Result.ANOMALY in results:
        return Result.ANOMALY
    return Result.VALID if results == {Result.VALID} else Result.UNKNOWN
