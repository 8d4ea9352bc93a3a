"""One writer and several readers at each level on one store, for a given time; every answer is checked at once.

A trial is a series of rounds, each on a new store, so that the history with which answers are compared stays small. It
has a process of its own; in a soak, trials of many stores follow each other in this process.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

from harness import replay
from harness.checkers.isolation import Versions
from harness.experiments.judged import ANOMALY, VALID
from harness.experiments.readers.threads import Reader, ReadersWriter, Sight, TypedWriter
from harness.folders import quick_folder, temporary_folder
from harness.mutants import READER_TRIALS, fitting, patch
from harness.processes.child import figures_in
from harness.progress import Progress
from harness.report.rows import Row
from harness.typed_maps import IN_TURN, KINDS, PLAIN, as_map
from harness.workloads.suggestion import check_known
from stores import failpoints
from stores.interface import Durability, IsolationLevel
from stores.registry import Backend, backend_named, backends, checked_durability, open_store

_IN_PARTS: Mapping[str, object] = {"copy_part_bytes": 64}
"""An option that makes backends copy even the small commits of a trial in several parts."""
TIGHT = {"staging_buffer_bytes": 800, "map_size_bytes": 64 << 10, "ingested_file_bytes": 64}
"""Options of every second round: with them a backend exceeds what it keeps in one place."""
OPERATIONS_PER_ROUND, OPERATIONS_AT_LEAST = 600, 60
"""The number of operations in a round, and the number that is made even if the time is over."""
ROUNDS_OF_A_MUTANT = 5
"""The number of rounds that are read in full until a mutant is detected, however slow the machine is."""
_SWITCHES_S = (2e-5, 5e-4, 5e-3)
"""The thread switch intervals of the interpreter, by round: long intervals show other mistakes than short ones."""
JOIN_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class ReadersTrial:
    """A store that is read while it is written to, for about ``seconds``. ``seed`` determines the operations."""

    backend: str
    durability: str = "CHANGELOG"
    seconds: float = 1.0
    seed: int = 1
    readers: int = 4
    """The number of readers at each level."""
    mutant: str = ""
    kinds: Sequence[str] = IN_TURN
    """The kinds of stores, which rotate over the rounds. A mutant is built into stores of bytes only."""

    @property
    def id(self) -> str:
        """The name of the trial."""
        return "-".join(filter(None, (self.backend, self.durability.lower(), str(self.seed), self.mutant)))


@dataclass(slots=True)
class ReadersOutcome:
    """The result of a trial: the number of operations and answers, and each anomaly as a sentence."""

    rounds: int = 0
    operations: int = 0
    commits: int = 0
    answers: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, IsolationLevel), 0))
    """The number of checked answers, by level."""
    anomalies: list[str] = field(default_factory=list)


def run(trial: ReadersTrial, folder: Path, say: Callable[[str], None] = lambda _: None) -> ReadersOutcome:
    """Run rounds until the time is over or an answer is wrong. ``folder`` is emptied.

    With a mutant, the first ``ROUNDS_OF_A_MUTANT`` rounds take the time that they need.
    """
    outcome = ReadersOutcome()
    until = time.monotonic() + trial.seconds
    rounds = 1
    if trial.mutant:
        rounds = ROUNDS_OF_A_MUTANT
        check_known("mutant of readers called", READER_TRIALS, trial.mutant)
    with patch(trial.mutant, backend_named(trial.backend).name):
        while not outcome.anomalies and (outcome.rounds < rounds or time.monotonic() < until):
            in_full = trial.mutant and outcome.rounds < rounds
            _round(trial, folder / "store", outcome, math.inf if in_full else until)
            shutil.rmtree(folder / "store", ignore_errors=True)
            outcome.rounds += 1
            say(f"{trial.id}: {outcome.operations:,} operations, {sum(outcome.answers.values()):,} answers")
    return outcome


def _round(trial: ReadersTrial, path: Path, outcome: ReadersOutcome, until: float) -> None:
    backend = backend_named(trial.backend)
    options = _IN_PARTS if outcome.rounds % 2 else {**TIGHT, **_IN_PARTS}
    tight = {name: value for name, value in options.items() if name in backend.options}
    random = Random(f"{trial.seed} {outcome.rounds}")
    over = Event()
    turn = outcome.rounds // 2 + trial.seed - 1
    kind = PLAIN if trial.mutant else trial.kinds[turn % len(trial.kinds)]
    with (
        _switching(_SWITCHES_S[outcome.rounds % len(_SWITCHES_S)]),
        _let_in(backend, Random(random.random())),
        open_store(backend.name, path, durability=Durability(trial.durability), options=tight) as store,
    ):
        # Creating the typed store prepares the store before it is read.
        typed = kind and KINDS[kind].kind.over(store)
        uncommitted = Versions()
        committed = Versions() if store.transactional else uncommitted
        writer_type = TypedWriter if kind else ReadersWriter
        target = as_map(kind, typed or store)
        writer = writer_type(store, target, committed, uncommitted, Random(random.random()))
        sights = [
            Sight(store, level, committed if level is IsolationLevel.READ_COMMITTED else uncommitted, kind)
            for level in IsolationLevel
            for _ in range(trial.readers)
        ]
        readers = [Reader(sight, Random(random.random()), over) for sight in sights]
        with ThreadPoolExecutor(len(readers)) as pool:
            futures = [pool.submit(reader.read) for reader in readers]
            try:
                for operation in range(OPERATIONS_PER_ROUND):
                    if over.is_set() or (time.monotonic() >= until and operation >= OPERATIONS_AT_LEAST):
                        break
                    writer.step()
            except Exception as error:
                outcome.anomalies.append(f"the writer got {type(error).__name__}: {error}")
            finally:
                over.set()
            for reader, future in zip(readers, futures, strict=True):
                future.result(JOIN_TIMEOUT_S)
                outcome.answers[str(reader.sight.level)] += reader.answers
                if reader.anomaly:
                    outcome.anomalies.append(
                        f"round {outcome.rounds}, a {reader.sight.level} reader of a {kind or 'plain'} store: "
                        f"{reader.anomaly}"
                    )
        outcome.operations += writer.operations
        outcome.commits += writer.commits


@contextmanager
def _switching(seconds: float) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def _let_in(backend: Backend, random: Random) -> Iterator[None]:
    """Let readers run in the middle of commits: pause at random at the backend's failpoints."""

    def step_aside() -> None:
        if random.random() < 0.5:
            time.sleep(1e-4)

    try:
        for failpoint in backend.failpoints:
            failpoints.arm(failpoint, step_aside)
        yield
    finally:
        failpoints.disarm()


COUNTS = ("rounds", "operations", "commits", "committed_answers", "uncommitted_answers")
"""The columns of a row that count."""
DEADLINE_S = 120.0
"""The time that a process may take in addition to the seconds of its trial."""


def examine(trial: ReadersTrial, work: Path, code: str | None = None) -> Row:
    """Run a trial in the folder ``work``, and return the results of its row.

    Raises: MeasurementFailedError if its process did not end in order.
    """
    arguments = {"trial": replay.text_of(trial)}
    outcome = figures_in(work, outcome_of, arguments, trial.seconds + DEADLINE_S, code=code)
    anomalies, answers = outcome.pop("anomalies"), outcome.pop("answers")
    return {
        **outcome,
        "result": ANOMALY if anomalies else VALID,
        "detail": "".join(anomalies[:1]),
        "committed_answers": answers["READ_COMMITTED"],
        "uncommitted_answers": answers["READ_UNCOMMITTED"],
    }


def outcome_of(trial: str, folder: Path) -> dict[str, Any]:
    """Run a trial, and return its outcome as plain values."""
    return asdict(run(replay.from_text(ReadersTrial, trial), folder / "stores"))


def soak(names: Sequence[str] | None, durability: str | None, seconds: float, seed: int, mutant: str = "") -> int:
    """Divide the time between the backends, all unless named, at all levels unless one is. Return 1 for an anomaly.

    A mutant is built into the backends that it fits; the others are reported and left out. Raises: ConfigError for an
    unknown name, and for a mutant that fits none of the backends.
    """
    candidates = [backend_named(name) for name in names] if names else list(backends().values())
    fit = fitting(mutant, candidates)
    if unfit := [backend.name for backend in candidates if backend not in fit]:
        print(f"The mutant {mutant!r} does not fit, and is not tried in: {', '.join(unfit)}.", flush=True)
    stores = [
        (backend.name, str(level))
        for backend in fit
        for level in ([checked_durability(backend, durability)] if durability else sorted(backend.durabilities))
    ]
    anomalies = []
    answers = 0
    print(f"Seed {seed}; {len(stores)} stores, {seconds / len(stores):.1f} s each.", flush=True)
    progress = Progress()
    for name, level in stores:
        trial = ReadersTrial(name, level, seconds / len(stores), seed, mutant=mutant)
        # In memory where possible: the anomalies are races, which do not depend on a disk.
        within = None if level == Durability.DISK else quick_folder()
        with temporary_folder("readers", within) as folder:
            outcome = run(trial, Path(folder), progress.say)
        answers += sum(outcome.answers.values())
        print(
            f"{name} at {level}: {outcome.operations:,} operations, {outcome.commits:,} commits, "
            f"{sum(outcome.answers.values()):,} answers, {len(outcome.anomalies)} wrong",
            flush=True,
        )
        anomalies += [(trial, anomaly) for anomaly in outcome.anomalies]
    for trial, anomaly in anomalies:
        print(f"{trial.id}: {anomaly}\n  repeat it with: {replay.command('readers', trial)}", file=sys.stderr)
    print(f"{answers:,} answers checked in {len(stores)} stores, {len(anomalies)} wrong.")
    return 1 if anomalies else 0
