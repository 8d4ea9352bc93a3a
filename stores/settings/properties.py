"""Settings as properties, under Kafka's own names where Kafka has one: text from a file, or values of a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import EnumType
from typing import Any

from stores.errors import ConfigError, nearest

Properties = Mapping[str, str | int | bool]
Known = Mapping[str, tuple[str, Callable[[str], Any]]]
"""By a property's name: the setting that it sets, and the parser of its text."""


def read(properties: Properties, known: Known, prefix: str) -> tuple[dict[str, Any], dict[str, str | int | bool]]:
    """Return the settings by name, and the properties whose names begin with ``prefix``, without it.

    Raises: TypeError; ConfigError for an unknown name, with the nearest one, and for a value that does not fit or
    contradicts another one.
    """
    if not isinstance(properties, Mapping):
        raise TypeError(f"properties are a mapping of names to values, not {type(properties).__name__}")
    given: dict[str, Any] = {}
    prefixed = {}
    for name, value in properties.items():
        if not isinstance(name, str):
            raise TypeError(f"a property's name is a str, not {type(name).__name__}")
        if name.startswith(prefix):
            prefixed[name.removeprefix(prefix)] = value
        elif name in known:
            target, parse = known[name]
            parsed = parsed_as(name, value, parse)
            if given.setdefault(target, parsed) != parsed:
                raise ConfigError(f"property {name}={value} contradicts another name of the same setting: drop one")
        else:
            raise ConfigError(f"no property {name!r}{nearest(name, known)}; known: {', '.join(known)}")
    return given, prefixed


def parsed_as(name: str, value: object, parse: Callable[[str], Any]) -> Any:
    """Return the parsed value of the property ``name``. Raises: ConfigError."""
    if value is None:
        raise ConfigError(f"property {name} is None: give it a value, or drop it")
    try:
        return parse(str(value))
    except ConfigError as error:
        raise ConfigError(f"property {name}: {error}") from error
    except (ValueError, KeyError, OverflowError) as error:
        known = f": choose one of {', '.join(parse)}" if isinstance(parse, EnumType) else ""
        raise ConfigError(f"property {name}: {value!r} is not a valid value{known}") from error


def boolean(text: str) -> bool:
    """Read ``true`` or ``false``. Raises: KeyError."""
    return {"true": True, "false": False}[text.lower()]
