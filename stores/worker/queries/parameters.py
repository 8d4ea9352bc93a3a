"""The parameters of a query: strict, so that a mistyped one is an error and not a default."""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import parse_qsl

from stores.errors import nearest
from stores.worker.queries.refusals import bad_request

_FIELDS_MAX = 64
_NUMBER = re.compile(r"[0-9]{1,19}")
_SIGNED = re.compile(r"-?[0-9]{1,19}")
NUMBER_MAX = 2**63 - 1
NUMBER_MIN = -NUMBER_MAX - 1


class Parameters:
    """The parameters of one query, by name. Raises, all methods: Refused, with the name of the parameter."""

    def __init__(self, query: str, known: Collection[str], *, repeated: Collection[str] = ()) -> None:
        """Read the part of a URL after the question mark. Only ``repeated`` ones may be given several times."""
        self._given: dict[str, list[str]] = {}
        for name, value in _fields(query):
            if name not in known:
                takes = ", ".join(sorted(known)) or "none"
                suggestion = nearest(name, dict.fromkeys(known))
                raise bad_request(f"no parameter {shortened(name)}{suggestion}; parameters of this query: {takes}")
            self._given.setdefault(name, []).append(value)
        for name, values in self._given.items():
            if len(values) > 1 and name not in repeated:
                raise bad_request(f"the parameter {name!r} is given {len(values)} times: give it once")

    def text(self, name: str) -> str | None:
        """Return a parameter, or None if it is not given."""
        values = self._given.get(name)
        return None if values is None else values[0]

    def required(self, name: str) -> str:
        """Return a parameter that the query needs."""
        value = self.text(name)
        if value is None:
            raise bad_request(f"the parameter {name!r} is missing")
        return value

    def texts(self, name: str) -> list[str]:
        """Return all values of a parameter."""
        return list(self._given.get(name, ()))

    def number(self, name: str, default: int, least: int = 0, most: int = NUMBER_MAX) -> int:
        """Return a whole number from ``least`` to ``most``."""
        value = self.text(name)
        return default if value is None else number(name, value, least, most)

    def required_number(self, name: str, least: int = 0, most: int = NUMBER_MAX) -> int:
        """Return a whole number that the query needs, from ``least`` to ``most``."""
        return number(name, self.required(name), least, most)


def number(name: str, text: str, least: int = 0, most: int = NUMBER_MAX) -> int:
    """Return ``text`` as a whole number from ``least`` to ``most``. Raises: Refused."""
    if (_NUMBER if least >= 0 else _SIGNED).fullmatch(text) is None or not least <= int(text) <= most:
        raise bad_request(f"the parameter {name!r} is a whole number from {least} to {most}, not {shortened(text)}")
    return int(text)


def shortened(text: str) -> str:
    """Return a text from outside as it may stand in an answer."""
    return repr(text) if len(text) <= 80 else f"{text[:80]!r} and {len(text) - 80:,} more characters"


def _fields(query: str) -> list[tuple[str, str]]:
    if not query:
        return []
    if not query.isascii():
        raise bad_request("the parameters have a character that is not ASCII: percent-encode it")
    try:
        return parse_qsl(
            query, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=_FIELDS_MAX
        )
    except UnicodeDecodeError:
        raise bad_request("the parameters are not UTF-8: give bytes as base64 or hex, and say so") from None
    except ValueError:
        raise bad_request(
            f"the parameters can't be read: write NAME=VALUE&NAME=VALUE, {_FIELDS_MAX} of them at most"
        ) from None
