"""The file that says whose a state directory is: an id that outlasts the processes which use it.

JSON, in Kafka Streams' form and under its name, so that a directory of that keeps its id. It may have more fields.

Source: Kafka Streams, ``StateDirectory.initializeProcessId``; KIP-441, which assigns tasks by what each process has.
"""

from __future__ import annotations

import json
import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from uuid import UUID, uuid4

from stores.directory import replace_file, sync_folder
from stores.errors import StoreLockedError
from stores.locks import take

PROCESS_FILE = "kafka-streams-process-metadata"
_LOCK_FILE = ".process"
_FIELD = "processId"
_PAUSE_S = 0.01

_log = logging.getLogger(__name__)


def process_id(folder: Path) -> UUID:
    """The id that ``folder`` bears, drawn now where it has none; the same for everybody, whoever asks first.

    A file that can't be read is replaced. Raises: OSError.
    """
    file = folder / PROCESS_FILE
    while True:
        known = _read(file)
        if known is not None:
            # Whoever put it there may have been killed before its name was synced.
            sync_folder(folder)
            return known
        try:
            lock = take(folder / _LOCK_FILE, note=False)
        except StoreLockedError:
            time.sleep(_PAUSE_S)
            continue
        try:
            if _read(file) is None:
                if file.exists():
                    _log.warning("%s can't be read: the state directory gets another process id", file)
                replace_file(file, json.dumps({_FIELD: str(uuid4())}))
        finally:
            os.close(lock)


def _read(file: Path) -> UUID | None:
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return UUID(json.loads(file.read_text(encoding="utf-8"))[_FIELD])
    return None
