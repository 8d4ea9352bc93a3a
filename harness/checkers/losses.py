"""The acknowledged commits of a trial after each death: kept by the stores, replayed from the changelog, or lost.

Source: the analyses of Jepsen, which state for each history how many acknowledged writes were read in the end, and how
many were lost.
"""

from __future__ import annotations

from typing import NamedTuple

from harness.checkers.evidence import Acknowledged, Evidence, FoundStore, LaterProcess
from harness.checkers.state import difference, last_acknowledged, replay, replay_all


class Commits(NamedTuple):
    """The numbers of acknowledged commits of a trial. Each of them is kept, replayed or lost."""

    acknowledged: int = 0
    kept: int = 0
    replayed: int = 0
    lost: int = 0


NO_COMMITS = Commits()


def commits_of(evidence: Evidence) -> Commits:
    """Return what became of each commit that was acknowledged before a death.

    It was lost if the log lacks it after any death, or if a store lacks it after its restore. It was kept if each store
    had it when the next process opened it, whole. Else it was replayed.
    """
    kept = replayed = lost = judged = 0
    for life in evidence.lives:
        fresh = life.acknowledged[judged:]
        judged = len(life.acknowledged)
        later = [each for each in evidence.lives if len(each.acknowledged) >= judged]
        for commit in fresh:
            if any(each.log.next_input < commit.next_input for each in later) or _is_lacking(evidence, later):
                lost += 1
            elif life.found and all(_has(life, store, found, commit) for store, found in life.found.items()):
                kept += 1
            else:
                replayed += 1
    return Commits(judged, kept, replayed, lost)


def _has(life: LaterProcess, store: str, found: FoundStore, commit: Acknowledged) -> bool:
    """Return True if a store was at this commit or a later one when it was opened, and whole."""
    records = life.log.stores.get(store, ())
    needed = last_acknowledged(records, commit.log_ends.get(store, 0))
    if needed is None:
        return True
    offset = found.committed_offset
    return offset is not None and offset >= needed and not difference(found.state, replay(records, offset))


def _is_lacking(evidence: Evidence, lives: list[LaterProcess]) -> bool:
    """Return True if a store was not the state of its log after the first restore that came to its end.

    At least once, a store without isolation may be ahead of its log then.
    """
    if not evidence.exactly_once:
        return False
    restored = next((each for each in lives if each.restored), None)
    return restored is not None and any(
        difference(store.state, replay_all(restored.log.stores.get(name, ())))
        for name, store in restored.restored.items()
    )
