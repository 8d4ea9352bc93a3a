"""The workers that have the partitions, by the addresses that they gave to the group."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from stores.changelog.group import GroupMember
from stores.errors import ConfigError, StoreError
from stores.interface import TopicPartition
from stores.worker.queries.address import parsed_address
from stores.worker.queries.refusals import unavailable

_log = logging.getLogger(__name__)
FRESH_S = 1.0
"""The time for which an answer or an error of the group is used again: over Kafka each one is a request to a broker."""


class Instances:
    """The addresses of the workers of a group, as the group had them within the last ``FRESH_S``. For any thread."""

    def __init__(self) -> None:
        self._member: GroupMember | None = None
        self._lock = threading.Lock()
        self._known: Mapping[TopicPartition, str] = {}
        self._error: StoreError | None = None
        self._refused: set[str] = set()
        self._asked_at = float("-inf")

    def joined(self, member: GroupMember) -> None:
        """Ask this member of the group from now on."""
        self._member = member

    def addresses(self) -> Mapping[TopicPartition, str]:
        """Return the address of the worker that has each partition, for those whose worker answers queries.

        Raises: Refused if this worker is not in the group yet; as ``GroupMember.addresses``.
        """
        member = self._member
        if member is None:
            raise unavailable("this worker has not joined the others yet: ask again later")
        # One of several requests asks, and the others wait for it. That holds for errors, too: of brokers that do not
        # answer, each request would else wait for an answer of its own, one after the other.
        with self._lock:
            if time.monotonic() >= self._asked_at + FRESH_S:
                try:
                    self._known, self._error = self._usable(member.addresses()), None
                except StoreError as error:
                    self._error = error
                self._asked_at = time.monotonic()
            if self._error is not None:
                raise self._error.with_traceback(None)
            return self._known

    def _usable(self, addresses: Mapping[TopicPartition, str]) -> Mapping[TopicPartition, str]:
        """Leave out what is no address of a server: another program may have written it, and clients are sent there."""
        usable = {partition: address for partition, address in addresses.items() if _is_address(address)}
        for address in {*addresses.values()} - {*usable.values()} - self._refused:
            _log.warning(
                "A worker of the group has no address of a server, but %.100r: clients are not sent there", address
            )
            self._refused.add(address)
        return usable


def _is_address(text: str) -> bool:
    """Return True if ``text`` is an address as a worker gives it to its group."""
    with suppress(ConfigError):
        address = parsed_address(text)
        return address.port > 0 and str(address) == text
    return False
