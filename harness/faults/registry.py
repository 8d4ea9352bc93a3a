"""Faults by name, to and from JSON. An error for an unknown name or setting suggests the nearest known one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, fields
from types import MappingProxyType
from typing import Any

from harness.faults.fault import Abort, Fault, Fence, Kill, KillAfter, KillInRecovery, Stop, Timeout, Truncate
from harness.workloads.suggestion import nearest
from stores.errors import ConfigError

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


def unknown(what: str, name: object, known: Iterable[str]) -> ConfigError:
    """Return the error for an unknown name. It suggests the nearest known name, and lists all."""
    names = sorted(known)
    return ConfigError(f"no {what} {name!r}{nearest(str(name), names)} (known: {', '.join(names)})")


def check_known(what: str, known: Collection[str], *names: str) -> None:
    """Raise the ConfigError of ``unknown`` for the first of ``names`` that is not ``known``."""
    for name in names:
        if name not in known:
            raise unknown(what, name, known)


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
