"""Topics with serdes: a function reads and writes values of types, and the topic has their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from stores.changelog.interface import K_co, Record, V_co
from stores.errors import DeserializationError, StoreError
from stores.records.codec import Codec
from stores.records.serdes import Serde, check_serde, of_topic

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class Topic(Generic[K, V]):
    """A topic with the serdes of its keys and values. It may stand where the name of a topic does, which means bytes.

    A record of an input has what the serdes read, and an output what they write. None is None in the topic, and no
    serde sees it: a record without a key, and a tombstone.

    Raises: TypeError for a name that is no text, and for an invalid serde.
    """

    name: str
    key: Serde[K] = field(kw_only=True)
    value: Serde[V] = field(kw_only=True)
    _codec: Codec[K, V] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"the name of a topic is a str, not {type(self.name).__name__}")
        for part in ("key", "value"):
            serde = getattr(self, part)
            check_serde(part, serde)
            object.__setattr__(self, part, of_topic(serde, self.name, part))
        object.__setattr__(self, "_codec", Codec(self.name, self.key, self.value, of="topic"))

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        # The functions of a serde can't always be pickled.
        return partial(type(self), self.name, key=self.key, value=self.value), ()

    def encoded(self, key: K | None, value: V | None) -> tuple[bytes | None, bytes | None]:
        """Return the bytes of a key and a value. Raises: TypeError, ValueError for what a serde refuses; StoreError."""
        codec = self._codec
        encoded_key = None if key is None else codec.encode_key(key)
        return encoded_key, None if value is None else codec.encode_value(key, value)  # type: ignore[arg-type]

    def encoded_columns(
        self, keys: Sequence[K | None], values: Sequence[V | None]
    ) -> tuple[list[bytes | None], list[bytes | None]]:
        """Return the bytes of keys and of values, as many of each. Raises: as ``encoded``."""
        try:
            return self._codec.serialize_keys(keys), self._codec.serialize_values(values)
        except Exception:
            for key, value in zip(keys, values, strict=True):
                self.encoded(key, value)  # It raises the error that names the key or the value.
            raise

    def decoded_column(self, part: str, column: Sequence[bytes | None]) -> list[Any]:
        """Return what the serde of ``part``, "key" or "value", reads of each. Raises: what the serde does."""
        codec = self._codec
        return codec.deserialize_keys(column) if part == "key" else codec.deserialize_values(column)

    def decoded(self, record: Record) -> Record[K, V]:
        """Return a record of bytes with its key and its value. Raises: DeserializationError; StoreError of a serde."""
        offset, key, value, timestamp_ms, headers = record
        codec, part, serde = self._codec, "key", self.key.name
        decoded_key: K | None = None
        decoded_value: V | None = None
        try:
            if key is not None:
                decoded_key = codec.deserialize_key(key)
            part, serde = "value", self.value.name
            if value is not None:
                decoded_value = codec.deserialize_value(value)
        except (StoreError, MemoryError):
            raise
        except Exception as error:
            raise DeserializationError(
                f"topic {self.name!r}: the {part} of the record at offset {offset} can't be read by serde {serde}: "
                "give the topic the serde that wrote it, or choose by on_deserialization_error to leave such records "
                "out"
            ) from error
        return Record(offset, decoded_key, decoded_value, timestamp_ms, headers)


class TopicHandle(Protocol[K_co, V_co]):
    """A topic that a function reads, by which a checker of types knows the types of its records."""

    def decoded(self, record: Record) -> Record[K_co, V_co]: ...


def topic_name(topic: object) -> Any:
    """Return the name of a ``Topic``, and anything else as it is, for the check of names."""
    return topic.name if isinstance(topic, Topic) else topic
