"""The log of one producer's client, from which it is known when a request may have been lost on its way to the brokers.

A request that gets no answer may still be on its way, and reach the broker within the next transaction (KIP-890). The
client sends it again, and its caller does not learn it. But the client's debug context ``broker`` writes a line
whenever it gives up a connection, and one whenever it gives up waiting for an answer. It writes them before it sends a
request again, into the queue that ``poll`` serves: so a poll after the end of a transaction brings all lines that are
about its requests.

Source: librdkafka, ``rd_kafka_broker_set_error`` (FAIL) and ``rd_kafka_broker_timeout_scan`` (REQTMOUT).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from stores.changelog.kafka.client_settings import ClientSettings

_SIGNS = frozenset(("FAIL", "REQTMOUT"))
_DEBUG, _LEVEL = "debug", "log_level"
_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)
"""Python's level for each of the client's. Source: confluent-kafka, ``log_cb``."""
_INFO = 6
"""The client's own default."""


class LostRequests:
    """The ``logger`` of one client. It passes on to ``log`` what the caller's settings ask for.

    ``any`` is True if a request may have been lost since it was last set to False.
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
