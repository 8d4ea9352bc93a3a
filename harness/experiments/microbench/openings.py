"""Openings of a timestamped store whose records have timestamps, or are plain ones from before its upgrade."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

from harness.experiments.microbench.case import Case
from harness.experiments.microbench.load import Load
from harness.experiments.microbench.subject import TimedStore, open_subject
from stores.records import BYTES, TimestampedKeyValue

_KIND = TimestampedKeyValue(BYTES, BYTES)
_BATCH = 10_000


def opening_seconds(case: Case, folder: Path, load: Load) -> list[float]:
    """Fill a store with ``case.staged`` records, open it as a timestamped one again and again; return the seconds.

    The first opening, which begins the upgrade of a plain store, is not among them.
    """
    fill(case, folder, load)
    return [_opened_in(case, folder) for _ in range(case.rounds + 1)][1:]


def fill(case: Case, folder: Path, load: Load) -> None:
    """Commit the records, in the form that the case names, and close the store."""
    subject = _open(case, folder)
    timed = _KIND.over(subject.store) if case.form == "timestamped" else None
    for begin in range(0, case.staged, _BATCH):
        pairs = load.fresh(min(_BATCH, case.staged - begin))
        if timed is None:
            subject.write(pairs)
            continue
        for key, value in pairs:
            timed.put(key, value, 1)
        timed.commit()
    subject.close()


def _opened_in(case: Case, folder: Path) -> float:
    began = perf_counter()
    opened = _open(case, folder)
    _KIND.over(opened.store)
    seconds = perf_counter() - began
    opened.close()
    return seconds


def _open(case: Case, folder: Path) -> TimedStore:
    opened = open_subject(case, folder)
    assert isinstance(opened, TimedStore)
    return opened
