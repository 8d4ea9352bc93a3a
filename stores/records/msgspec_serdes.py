"""Serdes of msgspec for structs, dataclasses and all other types that it supports, in JSON and in MessagePack.

msgspec is the extra ``msgspec``. It is imported when a serde is created.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, Generic, TypeVar

from stores.errors import ConfigError
from stores.extras import advice

T = TypeVar("T")


class _MsgspecSerde(Generic[T]):
    """A serde for values of one type, which are validated when they are read. Each value has one serialized form.

    The store keeps ``name``; its default is made of the format and the type. Pass your own name to rename a type. A
    field with a default may be added to a struct at any time. msgspec's JSON writes NaN as null.
    """

    keeps_order: Final = False
    keeps_prefixes: Final = False

    def __init__(self, of: type[T], format_name: str, codec: Any, name: str | None) -> None:
        self.name = f"msgspec-{format_name}:{getattr(of, '__qualname__', of)}" if name is None else name
        encode = codec.Encoder(order="deterministic").encode
        self._of = of
        self._type: Any = of if isinstance(of, type) else object
        self._encode = encode
        self.deserialize = codec.Decoder(of).decode

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return partial(type(self), self._of, name=self.name), ()

    def serialize(self, value: T, /) -> bytes:
        if value is None:
            raise TypeError("None can't be a key or a value")
        if not isinstance(value, self._type):
            raise TypeError(f"a {self._type.__qualname__} is expected, not {type(value).__name__}")
        data: bytes = self._encode(value)
        return data


class MsgspecJson(_MsgspecSerde[T]):
    """A serde for values of type ``of`` as JSON. Raises: ConfigError if msgspec is not installed."""

    def __init__(self, of: type[T], *, name: str | None = None) -> None:
        super().__init__(of, "json", _msgspec().json, name)


class MsgspecMessagePack(_MsgspecSerde[T]):
    """A serde for values of type ``of`` as MessagePack. Raises: ConfigError if msgspec is not installed."""

    def __init__(self, of: type[T], *, name: str | None = None) -> None:
        super().__init__(of, "msgpack", _msgspec().msgpack, name)


def _msgspec() -> Any:
    try:
        import msgspec
    except ImportError as error:
        raise ConfigError(f"msgspec is missing: {advice('msgspec')}") from error
    return msgspec
