"""The client's own settings: passed on as they are, without those that the changelog itself decides."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from stores.errors import ConfigError, nearest

OWN: Mapping[str, str] = {
    "transactional.id": "the task gives it",
    "enable.idempotence": "it is always on",
    "acks": "it is always all",
    "group.id": "the task gives it",
    "group.instance.id": "the member of a group gives it: it is a property of a worker",
    "partitioner": "the task chooses the partition of an output: it is a property of a worker and of tasks",
    "isolation.level": "it is always read_committed",
    "enable.auto.commit": "offsets are committed with the records",
    "enable.auto.offset.store": "offsets are committed with the records",
    "enable.partition.eof": "a restore ends by it",
    "auto.offset.reset": "it is a setting of tasks: TaskSettings(auto_offset_reset=...), or a property of a worker",
    "delivery.report.only.error": "a commit needs the offsets of records",
    "error_cb": "errors are raised",
    "on_delivery": "a commit waits for its records",
    "logger": "the client's messages go to the logger stores.changelog.kafka.client",
}
"""The settings that a caller can't give, and why."""

_SECRET_WORDS = ("password", "secret", "token", "jaas", "key.pem", "oauthbearer.config", "oauthbearer.assertion")
_HIDDEN = "(hidden)"

KNOWN = (
    "bootstrap.servers",
    "client.id",
    "security.protocol",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
    "sasl.password",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
    "socket.timeout.ms",
    "socket.keepalive.enable",
    "metadata.max.age.ms",
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
    "retry.backoff.ms",
    "message.max.bytes",
    "batch.size",
    "batch.num.messages",
    "linger.ms",
    "compression.type",
    "compression.level",
    "queue.buffering.max.messages",
    "queue.buffering.max.kbytes",
    "transaction.timeout.ms",
    "message.timeout.ms",
    "delivery.timeout.ms",
    "request.timeout.ms",
    "fetch.max.bytes",
    "fetch.queue.backoff.ms",
    "fetch.wait.max.ms",
    "max.partition.fetch.bytes",
    "queued.max.messages.kbytes",
    "queued.min.messages",
    "session.timeout.ms",
    "statistics.interval.ms",
    "debug",
)
"""Frequent settings of the client, from which the nearest to a misspelt one is named. Source: librdkafka's
CONFIGURATION.md."""


class ClientSettings:
    """The settings that all clients of one changelog share. Its ``repr`` has names only, and no values of secrets."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Take the caller's settings. Raises: ConfigError, TypeError."""
        if not isinstance(settings, Mapping):
            raise TypeError(f"settings are a mapping of names to values, not {type(settings).__name__}")
        for name in settings:
            if not isinstance(name, str):
                raise TypeError(f"the name of a setting is a str, not {type(name).__name__}")
            if name in OWN:
                raise ConfigError(f"the setting {name} can't be given: {OWN[name]}")
        servers = settings.get("bootstrap.servers", "")
        if not isinstance(servers, str) or not servers.strip():
            raise ConfigError(
                "the setting bootstrap.servers is missing, or no text: it has the addresses of Kafka's brokers, as in "
                "'one:9092,two:9092'"
            )
        self._settings = dict(settings)

    @property
    def servers(self) -> str:
        """The addresses of the brokers, as they were given."""
        servers: str = self._settings["bootstrap.servers"]
        return servers

    def value(self, name: str, default: Any) -> Any:
        """Return the caller's value of a setting, or the default."""
        return self._settings.get(name, default)

    def with_own(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of one client: the caller's, and ``own``."""
        return {**self._settings, **own}

    def without_secrets(self, text: str) -> str:
        """Return a message of the client without the value of any secret that may be in it."""
        for name, value in self._settings.items():
            if _is_secret(name) and isinstance(value, str) and value:
                text = text.replace(value, _HIDDEN)
        return text

    def nearest(self, name: str) -> str:
        """Return a suggestion for a setting that the client doesn't know, or nothing."""
        return nearest(name, KNOWN, 0.6)

    def __repr__(self) -> str:
        printable = {name: _HIDDEN if _is_secret(name) else value for name, value in sorted(self._settings.items())}
        return f"ClientSettings({printable})"


def _is_secret(name: str) -> bool:
    return any(word in name for word in _SECRET_WORDS)


_SIGNS = frozenset(("FAIL", "REQTMOUT"))
_DEBUG, _LEVEL = "debug", "log_level"
_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)
"""Python's level for each of the client's. Source: confluent-kafka, ``log_cb``."""
_INFO = 6
"""The client's own default."""


class LostRequests:
    """The ``logger`` of one producer's client, which knows when a request may have been lost on its way to the brokers.

    A request that gets no answer may still be on its way, and reach the broker within the next transaction (KIP-890).
    The client sends it again, and its caller does not learn it. But the client's debug context ``broker`` writes a line
    whenever it gives up a connection, and one whenever it gives up waiting for an answer. It writes them before it
    sends a request again, into the queue that ``poll`` serves: so a poll after the end of a transaction brings all
    lines that are about its requests.

    ``any`` is True if a request may have been lost since it was last set to False. Other lines are passed on to ``log``
    as the caller's settings ask. Source: librdkafka, ``rd_kafka_broker_set_error`` (FAIL) and
    ``rd_kafka_broker_timeout_scan`` (REQTMOUT).
    """

    def __init__(self, settings: ClientSettings, log: logging.Logger) -> None:
        contexts = settings.value(_DEBUG, "") or ""
        level = int(settings.value(_LEVEL, _INFO))
        self._log, self._least = log, logging.DEBUG if contexts else _LEVELS[level]
        self.settings: Mapping[str, Any] = {_DEBUG: f"{contexts},broker" if contexts else "broker", "logger": self}
        """The settings that the client needs for it."""
        self.any = False

    def log(self, level: int, text: str, facility: str, client: str, message: str) -> None:
        """Take a message of the client, which calls this from ``poll``."""
        if facility in _SIGNS:
            self.any = True
        if level >= self._least:
            self._log.log(level, text, facility, client, message)
