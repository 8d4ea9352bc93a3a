"""One crash trial as a plain value: a backend, the work of its task, a fault, and a seed.

Beside it: the names of its files in its work folder, and of its topics; and the check that what it names exists.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from harness import replay
from harness.experiments.crash.operations import Mix
from harness.faults import Fault
from harness.mutants import CRASH_TRIALS, FAILPOINTS
from harness.typed_maps import PLAIN, check_kind
from harness.workloads.suggestion import check_known, unknown
from stores.changelog import producer
from stores.config import StoreConfig
from stores.errors import ConfigError
from stores.interface import Durability
from stores.registry import backend_named
from stores.tasks import task_transaction

DURABILITIES = ("CHANGELOG", "PROCESS", "DISK")
GUARANTEES = ("exactly_once", "at_least_once")
LOG_FAILPOINTS = (producer.BEFORE_COMMIT, producer.AFTER_COMMIT)

TRIAL_FILE = "trial.json"
CHANGELOG_FILE = "changelog.sqlite"
STATE_FOLDER = "state"
OTHER_STATE_FOLDER = "state-of-another"
"""The stores of the instance that takes over the task."""
FOUND_FOLDER = "found"
"""A copy of the stores as the last process left them, which the next process reads."""

APPLICATION = "trial"
INPUT_TOPIC = "trial-input"
OUTPUT_TOPIC = "trial-output"


@dataclass(frozen=True, slots=True)
class CrashTrial:
    """The parameters of one trial. Equal trials have equal ids, and lead to equal verdicts.

    The task commits after every ``commit_every`` records, and early because of ``uncommitted_max_bytes`` (-1 for no
    limit). ``options`` are the backend's own. ``records`` is the kind of its stores: one of
    ``harness.typed_maps.KINDS``, or empty for bytes. ``mutant`` names a mutant of
    ``harness.mutants`` that is built in, which a checker must detect.
    """

    backend: str
    fault: Fault
    durability: str = "CHANGELOG"
    guarantee: str = "exactly_once"
    seed: int = 0
    mix: Mix = field(default_factory=Mix)
    commit_every: int = 24
    options: tuple[tuple[str, str | int | bool], ...] = ()
    mutant: str | None = None
    uncommitted_max_bytes: int = -1
    records: str = PLAIN

    def __post_init__(self) -> None:
        """Raise ConfigError for a value out of bounds or of a wrong type; a trial may come from a user's file."""
        for name, type_ in (("backend", str), ("seed", int), ("commit_every", int), ("uncommitted_max_bytes", int)):
            if type(getattr(self, name)) is not type_:
                raise ConfigError(f"a trial's {name!r} is of type {type_.__name__}, not {getattr(self, name)!r}")
        if not isinstance(self.records, str):
            raise ConfigError(f"a trial's 'records' is a kind of store, not {self.records!r}")
        check_kind(self.records)
        if not isinstance(self.mutant, str | None):
            raise ConfigError(f"a trial's 'mutant' is a name, not {self.mutant!r}")
        check_known("durability", DURABILITIES, self.durability)
        check_known("guarantee", GUARANTEES, self.guarantee)
        if self.commit_every < 1:
            raise ConfigError(f"commit_every counts from 1, not {self.commit_every}")
        if self.uncommitted_max_bytes < -1:
            raise ConfigError(f"uncommitted_max_bytes is -1 (no limit) or more, not {self.uncommitted_max_bytes}")

    @property
    def id(self) -> str:
        """A short name derived from all parameters of the trial, the same in every process and on every machine."""
        return replay.id_of(self)

    @property
    def text(self) -> str:
        """The trial as one line of JSON, settings at their defaults left out."""
        return replay.text_of(self)

    @property
    def exactly_once(self) -> bool:
        """True if the task promises to process each input exactly once."""
        return self.guarantee == "exactly_once"


def changelog_topic(store: str) -> str:
    """Return the changelog topic of ``store``."""
    return f"{APPLICATION}-{store}-changelog"


def history_file(process: int) -> str:
    """Return the name of the file in which the ``process``-th process notes its events."""
    return f"history-{process}.jsonl"


def admitted(trial: CrashTrial) -> CrashTrial:
    """Return ``trial`` with its backend's full name, if all that it names exists and fits together.

    Raises: ConfigError for an unknown backend, option, failpoint or mutant, with the nearest name; and for a durability
    level that the backend does not carry.
    """
    backend = backend_named(trial.backend)
    StoreConfig(backend=backend.name, durability=Durability(trial.durability), options=dict(trial.options))
    if trial.mutant is not None and trial.mutant not in CRASH_TRIALS:
        raise unknown("mutant of crash trials called", trial.mutant, CRASH_TRIALS)
    built_in = FAILPOINTS if trial.mutant else ()
    failpoints = {*backend.failpoints, *task_transaction.FAILPOINTS, *LOG_FAILPOINTS, *built_in}
    for step in trial.fault.steps:
        if step.place and step.place not in failpoints:
            raise unknown(f"failpoint of {backend.name} called", step.place, failpoints)
    return replace(trial, backend=backend.name)
