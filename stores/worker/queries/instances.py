"""The workers that have the partitions, by the addresses that they gave to the group."""

from __future__ import annotations

import ipaddress
import logging
import re
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from stores.changelog.group import GroupMember
from stores.errors import ConfigError, StoreError
from stores.extras import check_extra
from stores.interface import TopicPartition
from stores.worker.queries.parameters import unavailable

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


PROPERTY = "application.server"
"""Source: Kafka Streams, ``application.server``."""
_LOOPBACK = "127.0.0.1"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_PORT = re.compile(r"[0-9]{1,5}")
_PORT_MAX = 65_535
IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class ServerAddress:
    """A host, by name or IP address, and a port. As text ``HOST:PORT``, with an IPv6 address in brackets."""

    host: str
    port: int
    """0 for any free port."""
    resolved: str | None = field(default=None, compare=False)
    """The IP address that the host has for this machine, once that is known."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach it."""
        address = ip_address(self.resolved or self.host)
        return self.host.lower() == "localhost" if address is None else address.is_loopback


def server_address(text: str) -> ServerAddress:
    """Return the address that the property gives: ``HOST:PORT``, or ``PORT`` or ``:PORT`` for 127.0.0.1.

    Raises: ConfigError for anything else, for an address that other workers could not send clients to, and if the extra
    ``http`` is not installed.
    """
    address = parsed_address(text.strip())
    check_extra("http")
    return address


def parsed_address(text: str) -> ServerAddress:
    """Return the address that ``text`` is. Raises: ConfigError."""
    host, _, port = text.rpartition(":")
    in_brackets = host.startswith("[") and host.endswith("]")
    address = ip_address(host[1:-1] if in_brackets else host)
    is_name = address is None and (not host or _NAME.fullmatch(host) is not None)
    is_address = address is not None and in_brackets == (":" in host)
    if not (is_name or is_address) or _PORT.fullmatch(port) is None or int(port) > _PORT_MAX:
        raise ConfigError(
            f"property {PROPERTY}: {text!r} is no address. Write HOST:PORT, or PORT alone for this machine only. "
            f"Ports are 0 (any that is free) to {_PORT_MAX}, and an IPv6 address is in brackets"
        )
    check_specified(address, text)
    return ServerAddress(str(address) if address is not None else host or _LOOPBACK, int(port))


def check_specified(address: IPAddress | None, text: str) -> None:
    """Check that ``address``, which ``text`` gives or means here, is that of a machine. Raises: ConfigError."""
    if address is not None and address.is_unspecified:
        raise ConfigError(
            f"property {PROPERTY}: {text!r} is no address to which clients can be sent: it means all addresses of this "
            "machine. Write the name or the address under which they reach it"
        )


def ip_address(host: str) -> IPAddress | None:
    """Return the IP address that ``host`` is, that of IPv4 for one in the form of IPv6; None for a name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped
