"""Failing calls: a call on a file fails, once or from then on. The caller gets an error of the library, with advice."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.checkers.prefix import DETECTING, Demand, Finding, Found, Promised
from harness.experiments.iofaults.workshop import Life, Plan, Row, Workshop

_SHORT_BYTES, _ALWAYS_SHORT_BYTES = 7, 505
"""The bytes that a short write transfers: if it happens once, and if every write is short, so that a retry ends."""


def errors(shop: Workshop, points: Sequence[int], only: str = "") -> Iterator[Row]:
    """Let the call that would be effect ``point`` fail as the case's variant says, for each of ``points``."""
    error, how = shop.case.variant.split(" ")
    for point in points:
        if error == "SHORT":
            lasting = how == "lasting"
            plan: Plan = ["Short", point, _ALWAYS_SHORT_BYTES if lasting else _SHORT_BYTES, lasting]
        else:
            plan = ["Fail", point, getattr(errno, error), how == "lasting"]
        yield _failed(shop, point, plan, f"{error} at effect {point}, {how}")


def _failed(shop: Workshop, point: int, plan: Plan, description: str) -> Row:
    demanded = shop.demanded("error")
    life: Life | None = None

    def trial() -> tuple[Promised, Finding]:
        nonlocal life
        life = shop.writer(plan)
        promises = shop.promises(life, demanded)
        if not shop.case.variant.endswith("lasting"):
            promises = _went_on(life, promises, demanded)
        return promises, shop.verdict(promises, demanded)

    promises, verdict = shop.patiently(trial)
    if life is not None and life.outcome.result is not None and not life.outcome.result["fired"]:
        description += ", which was not reached"
    return shop.row(point, "", description, promises, verdict)


def _went_on(life: Life, promises: Promised, demanded: Demand) -> Promised:
    """After a single error, a process that follows the advice completes its work."""
    result = life.outcome.result
    if promises.broken or result is None or not result["gave_up"]:
        return promises
    if demanded.may_detect and result["error"].split(":")[0] in DETECTING:
        return promises
    return replace(promises, broken=(Found.UNUSABLE, f"one call failed, and this stays: {result['error']}"))
