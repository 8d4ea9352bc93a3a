"""The form of what a worker writes to its standard error: text, or a JSON object a line."""

from __future__ import annotations

import json
import logging
import os
import time
import traceback
from datetime import UTC, datetime

from stores.contract.levels import Level
from stores.errors import StoreError

_TEXT = "%(asctime)s %(name)s %(message)s"
_LOGGER = "stores.worker"
_STDERR = 2


class LogFormat(Level):
    """The property ``log.format``."""

    TEXT = "text"
    JSON = "json"
    """One object a line with time, level, logger and message, and with error if there is a traceback."""

    def configure(self, level: int) -> None:
        """Let all loggers write to the standard error in this form."""
        handler = logging.StreamHandler()
        handler.setFormatter(_JsonFormatter() if self is LogFormat.JSON else logging.Formatter(_TEXT))
        logging.basicConfig(level=level, handlers=[handler], force=True)

    def write(self, text: str, level: int = logging.INFO, error: str = "") -> None:
        """Write a line of the worker itself. Also for signal handlers, which may interrupt a ``print``."""
        is_json = self is LogFormat.JSON
        line = _object(time.time(), level, _LOGGER, text, error) if is_json else error.rstrip() or text
        os.write(_STDERR, f"{line}\n".encode(errors="backslashreplace"))

    def report(self, error: BaseException) -> None:
        """Write the error that ends the worker. One of the application's function has its traceback."""
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        trace = "" if isinstance(error, StoreError) else "".join(traceback.format_exception(error))
        self.write(text, logging.ERROR, trace)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        error = "" if record.exc_info is None else self.formatException(record.exc_info)
        return _object(record.created, record.levelno, record.name, record.getMessage(), error)


def _object(at: float, level: int, logger: str, message: str, error: str) -> str:
    fields = {
        "time": datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds"),
        "level": logging.getLevelName(level),
        "logger": logger,
        "message": message,
    }
    return json.dumps({**fields, "error": error} if error else fields)
