"""The access to the queries of a group's workers: their addresses, TLS and a token, as the properties ask for them."""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stores.changelog.group import GroupMember
from stores.errors import ConfigError, StoreError
from stores.extras import check_extra
from stores.files.plain_files import translated_system_errors
from stores.interface import TopicPartition
from stores.worker.queries.parameters import unavailable

_log = logging.getLogger(__name__)

PROPERTY = "application.server"
"""Source: Kafka Streams, ``application.server``."""
_LOOPBACK = "127.0.0.1"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_PORT = re.compile(r"[0-9]{1,5}")
PORT_MAX = 65_535
CERTIFICATE = "application.server.ssl.certificate.location"
KEY = "application.server.ssl.key.location"
TOKEN = "application.server.token.file"
TOKEN_CHARS_MIN = 16
_FILE_BYTES_MAX = 4_096

FRESH_S = 1.0
"""The time for which an answer or an error of the group is used again: over Kafka each one is a request to a broker."""

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Application = Callable[..., Iterable[bytes]]


@dataclass(frozen=True)
class AccessFiles:
    """The files of the certificate with its chain, of its key, and of the token; None where that is off.

    They are read when the worker starts. Raises: ConfigError for a certificate without a key, and the other way round.
    """

    certificate: Path | None = None
    key: Path | None = None
    token: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ConfigError(f"{CERTIFICATE} and {KEY} belong together: give both, or none")

    @property
    def scheme(self) -> str:
        """``https`` with a certificate, else ``http``. It is that of the other workers, too."""
        return "http" if self.certificate is None else "https"

    def tls(self) -> ssl.SSLContext | None:
        """Return the settings of TLS, 1.2 or newer; None if it is off. Raises: ConfigError for unfit files."""
        if self.certificate is None or self.key is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # Without a password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(self.certificate, self.key, password="")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
            raise ConfigError(
                f"{CERTIFICATE}={self.certificate} and {KEY}={self.key} can't be used: {reason}. Give files in PEM, "
                "with a key of that certificate that has no password"
            ) from error
        return context

    def guard(self) -> Callable[[Application], Application]:
        """Return what lets only those clients ask a WSGI application that show the token.

        Raises: ConfigError for an unfit file; StoreUnavailableError.
        """
        if self.token is None:
            return lambda application: application
        expected = f"bearer {_token_in(self.token)}".encode()
        return lambda application: _guarded(application, expected)

    def warning(self) -> str | None:
        """Return what is off, for an address that others can reach; None if nothing is."""
        off = []
        if self.certificate is None:
            off.append(f"without encryption ({CERTIFICATE}, {KEY})")
        if self.token is None:
            off.append(f"to anyone who reaches it ({TOKEN})")
        return " and ".join(off) or None


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
    if not (is_name or is_address) or _PORT.fullmatch(port) is None or int(port) > PORT_MAX:
        raise ConfigError(
            f"property {PROPERTY}: {text!r} is no address. Write HOST:PORT, or PORT alone for this machine only. "
            f"Ports are 0 (any that is free) to {PORT_MAX}, and an IPv6 address is in brackets"
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


def _guarded(application: Application, expected: bytes) -> Application:
    def answer(environ: Mapping[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        kind, _, credential = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
        header = f"{kind.lower()} {credential.strip()}".encode(errors="replace")
        if hmac.compare_digest(header, expected):
            return application(environ, start)
        error = {"error": "this worker answers to those who have its token: send it as Authorization: Bearer TOKEN"}
        content = json.dumps(error).encode() + b"\n"
        headers = {
            "Content-Type": "application/json",
            "Cache-Control": "no-store",
            "WWW-Authenticate": "Bearer",
            "Content-Length": str(len(content)),
        }
        start("401 Unauthorized", list(headers.items()))
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [content]

    return answer


def _token_in(file: Path) -> str:
    """Return the token in a file, without white space around it. Raises: ConfigError; StoreUnavailableError."""
    with translated_system_errors(file), open(file, "rb") as stream:
        content = stream.read(_FILE_BYTES_MAX + 1)
    token = content.decode(errors="replace").strip()
    if not TOKEN_CHARS_MIN <= len(token) <= _FILE_BYTES_MAX or not token.isascii() or token.split() != [token]:
        raise ConfigError(
            f"{TOKEN}={file} has no token: write {TOKEN_CHARS_MIN} to {_FILE_BYTES_MAX:,} letters, digits and signs of "
            "ASCII into it, without a space between them, such as from: openssl rand -hex 32"
        )
    return token
