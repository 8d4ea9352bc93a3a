"""The access to a worker's queries: TLS, and a token that clients show. Both are off without their properties."""

from __future__ import annotations

import hmac
import json
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stores.errors import ConfigError
from stores.files.plain_files import translated_system_errors

CERTIFICATE = "application.server.ssl.certificate.location"
KEY = "application.server.ssl.key.location"
TOKEN = "application.server.token.file"
TOKEN_CHARS_MIN = 16
_FILE_BYTES_MAX = 4_096

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
    with translated_system_errors(file), open(file, "rb") as opened:
        content = opened.read(_FILE_BYTES_MAX + 1)
    token = content.decode(errors="replace").strip()
    if not TOKEN_CHARS_MIN <= len(token) <= _FILE_BYTES_MAX or not token.isascii() or token.split() != [token]:
        raise ConfigError(
            f"{TOKEN}={file} has no token: write {TOKEN_CHARS_MIN} to {_FILE_BYTES_MAX:,} letters, digits and signs of "
            "ASCII into it, without a space between them, such as from: openssl rand -hex 32"
        )
    return token
