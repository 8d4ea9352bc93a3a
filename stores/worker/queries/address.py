"""The property ``application.server``: the address on which a worker answers queries, as it gives it to the others."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from stores.errors import ConfigError
from stores.extras import check_extra

PROPERTY = "application.server"
"""Source: Kafka Streams, ``application.server``."""
_LOOPBACK = "127.0.0.1"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_PORT = re.compile(r"[0-9]{1,5}")
_PORT_MAX = 65_535


@dataclass(frozen=True)
class ServerAddress:
    """A host, by name or IP address, and a port. As text ``HOST:PORT``, with an IPv6 address in brackets."""

    host: str
    port: int
    """0 for any free port."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach it."""
        address = _ip_address(self.host)
        return self.host.lower() == "localhost" if address is None else address.is_loopback


def server_address(text: str) -> ServerAddress:
    """Return the address that the property gives: ``HOST:PORT``, or ``PORT`` or ``:PORT`` for 127.0.0.1.

    Raises: ConfigError for anything else, for an address that other workers could not send clients to, and if the extra
    ``http`` is not installed.
    """
    address = _parsed(text.strip())
    check_extra("http")
    return address


def _parsed(text: str) -> ServerAddress:
    host, _, port = text.rpartition(":")
    in_brackets = host.startswith("[") and host.endswith("]")
    ip_address = _ip_address(host[1:-1] if in_brackets else host)
    is_name = ip_address is None and (not host or _NAME.fullmatch(host) is not None)
    is_address = ip_address is not None and in_brackets == (ip_address.version == 6)
    if not (is_name or is_address) or _PORT.fullmatch(port) is None or int(port) > _PORT_MAX:
        raise ConfigError(
            f"property {PROPERTY}: {text!r} is no address. Write HOST:PORT, or PORT alone for this machine only. "
            f"Ports are 0 (any that is free) to {_PORT_MAX}, and an IPv6 address is in brackets"
        )
    if ip_address is not None and ip_address.is_unspecified:
        raise ConfigError(
            f"property {PROPERTY}: {text!r} is no address to which clients can be sent. Write the name or the address "
            "under which they reach this machine"
        )
    return ServerAddress(str(ip_address) if ip_address is not None else host or _LOOPBACK, int(port))


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
