"""Trials as JSON, and the command that repeats one: ``python -m harness repeat EXPERIMENT '<JSON>'``.

All of it is derived from the fields of the trial's dataclass. Fields at their defaults are left out. A field of pairs,
such as options, is a JSON object, and so is a dataclass; other tuples are lists. A fault has its name under ``fault``.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import shlex
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from harness.faults import FAULTS, Fault
from harness.workloads.suggestion import check_known
from stores.errors import ConfigError

T = TypeVar("T")
_HINTS: dict[type, dict[str, Any]] = {}


def to_json(trial: Any) -> dict[str, Any]:
    """Return a dataclass as plain JSON values, without the fields that have their defaults."""
    settings = {"fault": trial.name} if isinstance(trial, Fault) else {}
    hints = _hints(type(trial))
    for setting in fields(trial):
        value = getattr(trial, setting.name)
        if setting.default is not MISSING:
            default: Any = setting.default
        else:
            default = setting.default_factory() if setting.default_factory is not MISSING else MISSING
        if default is MISSING or value != default:
            settings[setting.name] = _plain(value, hints[setting.name])
    return settings


def text_of(trial: Any) -> str:
    """Return a trial as one line of JSON: the same for equal trials."""
    return json.dumps(to_json(trial), sort_keys=True, separators=(",", ":"))


def id_of(trial: Any) -> str:
    """Return a short name derived from all parameters of a trial, the same in every process and on every machine."""
    return hashlib.sha256(text_of(trial).encode()).hexdigest()[:16]


def command(experiment: str, trial: Any) -> str:
    """Return the command that repeats ``trial`` of the experiment with that name."""
    return f"python -m harness repeat {experiment} {shlex.quote(text_of(trial))}"


def from_json(kind: type[T], row: object, what: str = "a trial") -> T:
    """Return the dataclass ``kind`` that ``to_json`` wrote.

    Raises: ConfigError for a setting that is unknown, missing, of a wrong type or out of bounds.
    """
    if not isinstance(row, Mapping):
        raise ConfigError(f"{what} is a JSON object, not {row!r}")
    settings = fields(kind)  # type: ignore[arg-type]
    check_known(f"setting of {what} called", [setting.name for setting in settings], *row)
    for setting in settings:
        if setting.default is MISSING and setting.default_factory is MISSING and setting.name not in row:
            raise ConfigError(f"{what} needs {setting.name!r}")
    hints = _hints(kind)
    return kind(**{name: _read(value, hints[name], f"{name!r} of {what}") for name, value in row.items()})


def read_fault(row: object, hint: Any = Fault) -> Fault:
    """Return the fault that ``to_json`` wrote: of the class ``hint``, or of one of a union.

    Raises: ConfigError for an unknown or another fault, and as ``from_json`` for its settings.
    """
    if not isinstance(row, Mapping) or not isinstance(row.get("fault"), str):
        raise ConfigError(f"a fault is an object with its name under 'fault', not {row!r}")
    name = row["fault"]
    check_known("fault", FAULTS, name)
    if not issubclass(FAULTS[name], hint):
        raise ConfigError(f"the fault {name!r} is none of those that are possible here")
    try:
        return from_json(FAULTS[name], {key: value for key, value in row.items() if key != "fault"}, f"fault {name!r}")
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"fault {name!r}: {error}") from error


def from_text(kind: type[T], text: str, what: str = "a trial") -> T:
    """Return the dataclass of one line of JSON. Raises: ConfigError, as ``from_json``."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{what} is a JSON object, and this is no JSON: {error}") from error
    return from_json(kind, row, what)


def _hints(kind: Any) -> dict[str, Any]:
    if kind not in _HINTS:
        _HINTS[kind] = get_type_hints(kind)
    return _HINTS[kind]


def _plain(value: Any, hint: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return to_json(value)
    if _is_pairs(hint):
        return dict(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [_plain(each, None) for each in value]
    return value


def _is_pairs(hint: Any) -> bool:
    """Return True for a tuple of pairs whose first is a text."""
    inner = get_args(hint)
    return (
        get_origin(hint) is tuple
        and len(inner) == 2
        and inner[1] is Ellipsis
        and get_origin(inner[0]) is tuple
        and get_args(inner[0])[0] is str
    )


def _read(value: Any, hint: Any, what: str) -> Any:
    if _is_fault(hint):
        return read_fault(value, hint)
    if get_origin(hint) in (Union, types.UnionType):
        return _read_one_of(value, get_args(hint), what)
    if is_dataclass(hint):
        return from_json(hint, value, what)  # type: ignore[arg-type]
    if _is_pairs(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{what} is an object, not {value!r}")
        (_, type_) = get_args(get_args(hint)[0])
        return tuple(sorted((name, _read(each, type_, f"{name!r} of {what}")) for name, each in value.items()))
    if get_origin(hint) in (tuple, Sequence):
        if not isinstance(value, list):
            raise ConfigError(f"{what} is a list, not {value!r}")
        return tuple(_read(each, get_args(hint)[0], what) for each in value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        check_known(what, [each.value for each in hint], value)
        return hint(value)
    if hint is float and type(value) in (int, float):
        return _finite(value, what)
    if isinstance(hint, type) and type(value) is not hint:
        raise ConfigError(f"{what} is of type {hint.__name__}, not {value!r}")
    return value


def _finite(value: float, what: str) -> float:
    # Python reads a number of any length, and "Infinity" and "NaN", which JSON does not have.
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ConfigError(f"{what} is a finite number")
    return number


def _read_one_of(value: Any, hints: Sequence[Any], what: str) -> Any:
    if value is None and type(None) in hints:
        return None
    others = [hint for hint in hints if hint is not type(None)]
    read: Callable[[Any], Any] = functools.partial(_read, value, what=what)
    for hint in others[:-1]:
        try:
            return read(hint)
        except ConfigError:
            continue
    return read(others[-1])


def _is_fault(hint: Any) -> bool:
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return all(isinstance(member, type) and issubclass(member, Fault) for member in members)
