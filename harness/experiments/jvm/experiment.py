"""The experiment that times a store against RocksDB in the JVM, used in the shapes of Kafka Streams' own stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from harness import replay
from harness.budget import SMOKE
from harness.experiment import (
    Experiment,
    Failure,
    Figures,
    Request,
    Row,
    Rows,
    TrialPlacement,
    TrialWorker,
    check_counts,
)
from harness.experiments.jvm import ours, theirs
from harness.experiments.jvm.load import DISTRIBUTIONS
from harness.experiments.jvm.report import QUERY, RATIOS, REPORT
from harness.processes.child import figures_apart
from harness.processes.load import LOAD_COLUMNS, LoadWatch, load_columns
from stores.errors import ConfigError

OURS = "rocksdb-indexed-batch"
DEADLINE_S = 300.0
WORK = (
    ("fresh", 100),
    ("fresh", 1_000),
    ("fresh", 10_000),
    ("fresh", 200_000),
    ("uniform", 10_000),
    ("zipf", 10_000),
)
"""Distributions of keys, and records per commit. With new keys records are put, else they are read and changed."""

REPEATS = 5
"""Repeats of all work, some ten seconds for each kind, in every profile but smoke."""


@dataclass(frozen=True)
class JvmTrial:
    """The same work once by a store and once in each shape of the JVM, in shuffled order, each in its own process."""

    distribution: str
    records_per_commit: int
    seed: int
    records: int = 200_000
    """The records of a round."""
    warm_up_rounds: int = 2
    """Rounds before the clock runs, in which the JVM compiles what it calls often."""
    rounds: int = 2
    keys: int = 100_000
    """The keys that there are before the first round, unless each record has a new one."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a number that counts nothing, and for an unknown distribution."""
        check_counts(
            records_per_commit=self.records_per_commit, records=self.records, rounds=self.rounds, keys=self.keys
        )
        if self.warm_up_rounds < 0:
            raise ConfigError(f"warm_up_rounds of a trial is 0 or more, not {self.warm_up_rounds}")
        if self.distribution not in DISTRIBUTIONS:
            raise ConfigError(f"no distribution {self.distribution!r}: there are {', '.join(DISTRIBUTIONS)}")


class Jvm(Experiment[JvmTrial]):
    """Records per second of a store and of RocksDB in the JVM. Their end states must be equal."""

    name = "jvm"
    title = "stores beside the JVM"
    stage = "jvm"
    trial = JvmTrial
    placement = TrialPlacement.LOCAL
    share = 4
    night_share = 20
    figures_by = {"jvm": QUERY}
    derived_by = RATIOS
    report = REPORT
    columns = {
        "jvm": {
            "subject": str,
            "durability": str,
            "distribution": str,
            "records_per_commit": int,
            "seed": int,
            "records": int,
            "seconds": float,
            "cpu_s": float,
            "missing": int,
            "entries": int,
            "checksum": str,
            "repeat": str,
            **dict.fromkeys(LOAD_COLUMNS, float),
        }
    }

    def plan(self, request: Request) -> list[JvmTrial]:
        """Return the repeats of all work in turns; none if the store is left out."""
        if not request.among([OURS]):
            return []
        repeats = 0 if request.profile == SMOKE else REPEATS
        return [JvmTrial(*work, request.seed * 1_000 + repeat) for repeat in range(repeats) for work in WORK]

    def missing(self) -> str:
        """Return the reason why the JVM's program cannot run here, or ""."""
        return theirs.missing()

    def run(self, trial: JvmTrial, worker: TrialWorker) -> Iterable[Row]:
        """Return a row for the store and one for each shape. Raises: ConfigError; MeasurementFailedError."""
        arguments = asdict(trial)
        subjects = [OURS, *theirs.SHAPES]
        Random(replay.text_of(trial)).shuffle(subjects)
        return [_row(trial, subject, arguments) for subject in subjects]

    def cost_s(self, trial: JvmTrial) -> float:
        """Return some seconds of four processes on an idle machine."""
        return 17.0

    def line(self, trial: JvmTrial, rows: Sequence[Row]) -> str:
        """Return the seconds of each."""
        seconds = ", ".join(f"{row['subject']} {row['seconds']:.2f} s" for row in rows)
        return f"{trial.distribution} keys, {trial.records_per_commit:,} per commit: {seconds}"

    def failures(self, figures: Figures, rows: Rows) -> list[Failure]:
        """Return trials whose end states differ, and those in which a key had no value."""
        ends: dict[str, set[tuple[str, int, int]]] = {}
        for row in rows.get("jvm", ()):
            ends.setdefault(row["repeat"], set()).add((row["checksum"], row["entries"], row["missing"]))
        return [
            Failure("a store and RocksDB in the JVM did the same work, and their data differ", command)
            for command, found in sorted(ends.items())
            if len(found) > 1 or any(missing for _, _, missing in found)
        ]


def _row(trial: JvmTrial, subject: str, arguments: Mapping[str, Any]) -> Row:
    # The load is that of the whole process, with its start.
    watch = LoadWatch()
    if subject == OURS:
        found = figures_apart(ours.measured, "jvm", {**arguments, "backend": OURS}, DEADLINE_S)
    else:
        found = theirs.measured({**arguments, "shape": subject}, DEADLINE_S)
    load = watch.figures()
    return {
        "kind": "jvm",
        "subject": subject if subject == OURS else f"jvm-{subject}",
        "durability": "CHANGELOG",
        "distribution": trial.distribution,
        "records_per_commit": trial.records_per_commit,
        "seed": trial.seed,
        "records": trial.records * trial.rounds,
        "repeat": replay.command(Jvm.name, trial),
        **found,
        **load_columns([load]),
        "cpu_per_wall": found["cpu_s"] / found["seconds"],
    }
