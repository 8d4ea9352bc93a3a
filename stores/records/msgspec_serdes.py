"""Serdes of msgspec for typed structs, dataclasses and all else that it knows, in JSON and in MessagePack.

msgspec is imported when a serde is made: it is the extra ``msgspec``.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

from stores.errors import ConfigError

T = TypeVar("T")


class _MsgspecSerde(Generic[T]):
    """Values of one type, checked against it when they are read; each value has one form.

    ``name`` is kept in the store, by default that of the format and of the type: give your own to rename a type. A
    field with a default may be added to a struct at any time. msgspec's JSON writes NaN as null.
    """

    keeps_order: Final = False
    keeps_prefixes: Final = False

    def __init__(self, of: type[T], format_name: str, codec: Any, name: str | None) -> None:
        self.name = f"msgspec-{format_name}:{getattr(of, '__qualname__', of)}" if name is None else name
        encode = codec.Encoder(order="deterministic").encode
        self._type: Any = of if isinstance(of, type) else object
        self._encode = encode
        self.deserialize = codec.Decoder(of).decode

    def serialize(self, value: T, /) -> bytes:
        if value is None:
            raise TypeError("None is no key and no value")
        if not isinstance(value, self._type):
            raise TypeError(f"a {self._type.__qualname__} is expected, not {type(value).__name__}")
        data: bytes = self._encode(value)
        return data


class MsgspecJson(_MsgspecSerde[T]):
    """Values of type ``of`` as JSON. Raises: ConfigError where msgspec is not installed."""

    def __init__(self, of: type[T], *, name: str | None = None) -> None:
        super().__init__(of, "json", _msgspec().json, name)


class MsgspecMessagePack(_MsgspecSerde[T]):
    """Values of type ``of`` as MessagePack. Raises: ConfigError where msgspec is not installed."""

    def __init__(self, of: type[T], *, name: str | None = None) -> None:
        super().__init__(of, "msgpack", _msgspec().msgpack, name)


def _msgspec() -> Any:
    try:
        import msgspec
    except ImportError as error:
        raise ConfigError("msgspec is missing: install txstores[msgspec]") from error
    return msgspec
