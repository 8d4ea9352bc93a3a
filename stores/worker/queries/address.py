"""The property ``application.server``: the address on which a worker answers queries, as it gives it to the others."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field

from stores.errors import ConfigError
from stores.extras import check_extra

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
    found = ip_address(host[1:-1] if in_brackets else host)
    is_name = found is None and (not host or _NAME.fullmatch(host) is not None)
    is_address = found is not None and in_brackets == (":" in host)
    if not (is_name or is_address) or _PORT.fullmatch(port) is None or int(port) > _PORT_MAX:
        raise ConfigError(
            f"property {PROPERTY}: {text!r} is no address. Write HOST:PORT, or PORT alone for this machine only. "
            f"Ports are 0 (any that is free) to {_PORT_MAX}, and an IPv6 address is in brackets"
        )
    check_specified(found, text)
    return ServerAddress(str(found) if found is not None else host or _LOOPBACK, int(port))


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
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return found if mapped is None else mapped
