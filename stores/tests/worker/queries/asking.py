"""Asking for a store's data over HTTP, or without a server; redirects are not followed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlencode
from wsgiref.util import setup_testing_defaults

TIMEOUT_S = 600.0
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass(frozen=True)
class Reply:
    """The status of an answer, its JSON, and its headers."""

    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def keys(self) -> list[Any]:
        """The keys of a page, in order."""
        return [record["key"] for record in self.body["records"]]


def ask(address: str, path: str, /, **parameters: object) -> Reply:
    """Ask a server."""
    connection = HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request("GET", f"{path}?{urlencode(parameters)}")
        response = connection.getresponse()
        return Reply(response.status, json.loads(response.read()), dict(response.getheaders()))
    finally:
        connection.close()


def call(
    application: Application, path: str, query: str = "", *, method: str = "GET", host: str = "127.0.0.1:1"
) -> Reply:
    """Call an application without a server."""
    environ: dict[str, Any] = {}
    setup_testing_defaults(environ)
    environ |= {"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query, "HTTP_HOST": host}
    responses: list[tuple[str, list[tuple[str, str]]]] = []

    def start(status: str, headers: list[tuple[str, str]], exc_info: object = None) -> None:
        responses.append((status, headers))

    content = b"".join(application(environ, start))
    [(status, headers)] = responses
    return Reply(int(status[:3]), json.loads(content) if content else None, dict(headers))
