"""The faults of a process that works on a store, as plain values, with their names and as JSON.

A fault only describes what happens: ``harness.experiments.crash`` carries it out in a process of its own. Counts begin
at 1. Records are counted as the process sees them: the first that it processes is 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from types import MappingProxyType
from typing import Any

from harness.workloads.suggestion import check_known
from stores.errors import ConfigError

AFTERWARDS = ("close", "kill", "go_on")
ENDS = ("close", "kill")


def _require_positive(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} counts from 1, not {value!r}")


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL when the process reaches ``failpoint`` for the ``hit``-th time."""

    failpoint: str
    hit: int = 1

    def __post_init__(self) -> None:
        _require_positive("hit", self.hit)


@dataclass(frozen=True, slots=True)
class KillAfter:
    """SIGKILL inside a transaction, right after the ``records``-th record.

    With ``flush_pressure`` the engine's write buffer is tiny, so that it has flushed in the background before.
    """

    records: int
    flush_pressure: bool = False

    def __post_init__(self) -> None:
        _require_positive("records", self.records)


@dataclass(frozen=True, slots=True)
class Abort:
    """The user's function raises at the ``records``-th record, once, and the task aborts its transaction.

    ``then`` is the next step of the process: ``close`` the task, be killed (``kill``), or ``go_on`` to the end of the
    input. With ``flush_pressure`` the engine has flushed writes of the aborted transaction before (KAFKA-20685).
    """

    records: int
    flush_pressure: bool = False
    then: str = "close"

    def __post_init__(self) -> None:
        _require_positive("records", self.records)
        if self.then not in AFTERWARDS:
            raise ValueError(f"then is one of {', '.join(AFTERWARDS)}, not {self.then!r}")


@dataclass(frozen=True, slots=True)
class Stop:
    """The process closes the task cleanly after the ``records``-th record: the harmless end for comparison."""

    records: int

    def __post_init__(self) -> None:
        _require_positive("records", self.records)


@dataclass(frozen=True, slots=True)
class Timeout:
    """The changelog times out when the task commits for the ``commit``-th time; the process then continues.

    Source: KIP-892, "Error Handling", 3.
    """

    commit: int

    def __post_init__(self) -> None:
        _require_positive("commit", self.commit)


@dataclass(frozen=True, slots=True)
class Fence:
    """Another instance takes over the task after the ``records``-th record; this one continues until it is refused.

    The other instance, with its own stores, processes the records of one commit, commits, and closes.
    Source: KIP-98, zombie fencing.
    """

    records: int

    def __post_init__(self) -> None:
        _require_positive("records", self.records)


@dataclass(frozen=True, slots=True)
class Truncate:
    """After the ``records``-th record the process ends, and the changelogs then no longer reach back to its stores.

    Each changelog gets its whole state again as new records, and is truncated before them, as compaction and retention
    do in time. ``then`` is the end of the process: ``close``, or killed (``kill``). Source: KIP-892, "Error Handling",
    2.
    """

    records: int
    then: str = "close"

    def __post_init__(self) -> None:
        _require_positive("records", self.records)
        if self.then not in ENDS:
            raise ValueError(f"then is one of {', '.join(ENDS)}, not {self.then!r}")


Step = Kill | KillAfter | Abort | Stop | Timeout | Fence | Truncate


@dataclass(frozen=True, slots=True)
class KillInRecovery:
    """``first`` happens to the first process, and each of ``again`` to the next process, which recovers from it.

    Source: KIP-844, "roll forward": a recovery that is interrupted is repeated.
    """

    first: Step
    again: tuple[Kill | KillAfter, ...]

    def __post_init__(self) -> None:
        if not self.again:
            raise ValueError("a kill in recovery needs one further kill or more")


Fault = Step | KillInRecovery

FAULTS: Mapping[str, type[Fault]] = MappingProxyType(
    {
        "kill": Kill,
        "kill_after": KillAfter,
        "abort": Abort,
        "stop": Stop,
        "timeout": Timeout,
        "fence": Fence,
        "truncate": Truncate,
        "kill_in_recovery": KillInRecovery,
    }
)
_PLAIN: Mapping[Any, type] = MappingProxyType({"int": int, "str": str, "bool": bool})
_NAMES = {fault_type: name for name, fault_type in FAULTS.items()}


def steps(fault: Fault) -> tuple[Step, ...]:
    """Return the step of the first process, of the second, and so on; the process after these runs to its end."""
    return (fault.first, *fault.again) if isinstance(fault, KillInRecovery) else (fault,)


def has_flush_pressure(fault: Fault) -> bool:
    """Return True if the engine must flush in the background long before a commit."""
    return any(isinstance(step, KillAfter | Abort) and step.flush_pressure for step in steps(fault))


def name_of(fault: Fault) -> str:
    """Return the registered name of a fault's kind, such as ``kill_after``."""
    return _NAMES[type(fault)]


def to_json(fault: Fault) -> dict[str, Any]:
    """Return a fault as plain JSON values. Settings at their defaults are left out."""
    row: dict[str, Any] = {"fault": name_of(fault)}
    if isinstance(fault, KillInRecovery):
        return row | {"first": to_json(fault.first), "again": [to_json(step) for step in fault.again]}
    for setting in fields(fault):
        value = getattr(fault, setting.name)
        if setting.default is MISSING or value != setting.default:
            row[setting.name] = value
    return row


def from_json(row: object) -> Fault:
    """Return the fault that ``to_json`` wrote.

    Raises: ConfigError for an unknown fault or setting, a missing setting, or a count below 1.
    """
    if not isinstance(row, Mapping) or not isinstance(row.get("fault"), str):
        raise ConfigError(f"a fault is an object with its name under 'fault', not {row!r}")
    name = row["fault"]
    check_known("fault", FAULTS, name)
    settings = {key: value for key, value in row.items() if key != "fault"}
    known = [setting.name for setting in fields(FAULTS[name])]
    check_known(f"setting of fault {name!r} called", known, *settings)
    if name == "kill_in_recovery":
        settings = _nested(settings)
    for setting in fields(FAULTS[name]):
        if (
            setting.name in settings
            and setting.type in _PLAIN
            and type(settings[setting.name]) is not _PLAIN[setting.type]
        ):
            raise ConfigError(f"fault {name!r}: {setting.name!r} is of type {setting.type}")
    try:
        return FAULTS[name](**settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"fault {name!r}: {error}") from error


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    again = settings.get("again", ())
    if not isinstance(again, list | tuple):
        raise ConfigError("fault 'kill_in_recovery': 'again' is a list of kills")
    inner: dict[str, Any] = {"again": tuple(from_json(step) for step in again)}
    if not all(isinstance(step, Kill | KillAfter) for step in inner["again"]):
        raise ConfigError("fault 'kill_in_recovery': 'again' takes 'kill' and 'kill_after' only")
    if "first" in settings:
        inner["first"] = from_json(settings["first"])
        if isinstance(inner["first"], KillInRecovery):
            raise ConfigError("fault 'kill_in_recovery': 'first' cannot be another 'kill_in_recovery'")
    return inner
