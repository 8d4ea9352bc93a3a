"""The watermark of a batch, from the query's checkpoint.

Spark gives it to no Python worker of ``mapInArrow``. It writes it into the checkpoint before a batch begins: the file
``offsets/N`` of batch N, whose second line is JSON with ``batchWatermarkMs``. That file never changes, so each attempt
at a batch sees the same watermark. When a batch is done, ``commits/N`` has ``nextBatchWatermarkMs``.
"""

from __future__ import annotations

import re
from pathlib import Path

from stores.errors import ConfigError, StoreIncompatibleError
from stores.files.folder import Folder, open_folder
from stores.files.plain_files import parsed_json

_ON_HADOOP = {"s3a://": "s3://", "s3n://": "s3://"}
"""Names that Hadoop has for file systems that ``pyarrow.fs`` has too."""


def watermark_of(checkpoint: str, batch: int, query: str) -> int:
    """Return the watermark of a batch in milliseconds since the Unix epoch, 0 before Spark has one.

    Raises: ConfigError if ``checkpoint`` has no such batch; StoreIncompatibleError if it is that of another query;
    StoreUnavailableError if the file system fails.
    """
    folder = open_folder(_location(checkpoint), for_reading=True)
    lines = _read(folder, "metadata", checkpoint).splitlines()
    owner = _parsed(lines[0] if lines else b"", "metadata", checkpoint).get("id")
    if owner != query:
        raise StoreIncompatibleError(
            f"{checkpoint} is the checkpoint of the streaming query {owner}, and this is {query}: give stateful() the "
            "folder that is the query's checkpointLocation"
        )
    return _watermark_in(folder, f"offsets/{batch}", "batchWatermarkMs", checkpoint)


def next_watermark_of(checkpoint: str) -> int:
    """Return the watermark after the last batch that is done, 0 before the first. Raises: as ``watermark_of``."""
    folder = open_folder(_location(checkpoint), for_reading=True)
    batches = [int(name) for name in folder.names("commits") if name.isdecimal()]
    return _watermark_in(folder, f"commits/{max(batches)}", "nextBatchWatermarkMs", checkpoint) if batches else 0


def absolute(checkpoint: str) -> str:
    """Return a path as an absolute one, as Spark does on the driver: executors have other working folders."""
    return checkpoint if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", checkpoint) else str(Path(checkpoint).absolute())


def _location(checkpoint: str) -> str:
    """Return the location as ``pyarrow.fs`` has it: Spark also writes ``file:/data`` and ``s3a://bucket``."""
    if checkpoint.startswith("file:/"):
        return "/" + checkpoint.removeprefix("file:").lstrip("/")
    scheme = next((name for name in _ON_HADOOP if checkpoint.startswith(name)), "")
    return _ON_HADOOP.get(scheme, "") + checkpoint.removeprefix(scheme)


def _watermark_in(folder: Folder, name: str, field: str, checkpoint: str) -> int:
    """Return a number of the second line of a file."""
    lines = _read(folder, name, checkpoint).splitlines()
    watermark_ms = _parsed(lines[1] if len(lines) > 1 else b"", name, checkpoint).get(field)
    if not isinstance(watermark_ms, int):
        raise _unreadable(name, checkpoint)
    return watermark_ms


def _read(folder: Folder, name: str, checkpoint: str) -> bytes:
    try:
        return folder.read(name)
    except FileNotFoundError as error:
        raise ConfigError(
            f"the checkpoint {checkpoint} has no file {name}, from which the watermark is read: give stateful() the "
            "folder that is the query's checkpointLocation, and leave asynchronous progress tracking off"
        ) from error


def _parsed(line: bytes, name: str, checkpoint: str) -> dict[str, object]:
    try:
        content = parsed_json(line)
    except ValueError as error:
        raise _unreadable(name, checkpoint) from error
    if not isinstance(content, dict):
        raise _unreadable(name, checkpoint)
    return content


def _unreadable(name: str, checkpoint: str) -> ConfigError:
    return ConfigError(
        f"{checkpoint}/{name} is not what this release reads the watermark from: run the query with a Spark that is "
        "tested with it, 4.1 to 4.3, or without timers"
    )
