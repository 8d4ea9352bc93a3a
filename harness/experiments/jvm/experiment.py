"""The experiment that times a store against RocksDB in the JVM, used in the shapes of Kafka Streams' own stores."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

from harness import replay
from harness.budget import DEFAULT, NIGHT, SMOKE
from harness.experiment import RATIO, Claim, Experiment, Request, TrialPlacement, TrialWorker, check_counts
from harness.experiments.jvm import ours
from harness.experiments.jvm.ours import DISTRIBUTIONS
from harness.folders import temporary_folder
from harness.processes.apart import NoMemoryLimitError, memory_limit
from harness.processes.child import FIGURES_FILE, MeasurementFailedError, figures_after, figures_in, run_program
from harness.processes.load import LOAD_COLUMNS, LoadWatch, load_columns
from harness.report import text
from harness.report.database import busy, ratio_columns
from harness.report.listing import Column, Listing, Report
from harness.report.ratios import is_clear
from harness.report.rows import Row
from stores.config import INDEXES_OPTION, SHARED_MEMORY_OPTION
from stores.engines.rocksdb import RocksDBEngine
from stores.errors import ConfigError
from stores.java import find_java
from stores.memory_limit import AvailableMemory, default_limit, parts_of

SHAPES: Mapping[str, str] = {
    "map-and-batch": "a sorted map and a write batch",
    "indexed-batch": "WriteBatchWithIndex",
    "plain-puts": "plain puts without a transaction",
}
"""The shapes of the program, with their words in a claim."""
PROGRAM = Path(__file__).with_name("Beside.java")
HEAP = "-Xmx1g"
OURS = "rocksdb-indexed-batch"
MANY = f"{OURS} by many"
"""The store, which is given many records in a call."""
DEADLINE_S, DEADLINE_PER_KEY_S = 300.0, 2e-5
COST_PER_KEY_S = 2e-5
"""The seconds in which five processes put a key and read it at the end."""
JVM = "jvm-"
"""The prefix of the subjects in the JVM."""
_LEVEL_SIZE = 100
"""At so many records per commit the goal is to be level, from larger ones on to be faster."""
_LEVEL, _FASTER = 1.0, 1.3
"""The goals record by record. By many it is to be faster everywhere."""

_METHOD = """\
A store (`rocksdb-indexed-batch`) and a program in Java do the same work, in turns, each in a fresh process. The program
uses the rocksdbjni of pyspark in three shapes. *map-and-batch* stages writes in a sorted map beside a write batch, as
in Kafka Streams' work on KIP-892. *indexed-batch* is RocksDB's WriteBatchWithIndex. *plain-puts* writes at once: it has
no transaction and no rollback. Every commit also writes a changelog offset to a second column family.

Both have the same version of RocksDB with the same options: write buffers, block cache, filters, atomic flush, and no
WAL. Both generate keys of 16 and values of 100 bytes from the same seed, before the clock runs and before a garbage
collection. Two rounds of 200,000 records are not timed, so that the JVM has compiled what it calls often; two rounds
are. The heap is limited to 1 GiB, and everything else of the JVM is as it comes. After the last round both sides read
all data, and compute a checksum; a difference fails the run.

*By many* the store is given up to 1,000 records in a call of `put_many`, as by a task's function of many. To change
values, it reads and writes each key of these once (`get_many`, `put_many`). A row of the JVM has the ratios to both
forms.

With *fresh* keys every record is put. Otherwise each record reads a key and writes its new
value. *zipf* is Zipf's law with exponent 1. A ratio is the JVM's time over the store's: above 1 the store is faster.
CPU time is that of all threads of a process, with compaction, garbage collection and compilation. On a busy machine
it says more than the time by the clock.
"""


QUERY = f"""with subject as (
        select distribution, keys, memory_max_bytes, records_per_commit, subject, durability, records,
            count(*) as repeats,
            median(seconds) as median_s, min(seconds) as best_s, median(cpu_s) as cpu_s,
            records / median(seconds) as records_per_s, median(load_average) as load_average
        from jvm group by distribution, keys, memory_max_bytes, records_per_commit, subject, durability, records
    )
    select subject.*, subject.median_s / store.median_s as median_ratio, subject.best_s / store.best_s as best_ratio,
        subject.cpu_s / store.cpu_s as cpu_ratio, subject.median_s / many.median_s as many_median_ratio,
        subject.cpu_s / many.cpu_s as many_cpu_ratio
    from subject
        left join subject as store on subject.subject like '{JVM}%' and store.subject = '{OURS}'
            and (store.distribution, store.keys, store.memory_max_bytes, store.records_per_commit)
                is (subject.distribution, subject.keys, subject.memory_max_bytes, subject.records_per_commit)
        left join subject as many on subject.subject like '{JVM}%' and many.subject = '{MANY}'
            and (many.distribution, many.keys, many.memory_max_bytes, many.records_per_commit)
                is (subject.distribution, subject.keys, subject.memory_max_bytes, subject.records_per_commit)"""
"""Medians and bests over repeats of each subject and work, with the times of the JVM over those of the store."""


_SHAPE = " ".join(f"when '{JVM}{name}' then '{words}'" for name, words in SHAPES.items())
_BUSY = f"{busy('theirs')} or {busy('store')}"
RATIOS = f"""select iif(
            theirs.distribution = 'fresh',
            'put and commit of ' || exact(theirs.records_per_commit) || ' records',
            'read-modify-write of ' || exact(theirs.keys) || ' ' || theirs.distribution || ' keys, a commit each '
                || exact(theirs.records_per_commit)
        ) || iif(theirs.memory_max_bytes, ' with ' || size(theirs.memory_max_bytes) || ' of memory', '')
            || ', against ' || case theirs.subject {_SHAPE} end || ' in the JVM' as claim,
        store.subject as subject, theirs.subject as yardstick, theirs.durability as durability,
        theirs.records_per_commit as records_per_commit,
        iif(theirs.records_per_commit <= {_LEVEL_SIZE} and store.subject = '{OURS}', {_LEVEL}, {_FASTER}) as at_least,
        {ratio_columns("theirs.seconds / store.seconds", _BUSY, "theirs.cpu_s / store.cpu_s")}
    from jvm as theirs join jvm as store using (repeat)
    where theirs.subject like '{JVM}%' and store.subject not like '{JVM}%'
    group by theirs.distribution, theirs.keys, theirs.memory_max_bytes, theirs.records_per_commit, theirs.subject,
        theirs.durability, store.subject"""
"""The time of each shape over that of the store in the same repeat, with the goals."""


_TIMES = Listing(
    "Level CHANGELOG: times of the JVM over those of the store",
    "jvm_figure order by distribution, keys, memory_max_bytes, records_per_commit, subject",
    (
        Column("distribution"),
        Column("keys", "iif(distribution = 'fresh', null, keys)", text.exact),
        Column("memory limit", "size(nullif(memory_max_bytes, 0))", right=True),
        Column("records per commit", "records_per_commit", text.exact, right=False),
        Column("subject"),
        Column("records/s", "records_per_s", text.count),
        Column("median", "median_s", text.duration),
        Column("best", "best_s", text.duration),
        Column("CPU time", "cpu_s", text.duration),
        Column("ratio of medians", "median_ratio", text.ratio),
        Column("of bests", "best_ratio", text.ratio),
        Column("of CPU times", "cpu_ratio", text.ratio),
        Column("by many: of medians", "many_median_ratio", text.ratio),
        Column("of CPU times", "many_cpu_ratio", text.ratio),
        Column("repeats", "repeats", text.exact),
        Column("load", "load_average", text.count),
    ),
)


REPORT = Report(
    ("jvm",),
    "jvm",
    "A store beside RocksDB in the JVM",
    (
        "A store does the same work as a Java program that uses RocksDB as Kafka Streams does.",
        "A ratio above 1 says that the store is faster.",
        f"The goal is {_LEVEL:g} at {_LEVEL_SIZE} records per commit, and {_FASTER:g} above. By many it is {_FASTER:g} "
        "everywhere.",
    ),
    (_TIMES,),
    _METHOD,
)


WORK = (
    ("fresh", 100),
    ("fresh", 1_000),
    ("fresh", 10_000),
    ("fresh", 200_000),
    ("uniform", 10_000),
    ("zipf", 10_000),
)
"""Distributions of keys, and records per commit. With new keys records are put, else they are read and changed."""

REPEATS: Mapping[str, int] = MappingProxyType({SMOKE: 0, DEFAULT: 5, NIGHT: 9})
"""The most repeats of all work, some twenty seconds for each kind."""


@dataclass(frozen=True)
class JvmTrial:
    """The same work by a store in both forms and in each shape of the JVM, in shuffled order, each in its process."""

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
    memory_max_bytes: int = 0
    """The limit on the memory of each process, page cache included; 0 for no limit."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a number that counts nothing, and for an unknown distribution."""
        check_counts(
            records_per_commit=self.records_per_commit, records=self.records, rounds=self.rounds, keys=self.keys
        )
        if self.warm_up_rounds < 0:
            raise ConfigError(f"warm_up_rounds of a trial is 0 or more, not {self.warm_up_rounds}")
        if self.distribution not in DISTRIBUTIONS:
            raise ConfigError(f"no distribution {self.distribution!r}: there are {', '.join(DISTRIBUTIONS)}")
        if self.memory_max_bytes < 0:
            raise ConfigError(f"memory_max_bytes of a trial is 0 or more, not {self.memory_max_bytes}")

    @property
    def work(self) -> dict[str, Any]:
        """The work of each side, as arguments by name."""
        return {name: value for name, value in asdict(self).items() if name != "memory_max_bytes"}

    @property
    def options(self) -> Mapping[str, object]:
        """The options of RocksDB that a limit on memory sets, as a worker with that memory sets them."""
        if not self.memory_max_bytes:
            return {}
        limit = default_limit(AvailableMemory(self.memory_max_bytes, "the cgroup of the trial", True))
        return {SHARED_MEMORY_OPTION: parts_of(limit).engine_bytes, INDEXES_OPTION: True}

    @property
    def deadline_s(self) -> float:
        """The seconds after which a process is killed."""
        return DEADLINE_S + DEADLINE_PER_KEY_S * self.keys


class Jvm(Experiment[JvmTrial]):
    """Records per second of a store and of RocksDB in the JVM. Their end states must be equal."""

    name = "jvm"
    title = "stores beside the JVM"
    stage = "jvm"
    trial = JvmTrial
    placement = TrialPlacement.LOCAL
    share = 4
    night_share = 100
    figures_by = {"jvm": QUERY}
    derived_by = RATIOS
    report = REPORT
    failed_by = """select repeat,
            'a store and RocksDB in the JVM did the same work, and their data differ' as sentence
        from jvm group by repeat
        having count(distinct checksum || ' ' || entries || ' ' || missing) > 1 or max(missing) order by repeat"""
    """Trials whose end states differ, and those in which a key had no value."""
    columns = {
        "jvm": {
            "subject": str,
            "durability": str,
            "distribution": str,
            "keys": int,
            "memory_max_bytes": int,
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
        return [
            JvmTrial(*work, request.seed * 1_000 + repeat)
            for repeat in range(REPEATS[request.profile])
            for work in WORK
        ]

    def missing(self) -> str:
        """Return the reason why the JVM's program cannot run here, or ""."""
        return missing_jdk()

    def run(self, trial: JvmTrial, worker: TrialWorker) -> Iterable[Row]:
        """Return rows for the store and one for each shape. Raises: ConfigError; MeasurementFailedError."""
        subjects = [OURS, MANY, *SHAPES]
        Random(replay.text_of(trial)).shuffle(subjects)
        return [_row(trial, subject) for subject in subjects]

    def still_needed(self, trial: JvmTrial, rows: Sequence[Row]) -> JvmTrial | None:
        """Return the trial unless earlier ones of the same work have made all its ratios clear (``is_clear``)."""
        work = ("distribution", "keys", "memory_max_bytes", "records_per_commit")
        earlier = [row for row in rows if all(row[name] == getattr(trial, name) for name in work)]
        found = [row for row in self.finish([], earlier, Claim(self.name)) if row["kind"] == RATIO]
        return None if found and all(map(is_clear, found)) else trial

    def cost_s(self, trial: JvmTrial) -> float:
        """Return some seconds of five processes on an idle machine."""
        return 20.0 + COST_PER_KEY_S * trial.keys

    def line(self, trial: JvmTrial, rows: Sequence[Row]) -> str:
        """Return the seconds of each."""
        seconds = ", ".join(f"{row['subject']} {row['seconds']:.2f} s" for row in rows)
        return f"{trial.distribution} keys, {trial.records_per_commit:,} per commit: {seconds}"


def _row(trial: JvmTrial, subject: str) -> Row:
    # The load is that of the whole process, with its start.
    watch = LoadWatch()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder("jvm"))
        group = None
        if trial.memory_max_bytes:
            try:
                group = stack.enter_context(memory_limit(trial.memory_max_bytes))
            except NoMemoryLimitError as error:
                raise MeasurementFailedError(f"the limit on memory can't be set: {error}") from error
        if subject in (OURS, MANY):
            given = {**trial.work, "backend": OURS, "many": subject == MANY, "options": trial.options}
            figures = figures_in(folder, ours.measured, given, trial.deadline_s, group=group)
        else:
            figures = jvm_figures(folder, {**trial.work, **trial.options, "shape": subject}, trial.deadline_s, group)
    load = watch.figures()
    return {
        "kind": "jvm",
        "subject": f"{JVM}{subject}" if subject in SHAPES else subject,
        "durability": "CHANGELOG",
        "distribution": trial.distribution,
        "keys": trial.keys,
        "memory_max_bytes": trial.memory_max_bytes,
        "records_per_commit": trial.records_per_commit,
        "seed": trial.seed,
        "records": trial.records * trial.rounds,
        "repeat": replay.command(Jvm.name, trial),
        **figures,
        **load_columns([load]),
        "cpu_per_wall": figures["cpu_s"] / figures["seconds"],
    }


@functools.cache
def missing_jdk() -> str:
    """Return what this machine lacks to run the program, or ""."""
    try:
        java = find_java()
    except ConfigError as error:
        return str(error)
    listed = subprocess.run([java.program, "--list-modules"], capture_output=True, text=True, timeout=60, check=False)
    if "jdk.compiler@" not in listed.stdout:
        return "needs a JDK, and this Java has no compiler"
    return "" if _rocksdbjni() else "needs rocksdbjni among the jars of pyspark"


def jvm_figures(
    folder: Path, arguments: Mapping[str, Any], deadline_s: float = DEADLINE_S, group: Path | None = None
) -> dict[str, Any]:
    """Run a shape of the JVM with the database in ``folder``, and return its figures, which are those of ``ours``.

    ``group`` is a cgroup that it enters. Raises: MeasurementFailedError.
    """
    settings = folder / "given.properties"
    options = {**RocksDBEngine.options, **arguments, "store": folder / "store"}
    settings.write_text("".join(f"{name}={value}\n" for name, value in options.items()))
    entering = [] if group is None else ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")]
    command = [
        *entering,
        str(find_java().program), HEAP, f"-Djava.io.tmpdir={folder}", "-cp", str(_rocksdbjni()), str(PROGRAM),
        str(settings), str(folder / FIGURES_FILE),
    ]  # fmt: skip
    ending = run_program(command, folder, deadline_s, dict(os.environ))
    return figures_after(ending, f"{PROGRAM.name} {arguments['shape']}", folder / FIGURES_FILE, deadline_s)


def _rocksdbjni() -> Path | None:
    spec = find_spec("pyspark")
    folders = [] if spec is None else spec.submodule_search_locations or []
    return next((jar for folder in folders for jar in Path(folder, "jars").glob("rocksdbjni-*.jar")), None)
