"""A judgement on one trial by one checker."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class Result(StrEnum):
    """What a checker says. Only ``VALID`` passes."""

    VALID = "valid"
    ANOMALY = "anomaly"
    UNKNOWN = "unknown"


class Verdict(NamedTuple):
    """``detail`` says what was found, or what was missing, in words that every run repeats; empty where valid."""

    checker: str
    result: Result
    detail: str = ""


def verdict(checker: str, anomalies: Iterable[str], missing: str = "") -> Verdict:
    """The first of ``anomalies``, else unknown where evidence is ``missing``, else valid."""
    for found in anomalies:
        return Verdict(checker, Result.ANOMALY, found)
    return Verdict(checker, Result.UNKNOWN, missing) if missing else Verdict(checker, Result.VALID)


def worst(verdicts: Iterable[Verdict]) -> Result:
    """Anomaly before unknown before valid; unknown where there is no verdict at all."""
    results = {judged.result for judged in verdicts}
    if Result.ANOMALY in results:
        return Result.ANOMALY
    return Result.VALID if results == {Result.VALID} else Result.UNKNOWN
