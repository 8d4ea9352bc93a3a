"""Errors for names that do not exist, with a suggestion."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from stores.errors import ConfigError, nearest


def unknown(what: str, name: object, known: Iterable[str]) -> ConfigError:
    """Return the error for an unknown name. It suggests the nearest known name, and lists all."""
    names = sorted(known)
    return ConfigError(f"no {what} {name!r}{nearest(str(name), names)} (known: {', '.join(names)})")


def check_known(what: str, known: Collection[str], *names: str) -> None:
    """Raise the ConfigError of ``unknown`` for the first of ``names`` that is not ``known``."""
    for name in names:
        if name not in known:
            raise unknown(what, name, known)
