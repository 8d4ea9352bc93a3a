"""Serdes for Avro, JSON Schema and Protobuf, whose schemas are in a schema registry. They are for a ``Topic``.

They are the serializers and deserializers of confluent-kafka, and take their options. A record begins with the ID of
its schema. The registry is asked once for each schema, when the first record with it is written or read.

They need the extra ``schema-registry``, which is imported when a ``SchemaRegistry`` is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, Generic, TypeVar

from stores.errors import ConfigError, SchemaRegistryTimeoutError, StoreError
from stores.extras import advice

__all__ = ["RegistrySerde", "SchemaRegistry", "avro", "json_schema", "protobuf"]

T = TypeVar("T")
U = TypeVar("U")
M = TypeVar("M")
Options = Mapping[str, Any]

TIMEOUT_S = 10.0
"""The time for one request. The default of the client is to wait for ever."""
_NOT_FOUND, _CONFLICT, _FORBIDDEN, _TOO_MANY, _OUTAGE = 404, 409, (401, 403), 429, 500
"""Statuses of HTTP; the last one is the first of its kind. A registry says with 404xx what it does not have."""
_REQUESTS = ("get_schema", "lookup_schema", "register_schema_full_response")
"""The methods of a client that serializers and deserializers call."""


class SchemaRegistry:
    """A schema registry, by its URL or by properties of confluent-kafka's ``SchemaRegistryClient``, ``url`` among them.

    Nothing is asked before the first record. Any number of serdes may share it, on any threads.

    Raises: ConfigError if the extra is missing, or a property does not fit.
    """

    def __init__(self, config: str | Options) -> None:
        properties = {"url": config} if isinstance(config, str) else dict(config)
        library = _library("schema_registry")
        self._config = config
        self.url: Any = properties.get("url")
        with _refused("the schema registry"):
            self.client: Any = library.SchemaRegistryClient({"timeout": TIMEOUT_S, **properties})
        # The client has one of two HTTP libraries, which differ in their names only.
        self._unreachable: type[Exception] = _home_of(library.SchemaRegistryClient).httpx.TransportError
        self._refusal: type[Exception] = library.SchemaRegistryError
        for name in _REQUESTS:
            setattr(self.client, name, partial(self._answered, getattr(self.client, name)))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def __reduce__(self) -> tuple[Any, tuple[Any]]:
        return type(self), (self._config,)

    @contextmanager
    def asked(self, subject: str, *, reads: bool = False) -> Iterator[None]:
        """Let a serializer or deserializer ask in the block for the schemas of ``subject``.

        Raises: SchemaRegistryTimeoutError if the registry does not answer, or can't now; ConfigError if it refuses the
        schema or the caller, or is none. All else is about a record, such as one that ``reads`` an ID that the registry
        lacks.
        """
        try:
            yield
        except self._unreachable as error:
            raise SchemaRegistryTimeoutError(
                f"the schema registry at {self.url} does not answer: start it, or correct its URL. "
                f"{type(error).__name__}: {error}"
            ) from error
        except self._refusal as error:
            status, code = vars(error)["http_status_code"], vars(error)["error_code"]
            if status == _NOT_FOUND and code // 100 != _NOT_FOUND:
                raise self._stranger(error) from error
            if status == _NOT_FOUND and reads:
                raise
            raise self._explained(subject, error, status) from error

    def _answered(self, ask: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a method of the client. An answer that it can't read is not about a record, which may be left out."""
        try:
            return ask(*arguments, **options)
        except (self._unreachable, self._refusal):
            raise
        except Exception as error:
            raise self._stranger(error) from error

    def _stranger(self, error: Exception) -> ConfigError:
        return ConfigError(f"what answers at {self.url} is no schema registry: correct the URL. {error}")

    def _explained(self, subject: str, error: Exception, status: int) -> StoreError:
        if status >= _OUTAGE or status == _TOO_MANY:
            return SchemaRegistryTimeoutError(
                f"the schema registry at {self.url} can't answer now: look into its log. {error}"
            )
        if status == _CONFLICT:
            what = f"has a schema for {subject} that is not compatible with the new one: change the new one"
        elif status in _FORBIDDEN:
            what = "refuses the caller: correct the credentials in its properties"
        elif status == _NOT_FOUND:
            what = f"does not have the schema for {subject}: register it there, or let auto.register.schemas be true"
        else:
            what = f"refuses the schema for {subject}: correct it"
        return ConfigError(f"the schema registry at {self.url} {what}. {error}")


class RegistrySerde(Generic[T]):
    """A serializer and a deserializer of confluent-kafka as a serde, made by ``avro``, ``json_schema`` or ``protobuf``.

    The ``Topic`` in which it is gives it the subject of its schemas, TOPIC-key or TOPIC-value. Elsewhere, such as in
    the description of a store, take that of a topic: ``serde.of_topic("orders", "value")``.
    """

    keeps_order: bool = False
    keeps_prefixes: bool = False

    def __init__(
        self,
        registry: SchemaRegistry,
        form: str,
        make: Callable[[SchemaRegistry], tuple[Any, Any]],
        topic: str | None = None,
        part: str = "",
    ) -> None:
        """``make`` returns a serializer and a deserializer, which write and read ``form``. Raises: ConfigError."""
        if not isinstance(registry, SchemaRegistry):
            raise TypeError(f"registry is a SchemaRegistry, not {type(registry).__name__}")
        self._registry, self._form, self._make, self._topic, self._part = registry, form, make, topic, part
        self.name = form if topic is None else f"{form}:{topic}-{part}"
        library = import_module("confluent_kafka.serialization")
        self._context = None if topic is None else library.SerializationContext(topic, library.MessageField(part))
        with _refused(f"{form}()"), registry.asked(form):
            self._serializer, self._deserializer = make(registry)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return type(self), (self._registry, self._form, self._make, self._topic, self._part)

    def of_topic(self, topic: str, part: str) -> RegistrySerde[T]:
        """Return the serde for a part of a topic, "key" or "value"."""
        return RegistrySerde(self._registry, self._form, self._make, topic, part)

    def converted(self, write: Callable[[U], Any], read: Callable[[Any], U]) -> RegistrySerde[U]:
        """Return a serde for values of another type: ``write`` returns what this serde writes, ``read`` takes it."""
        make = partial(_converted, self._make, write, read)
        return RegistrySerde(self._registry, self._form, make, self._topic, self._part)

    def serialize(self, value: T, /) -> bytes:
        with self._registry.asked(self._subject):
            data: bytes = self._serializer(value, self._context)
        return data

    def deserialize(self, data: bytes, /) -> T:
        with self._registry.asked(self._subject, reads=True):
            value: T = self._deserializer(data, self._context)
        return value

    @property
    def _subject(self) -> str:
        if self._topic is None:
            raise ConfigError(
                f"a serde of {self._form} belongs to a Topic, which gives its schemas a subject in the registry: "
                "elsewhere use its of_topic('orders', 'value')"
            )
        return f"{self._topic}-{self._part}"


def avro(
    registry: SchemaRegistry, schema: str, *, serializer: Options | None = None, deserializer: Options | None = None
) -> RegistrySerde[Any]:
    """Return a serde for values of an Avro schema, in JSON: dictionaries for records.

    ``serializer`` and ``deserializer`` have options of ``AvroSerializer`` and ``AvroDeserializer``. Records of earlier
    schemas are read as of this one. Raises: ConfigError.
    """
    return RegistrySerde(registry, "avro", partial(_make_avro, schema, serializer, deserializer))


def json_schema(
    registry: SchemaRegistry, schema: str, *, serializer: Options | None = None, deserializer: Options | None = None
) -> RegistrySerde[Any]:
    """Return a serde for values of a JSON Schema, which are validated: dictionaries for objects.

    ``serializer`` and ``deserializer`` have options of ``JSONSerializer`` and ``JSONDeserializer``. Raises:
    ConfigError.
    """
    return RegistrySerde(registry, "json_schema", partial(_make_json, schema, serializer, deserializer))


def protobuf(
    registry: SchemaRegistry,
    message: type[M],
    *,
    serializer: Options | None = None,
    deserializer: Options | None = None,
) -> RegistrySerde[M]:
    """Return a serde for messages of one class that ``protoc`` has made.

    ``serializer`` and ``deserializer`` have options of ``ProtobufSerializer`` and ``ProtobufDeserializer``. Raises:
    ConfigError.
    """
    return RegistrySerde(registry, "protobuf", partial(_make_protobuf, message, serializer, deserializer))


def _make_avro(schema: str, write: Options | None, read: Options | None, registry: SchemaRegistry) -> tuple[Any, Any]:
    library = _library("schema_registry.avro")
    return (
        library.AvroSerializer(registry.client, schema, conf=_by_topic(write)),
        library.AvroDeserializer(registry.client, schema, conf=_by_topic(read)),
    )


def _make_json(schema: str, write: Options | None, read: Options | None, registry: SchemaRegistry) -> tuple[Any, Any]:
    library = _library("schema_registry.json_schema")
    return (
        library.JSONSerializer(schema, registry.client, conf=_by_topic(write)),
        library.JSONDeserializer(schema, schema_registry_client=registry.client, conf=_by_topic(read)),
    )


def _make_protobuf(
    message: Any, write: Options | None, read: Options | None, registry: SchemaRegistry
) -> tuple[Any, Any]:
    library = _library("schema_registry.protobuf")
    return (
        library.ProtobufSerializer(message, registry.client, conf=_by_topic(write)),
        library.ProtobufDeserializer(message, schema_registry_client=registry.client, conf=_by_topic(read)),
    )


def _by_topic(options: Options | None) -> dict[str, Any]:
    """Return options in which the subject is that of the topic, as in Java's clients, unless they name a strategy."""
    strategy = _library("schema_registry").topic_subject_name_strategy
    return {"subject.name.strategy": strategy, **(options or {})}


def _converted(
    make: Callable[[SchemaRegistry], tuple[Any, Any]],
    write: Callable[[Any], Any],
    read: Callable[[Any], Any],
    registry: SchemaRegistry,
) -> tuple[Any, Any]:
    serializer, deserializer = make(registry)
    return (
        lambda value, context: serializer(write(value), context),
        lambda data, context: read(deserializer(data, context)),
    )


def _library(module: str) -> Any:
    """Return a module of confluent-kafka. Raises: ConfigError if the extra is not installed."""
    try:
        return import_module(f"confluent_kafka.{module}")
    except ImportError as error:
        raise ConfigError(f"{error.name or error} is missing: {advice('schema-registry')}") from error


def _home_of(kind: type) -> Any:
    return import_module(kind.__module__)


@contextmanager
def _refused(what: str) -> Iterator[None]:
    """Turn any error of the library about its arguments into a ConfigError about ``what``."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        raise ConfigError(f"{what} can't be made of these arguments: {error}") from error
