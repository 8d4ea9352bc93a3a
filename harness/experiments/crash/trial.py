"""One crash trial as a plain value: a backend, the work of its task, a fault, and a seed."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from harness import faults
from harness.experiments.crash.operations import Mix
from harness.faults import Fault
from harness.faults.registry import check_known
from harness.mutants.old_names import present_trial
from harness.typed_maps import PLAIN, check_kind
from stores.errors import ConfigError

DURABILITIES = ("CHANGELOG", "PROCESS", "DISK")
GUARANTEES = ("exactly_once", "at_least_once")


@dataclass(frozen=True, slots=True)
class Trial:
    """The parameters of one trial. Equal trials have equal ids, and lead to equal verdicts.

    The task commits after every ``commit_every`` records, and early because of ``uncommitted_max_bytes`` (-1 for no
    limit). ``options`` are the backend's own. ``records`` is the kind of its stores: one of
    ``harness.typed_maps.KINDS``, or empty for bytes. ``mutant`` names a mutant of
    ``harness.mutants.registry`` that is built in, which a checker must detect.
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
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def text(self) -> str:
        """The trial as one line of JSON, settings at their defaults left out."""
        return json.dumps(to_json(self), sort_keys=True, separators=(",", ":"))

    @property
    def exactly_once(self) -> bool:
        """True if the task promises to process each input exactly once."""
        return self.guarantee == "exactly_once"


def to_json(trial: Trial) -> dict[str, Any]:
    """Return a trial as plain JSON values. Settings at their defaults are left out."""
    row: dict[str, Any] = {"backend": trial.backend, "fault": faults.to_json(trial.fault)}
    for name in ("durability", "guarantee", "seed", "commit_every", "mutant", "uncommitted_max_bytes", "records"):
        value = getattr(trial, name)
        if value != _defaults(Trial)[name]:
            row[name] = value
    mix = {
        name: getattr(trial.mix, name)
        for name, default in _defaults(Mix).items()
        if getattr(trial.mix, name) != default
    }
    if mix:
        row["mix"] = mix
    if trial.options:
        row["options"] = dict(trial.options)
    return row


def from_json(row: object) -> Trial:
    """Return the trial that ``to_json`` wrote. The old key ``sabotage`` is read as ``mutant``.

    Raises: ConfigError for a setting that is unknown, missing or out of bounds.
    """
    if not isinstance(row, Mapping):
        raise ConfigError(f"a trial is a JSON object, not {row!r}")
    row = present_trial(row)
    _check_names("a trial", row, Trial)
    for name in ("backend", "fault"):
        if name not in row:
            raise ConfigError(f"a trial needs {name!r}")
    for name in ("mix", "options"):
        if not isinstance(row.get(name, {}), Mapping):
            raise ConfigError(f"a trial's {name!r} is an object, not {row[name]!r}")
    settings = dict(row)
    settings["fault"] = faults.from_json(row["fault"])
    settings["options"] = tuple(sorted(row.get("options", {}).items()))
    _check_names("a trial's mix", row.get("mix", {}), Mix)
    settings["mix"] = Mix(**row.get("mix", {}))
    return Trial(**settings)


def from_text(text: str) -> Trial:
    """Return the trial of one line of JSON. Raises: ConfigError."""
    try:
        return from_json(json.loads(text))
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"a trial is given as JSON: {error}") from error


def repeat_command(trial: Trial) -> str:
    """Return the command that runs ``trial`` again."""
    return f"python -m harness trial {shlex.quote(trial.text)}"


def _check_names(what: str, row: Mapping[str, Any], kind: type[Trial] | type[Mix]) -> None:
    check_known(f"setting of {what} called", [setting.name for setting in fields(kind)], *row)


def _defaults(kind: type[Trial] | type[Mix]) -> dict[str, Any]:
    return {setting.name: setting.default for setting in fields(kind) if setting.default is not MISSING}
