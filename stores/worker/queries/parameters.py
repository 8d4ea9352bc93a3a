"""The parameters of a query, strict, so that a mistyped one is an error and not a default; and its forms in JSON."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any
from urllib.parse import parse_qsl

from stores.errors import nearest
from stores.records import ValueAndTimestamp, ValueTimestampHeaders
from stores.records.serdes import BytesSerde, Float64Serde, Int64Serde, JsonSerde, Serde, StrSerde

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


RETRY_AFTER_S = 1
"""The time after which a client asks again, in seconds: that of most rebalances."""


class Refused(Exception):
    """A query that gets no data. ``details`` are further fields of the answer."""

    def __init__(self, status: int, sentence: str, **details: Any) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence
        self.details: Mapping[str, Any] = details


def bad_request(sentence: str) -> Refused:
    """Return the refusal of a query that is wrong in itself."""
    return Refused(400, sentence)


def unavailable(sentence: str, **details: Any) -> Refused:
    """Return the refusal of a query that is to be asked again after ``RETRY_AFTER_S``."""
    return Refused(503, sentence, **details)


KEY_ENCODING, VALUE_ENCODING = "key_encoding", "value_encoding"
_HEX = re.compile(r"([0-9A-Fa-f]{2})*")
_REASON_MAX = 200


class Encoding(StrEnum):
    """The text of bytes."""

    UTF_8 = "utf-8"
    BASE64 = "base64"
    HEX = "hex"


class JsonForms:
    """The forms of one store's keys and values, given their serdes. Raises, all methods: Refused."""

    def __init__(self, key: Serde[Any], value: Serde[Any], parameters: Parameters) -> None:
        """Take the encodings of bytes from the parameters of a query. The default of both is UTF-8."""
        self._key, self._value = key, value
        self._key_encoding = _encoding(parameters, KEY_ENCODING)
        self._value_encoding = _encoding(parameters, VALUE_ENCODING)

    def key(self, name: str, text: str) -> tuple[Any, bytes]:
        """Return the key that the parameter ``name`` gives, and its bytes."""
        try:
            key = self._parsed(name, text)
            return key, self._key.serialize(key)
        except Refused:
            raise
        except Exception as error:
            # The serde may be the user's own, and raise anything.
            reason = (str(error) or type(error).__name__)[:_REASON_MAX]
            raise bad_request(f"the parameter {name!r} is no key of this store ({self._key.name}): {reason}") from None

    def place(self, key: Any) -> bytes:
        """Return the bytes of a key of the store. Scans are in their order."""
        return self._key.serialize(key)

    def key_at(self, place: bytes) -> Any:
        """Return the key of which ``place`` returned the bytes. Raises: any error, if it never did."""
        return self._key.deserialize(place)

    def shown_key(self, key: Any) -> Any:
        """Return a key for JSON."""
        return _shown(self._key, key, self._key_encoding, "key")

    def fields(self, value: Any) -> Mapping[str, Any]:
        """Return the fields of a value in an answer: itself, None for no value, and its timestamp and headers.

        Only a value of a store that keeps them has these. The contents of headers are bytes in the encoding of values.
        """
        if isinstance(value, ValueTimestampHeaders):
            headers = [{"name": name, "value": self._shown_content(content)} for name, content in value.headers]
            return {**self.fields(value.value), "timestamp_ms": value.timestamp_ms, "headers": headers}
        if isinstance(value, ValueAndTimestamp):
            return {**self.fields(value.value), "timestamp_ms": value.timestamp_ms}
        return {"value": None if value is None else _shown(self._value, value, self._value_encoding, "value")}

    def _shown_content(self, content: bytes | None) -> str | None:
        return None if content is None else _text_of(content, self._value_encoding, "header", VALUE_ENCODING)

    def _parsed(self, name: str, text: str) -> Any:
        key = self._key
        if isinstance(key, StrSerde):
            return text
        if isinstance(key, Int64Serde):
            if _SIGNED.fullmatch(text) is None:
                raise ValueError("it is no whole number")
            return int(text)
        if isinstance(key, Float64Serde):
            return float(text)
        if isinstance(key, JsonSerde):
            return json.loads(text)
        return key.deserialize(_bytes_of(name, text, self._key_encoding))


def json_text(answer: object) -> str:
    """Return an answer as JSON. Raises: Refused if a value has no JSON form."""
    try:
        return json.dumps(answer, ensure_ascii=False, allow_nan=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise Refused(501, f"a record of the answer has no JSON form: {str(error)[:_REASON_MAX]}") from None


def _shown(serde: Serde[Any], given: Any, encoding: Encoding, what: str) -> Any:
    if isinstance(serde, BytesSerde):
        return _text_of(given, encoding, what, f"{what}_encoding")
    if isinstance(serde, Float64Serde) and math.isinf(given):
        return "Infinity" if given > 0 else "-Infinity"
    return given


def _text_of(data: bytes, encoding: Encoding, what: str, parameter: str) -> str:
    if encoding is Encoding.BASE64:
        return base64.b64encode(data).decode()
    if encoding is Encoding.HEX:
        return data.hex()
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise bad_request(f"a {what} of the answer is not UTF-8: ask with {parameter}=base64 or hex") from None


def _bytes_of(name: str, text: str, encoding: Encoding) -> bytes:
    try:
        if encoding is Encoding.HEX:
            if _HEX.fullmatch(text) is None:  # fromhex() takes spaces, too.
                raise ValueError(text)
            return bytes.fromhex(text)
        if encoding is Encoding.BASE64:
            # Also the alphabet for URLs, and without padding.
            plain = text.rstrip("=").replace("-", "+").replace("_", "/")
            return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
        return text.encode()
    except ValueError:
        hint = " (a + in a URL is %2B)" if encoding is Encoding.BASE64 else ""
        raise bad_request(f"the parameter {name!r} is not {encoding}{hint}: {shortened(text)}") from None


def _plain(value: object) -> object:
    """Return an object of a user's type for JSON. Raises: TypeError."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if hasattr(type(value), "__struct_fields__"):
        import msgspec

        return msgspec.to_builtins(value)
    raise TypeError(f"values of the type {type(value).__name__} are not supported")


def _encoding(parameters: Parameters, name: str) -> Encoding:
    text = parameters.text(name)
    try:
        return Encoding.UTF_8 if text is None else Encoding(text.lower())
    except ValueError:
        encodings = ", ".join(Encoding)
        raise bad_request(f"the parameter {name!r} is one of {encodings}, not {shortened(str(text))}") from None
