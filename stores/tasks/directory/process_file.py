"""The process ID file of a state directory: an ID that outlasts the processes which use the directory.

It is JSON, with the name and the format of Kafka Streams, so that a directory of Kafka Streams keeps its ID. It may
have more fields.

Source: Kafka Streams, ``StateDirectory.initializeProcessId``; KIP-441, which assigns tasks by the process ID.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from uuid import UUID, uuid4

from stores.files.locks import take_in_time
from stores.files.plain_files import read_json, replace_file, sync_folder

PROCESS_FILE = "kafka-streams-process-metadata"
_LOCK_FILE = ".process"
_FIELD = "processId"

_log = logging.getLogger(__name__)


def process_id(folder: Path) -> UUID:
    """Return the process ID of ``folder``. If it has none, create one: all processes get the same.

    A file that can't be parsed is replaced. Raises: OSError; StrangeFileError; StoreLockedError if another process has
    held the lock for half a minute.
    """
    file = folder / PROCESS_FILE
    while True:
        known = _read(file)
        if known is not None:
            # The process that created it may have been killed before its name was synced.
            sync_folder(folder)
            return known
        lock = take_in_time(folder / _LOCK_FILE)
        try:
            if _read(file) is None:
                if os.path.lexists(file):
                    _log.warning("%s can't be read: the state directory gets another process ID", file)
                replace_file(file, json.dumps({_FIELD: str(uuid4())}))
        finally:
            os.close(lock)


def _read(file: Path) -> UUID | None:
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        content = read_json(file)
        return UUID(content[_FIELD]) if isinstance(content, dict) else None
    return None
