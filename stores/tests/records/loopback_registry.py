"""A schema registry on loopback, in memory: what confluent-kafka's client asks for, with the answers of Confluent's.

Schemas have one ID whatever their subject. A new version of a subject must read what the one before has written
(BACKWARD, the default of Confluent's); this one knows that of Avro only.
Source: https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from bottle import Bottle, HTTPResponse, request, response

_AVRO = "AVRO"
_COMPATIBILITY: Any = import_module("avro.compatibility")
_parse: Any = import_module("avro.schema").parse
"""The package of Avro itself, which has types for a part of its functions."""


class LoopbackRegistry:
    """The contents of the registry, and its routes."""

    def __init__(self) -> None:
        self.url = ""
        self.schemas: list[tuple[str, str]] = []
        """The type and the text of each schema, by its ID less one."""
        self.subjects: dict[str, list[int]] = {}
        """The IDs of the versions of each subject."""
        self.requests: list[str] = []
        self.answers: Iterator[int | HTTPResponse] = iter(())
        """The statuses with which it refuses the next requests, or what another server answers."""
        self.app = Bottle()
        self.app.install(self._noted)
        self.app.post("/subjects/<subject>/versions", callback=self.register)
        self.app.post("/subjects/<subject>", callback=self.look_up)
        self.app.get("/schemas/ids/<number:int>", callback=self.schema)

    def register(self, subject: str) -> Any:
        given, versions = self._given(), self.subjects.setdefault(subject, [])
        try:
            if given[0] == _AVRO:
                _parse(given[1])
        except Exception as error:
            return self._refused(422, 42201, f"Invalid schema: {error}")
        if versions and not self._can_read(given, self.schemas[versions[-1] - 1]):
            return self._refused(409, 409, "Schema being registered is incompatible with an earlier schema")
        if given not in self.schemas:
            self.schemas.append(given)
        number = self.schemas.index(given) + 1
        if number not in versions:
            versions.append(number)
        return self._described(subject, number)

    def look_up(self, subject: str) -> Any:
        given = self._given()
        if subject not in self.subjects:
            return self._refused(404, 40401, f"Subject '{subject}' not found.")
        number = self.schemas.index(given) + 1 if given in self.schemas else 0
        if number not in self.subjects[subject]:
            return self._refused(404, 40403, "Schema not found")
        return self._described(subject, number)

    def schema(self, number: int) -> Any:
        if not 1 <= number <= len(self.schemas):
            return self._refused(404, 40403, f"Schema {number} not found")
        kind, text = self.schemas[number - 1]
        return {"schema": text, "schemaType": kind}

    def _noted(self, route: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*arguments: Any, **named: Any) -> Any:
            self.requests.append(f"{request.method} {request.path}")
            status = next(self.answers, None)
            if isinstance(status, HTTPResponse):
                return status
            return route(*arguments, **named) if status is None else self._refused(status, 0, "as the test says")

        return answer

    def _given(self) -> tuple[str, str]:
        content = json.loads(request.body.read())
        return content.get("schemaType", _AVRO), content["schema"]

    def _described(self, subject: str, number: int) -> Any:
        kind, text = self.schemas[number - 1]
        version = self.subjects[subject].index(number) + 1
        return {"subject": subject, "id": number, "version": version, "schema": text, "schemaType": kind}

    @staticmethod
    def _refused(status: int, code: int, message: str) -> Any:
        response.status = status
        return {"error_code": code, "message": message}

    @staticmethod
    def _can_read(reader: tuple[str, str], writer: tuple[str, str]) -> bool:
        if {reader[0], writer[0]} != {_AVRO}:
            return reader[0] == writer[0]
        checker = _COMPATIBILITY.ReaderWriterCompatibilityChecker()
        checked = checker.get_compatibility(_parse(reader[1]), _parse(writer[1]))
        return bool(checked.compatibility is _COMPATIBILITY.SchemaCompatibilityType.compatible)


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


@contextmanager
def loopback_registry() -> Iterator[LoopbackRegistry]:
    """Run a registry at ``url`` until the block ends."""
    registry = LoopbackRegistry()
    with make_server("127.0.0.1", 0, registry.app, handler_class=_Silent) as server:
        registry.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()
