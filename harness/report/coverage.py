"""The classes of points that runs have tried together: evidence that adds up over runs, about one state of the code.

A class is a set of points at which the same thing happens. For an I/O fault that is the same call site, kind of
operation and step; for a crash trial the same failpoint and kind of store. A trial at one point tries its class. Each
class has the run that tried it last. The code of a group of classes is known by a digest: when that changes, its
classes are out, and have to be tried again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from harness.code import digest_of
from harness.report import text

MUTANTS = "mutants"
"""The name under which the trials of mutants are, of whatever experiment."""


class Group(NamedTuple):
    """The common properties of classes: the experiment, the backend or other subject, its level, and the fault."""

    experiment: str
    subject: str
    level: str
    fault: str


class Seen(NamedTuple):
    """A class that a run has met. ``points`` of it were tried, with so many processes killed, and power losses.

    Its code is that of ``modules`` and all that they import. ``failure`` is the command that repeats a trial which did
    not end as expected.
    """

    group: Group
    name: str
    modules: tuple[str, ...]
    points: int = 0
    kills: int = 0
    losses: int = 0
    failure: str = ""


@dataclass
class PointClass:
    """The points of a class that were tried with its code, and the number of the last run that did; 0 for none."""

    points: int = 0
    run: int = 0
    is_out: bool = False
    """True if the code has changed since."""
    failed: int = 0
    """The number of the last run in which a trial failed; 0 for none."""
    failure: str = ""
    """The command that repeats that trial."""


@dataclass
class CoveredGroup:
    """The classes of a group by name; its killed processes and power losses with this code, since the run ``since``."""

    modules: tuple[str, ...]
    code: str
    classes: dict[str, PointClass] = field(default_factory=dict)
    kills: int = 0
    losses: int = 0
    since: int = 0

    @property
    def is_out(self) -> bool:
        """True if the code has changed since the classes were tried."""
        return self.code != digest_of(self.modules)

    def renew(self, names: Iterable[str]) -> None:
        """Take all classes out, because the code has changed, and drop those that are not among ``names``."""
        there = set(names)
        self.classes = {name: each for name, each in self.classes.items() if name in there}
        for each in self.classes.values():
            each.is_out = each.run > 0
        self.code, self.kills, self.losses, self.since = digest_of(self.modules), 0, 0, 0


@dataclass
class CoveredRun:
    """A run that has tried classes: when it began, on which commit, its profile, its seed, and how long it took."""

    when: str
    commit: str
    profile: str
    seed: int
    seconds: int = 0


@dataclass
class Coverage:
    """All that was tried, by runs whose numbers count from 1."""

    runs: list[CoveredRun] = field(default_factory=list)
    groups: dict[Group, CoveredGroup] = field(default_factory=dict)

    @property
    def next_seed(self) -> int:
        """The seed of a run that moves on: the one after the largest so far."""
        return 1 + max((run.seed for run in self.runs), default=0)

    def last_tried(self, group: Group, name: str) -> int:
        """Return the number of the last run that tried a class; 0 if none has, or if the code has changed since."""
        entry = self.groups.get(group)
        known = entry.classes.get(name) if entry is not None and not entry.is_out else None
        return 0 if known is None or known.is_out else known.run

    def add(self, seen: Iterable[Seen], run: int) -> None:
        """Add what the run with this number has met. Classes of a group whose code has changed are out, or dropped."""
        by_group: dict[Group, list[Seen]] = {}
        for each in seen:
            by_group.setdefault(each.group, []).append(each)
        for group, met in by_group.items():
            entry = self.groups.setdefault(group, CoveredGroup(met[0].modules, digest_of(met[0].modules)))
            entry.modules = met[0].modules
            if entry.is_out:
                entry.renew(each.name for each in met)
            for each in met:
                _note(entry, each, run)


def _note(entry: CoveredGroup, seen: Seen, run: int) -> None:
    known = entry.classes.setdefault(seen.name, PointClass())
    if seen.points:
        known.points = seen.points + (0 if known.is_out else known.points)
        known.run, known.is_out = run, False
        entry.kills += seen.kills
        entry.losses += seen.losses
        entry.since = entry.since or run
    if seen.failure:
        known.failure, known.failed = seen.failure, run


COVERAGE, COVERAGE_RUN = "coverage", "coverage_run"
"""The kinds of rows that a run keeps of the coverage as it was at its end: a row for each group, and for each run."""
COVERAGE_KINDS: Mapping[str, Mapping[str, type]] = MappingProxyType(
    {
        COVERAGE: {
            **dict.fromkeys(("experiment", "subject", "level", "fault"), str),
            **dict.fromkeys(("classes", "tried", "taken_out", "points", "kills", "losses", "since", "oldest"), int),
            **dict.fromkeys(("failing", "failed_run"), int),
            "passed_since": bool,
            **dict.fromkeys(("failed_class", "failed_command"), str),
        },
        COVERAGE_RUN: {"number": int, "started": str, "commit_hash": str, "profile": str, "seed": int, "seconds": int},
    }
)


def coverage_rows(coverage: Coverage) -> list[dict[str, Any]]:
    """Return the rows of both kinds.

    ``tried`` counts the classes that were tried with the code as it is now, ``taken_out`` those that were tried before
    it changed. ``since`` and ``oldest`` are the numbers of the first run with this code, and of the oldest run that has
    tried some class last; null if none was tried. ``failing`` counts the classes that have failed in the last run which
    tried them. Of the class that failed last, ``passed_since`` says if a later run tried it without a failure.
    """
    groups = [{"kind": COVERAGE, **group._asdict(), **_summary(entry)} for group, entry in coverage.groups.items()]
    runs = [
        {"kind": COVERAGE_RUN, "number": number, "started": run.when, **_facts(run)}
        for number, run in enumerate(coverage.runs, 1)
    ]
    return [*groups, *runs]


def _summary(entry: CoveredGroup) -> dict[str, Any]:
    tried = [each for each in entry.classes.values() if each.run and not (each.is_out or entry.is_out)]
    failed = {name: each for name, each in entry.classes.items() if each.failed}
    last = max(failed, key=lambda name: failed[name].failed, default="")
    return {
        "classes": len(entry.classes),
        "tried": len(tried),
        "taken_out": sum(each.run > 0 for each in entry.classes.values()) - len(tried),
        "points": sum(each.points for each in tried),
        "kills": 0 if entry.is_out else entry.kills,
        "losses": 0 if entry.is_out else entry.losses,
        "since": (entry.since or None) if tried else None,
        "oldest": min((each.run for each in tried), default=None),
        "failing": sum(each.failed >= each.run for each in failed.values()),
        "failed_run": failed[last].failed if last else None,
        "passed_since": failed[last].failed < failed[last].run if last else None,
        "failed_class": last,
        "failed_command": failed[last].failure if last else "",
    }


def _facts(run: CoveredRun) -> dict[str, Any]:
    return {"commit_hash": run.commit, "profile": run.profile, "seed": run.seed, "seconds": run.seconds}


LEFT_OUT, TOO_SHORT = "left_out", "too_short"
"""The facts of a run that have this, by experiment: the units of which less was tried than planned, with both numbers;
the ``Share`` of one that had too little time for any trial."""


class Share(NamedTuple):
    """The seconds that an experiment had, and those that its shortest trial takes, roughly."""

    had_s: float = math.inf
    needs_s: float = 0.0

    @property
    def is_too_short(self) -> bool:
        """True if no trial can begin."""
        return self.had_s <= self.needs_s


Extents = Mapping[str, Mapping[str, Sequence[int]]]
"""The numbers that were tried and planned, by experiment and unit: ``{"crash": {"trials": (52, 594)}}``."""


def left_out(extents: Extents) -> Extents:
    """Return the part of ``extents`` of which less was tried than planned."""
    cut = {
        name: {unit: (tried, planned) for unit, (tried, planned) in extent.items() if tried < planned}
        for name, extent in extents.items()
    }
    return {name: units for name, units in cut.items() if units}


def left_out_sentence(extent: Mapping[str, Sequence[int]], share: Sequence[float] = ()) -> str:
    """Return a sentence such as "1,204 of 27,275 points tried within the budget."

    ``share`` is that of an experiment which had too little time for any trial.
    """
    if not any(tried for tried, _ in extent.values()):
        none = " and ".join(f"none of {text.exact(planned)} {unit}" for unit, (_, planned) in extent.items())
        why = "" if not share else f": its share was {text.duration(share[0])}, and one takes {text.duration(share[1])}"
        return f"{none} was tried within the budget{why}."
    parts = [f"{text.exact(tried)} of {text.exact(planned)} {unit}" for unit, (tried, planned) in extent.items()]
    return f"{' and '.join(parts)} tried within the budget; the others were left out."


def sentence_of(facts: Mapping[str, Any], experiment: str) -> str:
    """Return what a run left out of an experiment, from its facts; "" for nothing."""
    cut = facts.get(LEFT_OUT) or {}
    too_short = facts.get(TOO_SHORT) or {}
    return left_out_sentence(cut[experiment], too_short.get(experiment, ())) if experiment in cut else ""


def summary_of(facts: Mapping[str, Any], titles: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a sentence about all that a run left out, from its facts; "" for nothing.

    ``titles`` are the experiments in a reader's words.
    """
    cut: Extents = facts.get(LEFT_OUT) or {}
    if not cut:
        return ""
    parts = (
        f"{text.exact(tried)} of {text.exact(planned)} {unit} of *{titles.get(name, name)}*"
        for name, extent in cut.items()
        for unit, (tried, planned) in extent.items()
    )
    return f"This run tried, within its budget, {', '.join(parts)}; it left out the others."
