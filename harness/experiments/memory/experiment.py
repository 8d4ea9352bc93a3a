"""The experiments about the limit on the memory of staged writes: early commits, and steps larger than the limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any

from harness.budget import DEFAULT, NIGHT, SMOKE
from harness.experiment import Request, Rows, StoresAlone, TrialWorker, check_counts
from harness.experiments.memory import early_commits, large_steps
from harness.report import text
from harness.report.charts import Chart
from harness.report.database import busy, medians
from harness.report.figures import Figures
from harness.report.listing import Column, Listing, Plot
from harness.report.page import Page, PageFinding, TextTable
from harness.report.rows import Row
from stores.config import StoreConfig
from stores.registry import backends

EARLY_COMMITS = "Commits that only the limit asks for"
LARGE_STEPS = "One step larger than the limit"
"""The titles of the two parts of the page."""


_EARLY_COMMITS = """\
The writes of a task since its last commit are staged in its stores. The limit (`uncommitted_max_bytes`) bounds their
memory: keys and values, 92 bytes for each entry, and 128 for each record that is held for the changelog. Nothing else
makes this task commit. It commits before the next record would exceed the limit, if that is as large as the largest
recent one, and after a record that has exceeded it.
"""

_LARGE_STEPS = """\
One input record may write more than the limit on memory allows, and stays one transaction. An indexed batch and a dual
store spill the writes beyond the limit to disk. `sqlite-native` has them in SQLite's own files. `rocksdb-direct`
isolates nothing, so that readers see the writes as they are made. Two backends keep the writes in memory:
`memory-indexed-batch` has no disk, and LMDB keeps the pages that its transaction has changed (`lmdb-native`). By a
constant of its build these are 131,071 pages, or 512 MiB, or as many values of more than half a page, whatever their
size. Besides, memory holds the buffers and caches that the engines are configured with. Native stores also hold each
key of the step with the length of its value.
"""
_SHOWS = "The writes of a task since its last commit have a limit on their memory, and a single step may exceed it."
_METHOD = """\
The limit: one task of `count` over 50,000 records, with no commit interval. It commits only because of the limit on
staged writes: before a record that would exceed it (`PREDICTED`), else after it (`EXCEEDED`). If a limit is exceeded,
the run fails.

A large step: one record whose function puts pairs of 8,000 bytes through a task. It includes its commit, which the
limit causes immediately. Memory is anonymous memory above what the process had before, sampled every millisecond by
another process. RocksDB's write buffers and every cache are set to 4 MiB here, a copied part to 1 MiB. By default they
are 48 MiB and 50 MiB per engine, so that a step may take up to twice that more. A bound is computed beforehand. It is
the sum of:

* the limit;
* twice the engine's buffers and caches, because a spill has its own engine;
* four copied parts;
* 8 MiB for the changelog's producer;
* 200 bytes for each pair;
* 16 MiB of freed memory that allocators keep.

If a bound is exceeded, or a step is not one commit, the run fails.
"""


EARLY_COMMITS_QUERY = f"""with limited as (
        select durability, backend, limit_bytes, count(*) as repeats, sum({busy("early_commit")}) as busy,
            max(uncommitted_max_bytes) as uncommitted_max_bytes,
            {medians("records", "records_per_s", "commits", "predicted", "exceeded", "peak_memory_bytes")}
        from early_commit group by durability, backend, limit_bytes
    )
    select limited.*, limited.records_per_s / free.records_per_s as against_none
    from limited left join limited as free
        on (free.durability, free.backend) = (limited.durability, limited.backend) and free.limit_bytes is null
    order by limited.durability, limited.backend, limited.limit_bytes"""
"""The largest staged size for each backend and limit, and medians of the rest.

``against_none`` is the rate over that of the same backend without a limit, null if that was not measured.
"""


_STEP = "backend || ' at ' || durability || ', one step of ' || size(step_bytes)"
_ATOMIC = "(state = 'equal' and commits = 1 and not (transactional and seen_early))"
LARGE_STEPS_QUERY = f"""select *, peak_bytes <= bound_bytes as bounded, {_ATOMIC} as atomic
    from large_step order by durability, backend, step_bytes, seconds, peak_bytes"""
"""The steps with ``bounded``, true if a step kept its memory bound, null if it has none, and with ``atomic``.

That is true if it was one commit: all of it is there afterwards, and a store with isolation showed nothing before.
"""


def memory_findings(figures: Figures) -> tuple[PageFinding, ...]:
    """Return how many limits were kept, and how many steps were one commit within their bound."""
    limited = [figure for figure in figures["early_commit"] if figure["limit_bytes"] is not None]
    steps = figures["large_step"]
    return (
        PageFinding(
            "limits on the memory of uncommitted writes",
            len(limited),
            sum(figure["uncommitted_max_bytes"] <= figure["limit_bytes"] for figure in limited),
            "were never exceeded",
            EARLY_COMMITS,
        ),
        PageFinding(
            "steps larger than the limit",
            len(steps),
            sum(figure["atomic"] and figure["bounded"] != 0 for figure in steps),
            "were one commit, and took no more memory than their bound where they have one",
            LARGE_STEPS,
        ),
    )


_OF_LIMITS = Listing(
    "Workload `count`, level {durability}, no commit interval",
    "early_commit_figure",
    (
        Column("backend"),
        Column("limit", "iif(limit_bytes, size(limit_bytes), 'none')", right=True),
        Column("most staged", "uncommitted_max_bytes", text.size),
        Column("staged / limit", "1.0 * uncommitted_max_bytes / limit_bytes", text.ratio),
        Column("commits", "commits", text.exact),
        Column("commits before the limit was passed", "predicted", text.exact),
        Column("commits after it", "exceeded", text.exact),
        Column("records/s", "records_per_s", text.count),
        Column("records/s against no limit", "against_none", text.ratio),
        Column("peak memory of the process", "peak_memory_bytes", text.size),
    ),
)
OF_STEPS = Listing(
    "One step of a task, level {durability}; no bound where it is not spilled",
    "large_step_figure order by durability, backend, step_bytes",
    (
        Column("backend"),
        Column("limit", "limit_bytes", text.size),
        Column("the step wrote", "step_bytes", text.size),
        Column("on disk when its commit began", "staged_disk_bytes", text.size),
        Column("peak memory of step and commit", "peak_bytes", text.size),
        Column("peak / written", "1.0 * peak_bytes / step_bytes", text.ratio),
        Column("its bound", "bound_bytes", text.size),
        Column("within it", f"iif(bounded is null, '{text.NONE}', iif(bounded, 'yes', '**no**'))"),
        Column("one commit", "iif(transactional, iif(atomic, 'yes', '**no**'), 'seen as it is made')"),
        Column("took", "seconds", text.duration),
    ),
    notable="not atomic or not coalesce(bounded, true)",
)


def _part(words: str, made: Sequence[TextTable]) -> list[str]:
    return [words, *(table.folded() for table in made)] if made else [f"{text.NOT_MEASURED.capitalize()}.\n"]


_MARKS = """with measured(measure, shape) as (
        values ('peak memory of step and commit', ''), ('its bound', 'bar')
    )
    select durability || ', a step of ' || size(step_bytes) || ', limit ' || size(limit_bytes) as title,
        durability as level, false as printed, backend, measure, shape, null as low,
        iif(shape = '', peak_bytes, bound_bytes) / 1048576.0 as value
    from large_step_figure, measured where value is not null
    order by level_place(durability), durability, step_bytes, limit_bytes, shape"""


_CHART = Chart(
    "large-step-memory",
    "Peak memory of a large step",
    "dots",
    (),
    "memory, MiB",
    "MiB",
    more_is_better=False,
    hollow="one step of each",
)
"""A panel for each level and size of a step. It is not printed: the table has the same figures."""


_MIB = 1 << 20
EARLY_COMMIT_REPEATS: Mapping[str, int] = MappingProxyType({SMOKE: 1, DEFAULT: 2, NIGHT: 5})
STEPS_BYTES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {SMOKE: (32 * _MIB,), DEFAULT: (64 * _MIB,), NIGHT: (64 * _MIB, 256 * _MIB, 1024 * _MIB)}
)
"""The sizes of a step's keys and values, for every backend."""
LARGER_STEP_BYTES = 128 * _MIB
"""One more size, for the default backend alone, in the default profile."""


@dataclass(frozen=True)
class EarlyCommitTrial:
    """One task without a commit interval. ``limit_bytes`` -1 is no limit; ``repeat`` counts from 0."""

    backend: str
    limit_bytes: int
    repeat: int
    seed: int


class EarlyCommits(StoresAlone[EarlyCommitTrial]):
    """A task whose commits are all caused by the limit. Only the default backend, except in the profile night."""

    name = "early_commits"
    words = "limits on the memory of uncommitted writes"
    trial = EarlyCommitTrial
    figures_by = {"early_commit": EARLY_COMMITS_QUERY}
    failed_by = """select backend || ' had staged ' || exact(uncommitted_max_bytes) || ' bytes, where '
            || exact(limit_bytes) || ' are allowed' as sentence
        from early_commit where uncommitted_max_bytes > limit_bytes"""
    columns = {
        "early_commit": {
            "backend": str,
            "durability": str,
            "limit_bytes": int,
            "repeat": int,
            "records": int,
            "seconds": float,
            "records_per_s": float,
            "commits": int,
            "predicted": int,
            "exceeded": int,
            "uncommitted_max_bytes": int,
            "peak_memory_bytes": int,
        }
    }

    def plan(self, request: Request) -> list[EarlyCommitTrial]:
        """Return a trial for each backend, limit and repeat. Repeats of one configuration are not adjacent."""
        subjects = request.among(backends() if request.profile == NIGHT else [StoreConfig().backend])
        trials = []
        for repeat in range(EARLY_COMMIT_REPEATS[request.profile]):
            round_ = [(name, limit) for name in subjects for limit in early_commits.LIMITS]
            Random(f"{request.seed} {repeat}").shuffle(round_)
            trials += [EarlyCommitTrial(name, limit, repeat, request.seed) for name, limit in round_]
        return trials

    def run(self, trial: EarlyCommitTrial, worker: TrialWorker) -> Iterable[Row]:
        """Return one row. Raises: MeasurementFailedError."""
        return [early_commits.measured(trial.backend, trial.limit_bytes, trial.repeat, trial.seed)]


@dataclass(frozen=True)
class LargeStepTrial:
    """One step of a task that stages ``step_bytes``."""

    backend: str
    step_bytes: int
    seed: int

    def __post_init__(self) -> None:
        """Raise ConfigError for a number that counts nothing."""
        check_counts(step_bytes=self.step_bytes)


class LargeSteps(StoresAlone[LargeStepTrial]):
    """One record whose function stages many times the limit: its memory, and that it is one commit."""

    name = "large_steps"
    words = "steps larger than the limit"
    trial = LargeStepTrial
    program = large_steps
    share = 2
    figures_by = {"large_step": LARGE_STEPS_QUERY}
    failed_by = f"""select {_STEP} || ': took ' || size(peak_bytes) || ', above ' || size(bound_bytes) as sentence
        from large_step where peak_bytes > bound_bytes
        union all select {_STEP} || ': ' || commits || ' commits, ' || seen_early || ' of the keys looked up were seen '
            || 'before, and the state after a reopening is ' || state
        from large_step where not {_ATOMIC} order by sentence"""
    """Steps that exceeded their memory bound, and those that were not one commit."""
    columns = {
        "large_step": {
            "backend": str,
            "durability": str,
            "transactional": bool,
            "limit_bytes": int,
            "step_bytes": int,
            "pairs": int,
            "uncommitted_bytes": int,
            "staged_disk_bytes": int,
            "peak_bytes": int,
            "bound_bytes": int,
            "seen_early": int,
            "commits": int,
            "state": str,
            "seconds": float,
        }
    }

    def plan(self, request: Request) -> list[LargeStepTrial]:
        """Return a trial for each backend and size, and one larger step of the default backend."""
        steps = [(name, size) for name in backends() for size in STEPS_BYTES[request.profile]]
        if request.profile == DEFAULT:
            steps.append((StoreConfig().backend, LARGER_STEP_BYTES))
        Random(request.seed).shuffle(steps)
        return [LargeStepTrial(name, size, request.seed) for name, size in steps if request.among([name])]

    def page(self, figures: Figures, rows: Rows, facts: Mapping[str, Any]) -> Page:
        """Return the page about memory, which includes early commits."""
        failures = [str(each) for one in (EarlyCommits(), self) for each in one.failures(figures, rows)]
        body = [
            text.failures("Limits and bounds that did not hold", failures) if failures else "",
            f"## {EARLY_COMMITS}\n",
            *_part(_EARLY_COMMITS, _OF_LIMITS.tables(figures)),
            f"## {LARGE_STEPS}\n",
            *_part(_LARGE_STEPS, OF_STEPS.tables(figures)),
        ]
        return Page(
            "memory",
            "Memory of uncommitted writes",
            (_SHOWS,),
            body if figures["early_commit"] or figures["large_step"] else (),
            _METHOD,
            memory_findings(figures),
            (Plot(_CHART, _MARKS).drawn(figures),),
        )
