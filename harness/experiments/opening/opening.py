"""The time until a store is open and restored after a kill, against the number of records in it.

One changelog is written, from which each store is restored once, and closed cleanly, as a long-lived one mostly is on
disk. Repeats come in rounds: each round has every backend once, in an order shuffled by the seed. In a repeat, commits
of 1,000 records follow. In one more commit the process is killed after the changelog has it, and before the store has
it. A fresh process opens the task. It replays that last commit, and those before it if a kill may lose them at this
level.

If a kill may lose them (RocksDB without a WAL loses its memtable), the commits almost fill a write buffer, with at most
half as many records as the store has. Otherwise there are ten. A store that is not transactional is wiped and restored.

In each repeat, the killed store is first opened by itself, without a changelog, and a copy of its files with the bare
engine; each then looks one key up. Opening and recovering a store is compared with the latter. Some openings write a
small file that must survive power loss, the mark that the store is open. These are also compared with the bare engine
and such a file. The speed of the replay is compared with that of the restore that filled the store.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from harness.budget import NEVER, Deadline, TimeOverError
from harness.experiments.opening import steps
from harness.folders import temporary_folder
from harness.processes.child import figures_in
from harness.processes.load import LoadWatch, is_busy, load_columns
from harness.report.ratios import ratio_of
from harness.report.text import duration
from stores.errors import ConfigError
from stores.interface import Durability
from stores.registry import backend_named

DEADLINE_S = 180
DEADLINE_PER_RECORD_S = 0.0002
BARE_AT_LEAST = 0.5
"""A store may take twice as long to open and recover as its engine takes to open the same files."""
REPLAY_AT_LEAST = 0.8
"""The replay of the tail may be this much slower than a restore. It has fixed costs, and its keys are at random."""
REPLAY_FROM_RECORDS = 10_000
"""The smallest tail whose speed must be that of a restore. Fixed costs are most of the time of a smaller one."""


@dataclass(frozen=True, slots=True)
class OpeningTrial:
    """Stores of the same size, one per backend, that are filled once, then killed and opened ``repeats`` times."""

    backends: tuple[str, ...]
    durability: Durability
    records: int
    repeats: int
    seed: int

    def __post_init__(self) -> None:
        if not self.backends:
            raise ConfigError("a trial of opening needs one or more backends")
        for name in self.backends:
            backend = backend_named(name)
            if self.durability not in backend.durabilities or not backend.persistent:
                raise ConfigError(f"{name} at {self.durability} keeps nothing to open: choose another")
        if min(self.records, self.repeats) < 1:
            raise ConfigError("records and repeats count from 1")


def run_opening(
    trial: OpeningTrial, *, code: str | None = None, within: Path | None = None, deadline: Deadline = NEVER
) -> list[dict[str, Any]]:
    """Return the rows of a trial, of kind "opening", one per repeat. ``code`` and ``within`` are as for ``run``.

    After ``deadline`` no store is filled or opened: there are fewer rows then.

    Raises: MeasurementFailedError.
    """
    shared = {name: getattr(trial, name) for name in ("durability", "records", "seed")}
    rows: list[dict[str, Any]] = []
    filled: dict[str, float] = {}
    # A process that the end of the time has killed measured nothing; the rows of those before it stay.
    with temporary_folder("opening", within) as scratch, suppress(TimeOverError):
        _step(trial, scratch, code, "log", {"backend": trial.backends[0], **shared})
        for repeat in range(trial.repeats):
            turns = list(trial.backends)
            random.Random(f"opening {trial.seed} {repeat}").shuffle(turns)
            for backend in turns:
                if deadline.passed:
                    return rows
                order = {"backend": backend, **shared}
                step = partial(_step, trial, scratch / backend, code)
                if backend not in filled:
                    # In its first round: a deadline that comes before the last store is filled leaves rows of others.
                    (scratch / backend).mkdir()
                    filled[backend] = step("fill", order)["restore_s"]
                step("tail", order)
                watch = LoadWatch()
                figures = {**step("apart", {**order, "repeat": repeat}), **step("reopen", order)}
                row = {"kind": "opening", "backend": backend, **shared, "repeat": repeat}
                row["whole_restore_s"] = filled[backend]
                rows.append({**row, **figures, **load_columns([watch.figures()])})
    return rows


def ratios(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of kind "ratio", for each backend and level that does not replay its whole changelog.

    The largest store opens within a second after a kill: more than 1 is faster. A store of any size, without the replay
    of the tail, opens and recovers at most twice as slowly as the bare engine opens the same files. The tail is
    replayed at the speed of a restore.
    """
    ready: dict[tuple[str, str], dict[int, list[Mapping[str, Any]]]] = {}
    for row in rows:
        if row["replayed"] >= row["records"]:
            continue
        by_size = ready.setdefault((row["backend"], row["durability"]), {})
        by_size.setdefault(row["records"], []).append(row)
    found = []
    for (backend, durability), by_size in sorted(ready.items()):
        large = max(by_size)
        shared = {"kind": "ratio", "subject": backend, "durability": durability, "records_per_commit": None}
        found.append(
            {
                **shared,
                "claim": f"open and restored after a kill, with {large:,} records, against one second",
                "yardstick": "one second",
                "at_least": 1.0,
                **ratio_of([1 / (row["open_s"] + row["restore_s"]) for row in by_size[large]], _busy(by_size[large])),
            }
        )
        for size, group in sorted(by_size.items()):
            of_size = (*_bare_ratios(backend_named(backend).engine, size, group), *_replay_ratio(size, group))
            found += [{**shared, **ratio} for ratio in of_size]
    return found


def _bare_ratios(engine: str, size: int, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the ratio to the bare engine and, for openings that write a mark, to the bare engine with such a mark."""
    compared = [row for row in rows if row["bare_s"] is not None]
    if not compared:
        return
    alone_s, bare_s = (median(row[name] for row in compared) for name in ("alone_s", "bare_s"))
    marked = [row for row in compared if row.get("mark_s") is not None]
    mark_s = median(row["mark_s"] for row in marked) if marked else None
    bare = ratio_of([row["bare_s"] / row["alone_s"] for row in compared], _busy(compared))
    rest_s = max(0.0, alone_s - bare_s - (mark_s or 0.0))
    mark = "" if mark_s is None else f"mark {duration(mark_s)}, "
    reason = (
        None
        if bare["ratio"] >= BARE_AT_LEAST
        else f"{duration(alone_s)}: bare {duration(bare_s)}, {mark}rest {duration(rest_s)}"
    )
    yield {
        "claim": f"opening and recovering {size:,} records, against opening the files with the bare engine",
        "yardstick": f"bare {engine}",
        "at_least": BARE_AT_LEAST,
        "reason": reason,
        **bare,
    }
    if mark_s is not None:
        yield {
            "claim": f"opening and recovering {size:,} records, against the bare engine and a durable mark",
            "yardstick": f"bare {engine} and a mark",
            "at_least": BARE_AT_LEAST,
            **ratio_of([(row["bare_s"] + row["mark_s"]) / row["alone_s"] for row in marked], _busy(marked)),
        }


def _replay_ratio(size: int, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the ratio of the speeds of the tail's replay and of the restore that filled the store."""
    timed = [row for row in rows if row["restore_s"] and row.get("whole_restore_s")]
    if timed:
        replayed = median(row["replayed"] for row in timed)
        speeds = [row["replayed"] / row["restore_s"] / (size / row["whole_restore_s"]) for row in timed]
        yield {
            "claim": f"records/s of the replay of a tail of {replayed:,.0f} records, against a restore of {size:,}",
            "yardstick": "its restore",
            "at_least": REPLAY_AT_LEAST if replayed >= REPLAY_FROM_RECORDS else None,
            **ratio_of(speeds, _busy(timed)),
        }


def _busy(rows: Iterable[Mapping[str, Any]]) -> int:
    return sum(map(is_busy, rows))


def _step(
    trial: OpeningTrial, folder: Path, code: str | None, step: str, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    deadline_s = DEADLINE_S + DEADLINE_PER_RECORD_S * trial.records
    return figures_in(folder, f"{steps.__name__}:{step}", arguments, deadline_s, code=code, killed=step == "tail")
