"""Which of two layouts a state directory has; the directory itself notes it, and its tasks follow.

    task              0_3/rocksdb/counts, 0_3/.checkpoint, 0_3/.origin
    store-partition   counts/3/rocksdb, counts/3/.checkpoint, counts/3/.origin; the folder 0_3 has the task's lock alone

In the second one no path depends on a sub-topology's number. The file ``.state-layout`` notes it (JSON); without the
file the layout is ``task``. During a change, the layout is the one that the journal of relocations leads to.

Source: KIP-816, "Alternative 1".
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from stores.errors import StoreCorruptedError
from stores.files import StrangeFileError, read_json, replace_file, sync_folder, system_errors_told

LAYOUT_FILE, JOURNAL_FILE = ".state-layout", ".relocation"
_BYTES_MAX = 1 << 10
JOURNAL_BYTES_MAX = 256 << 20
"""Enough for some hundred thousand stores."""


class DirectoryLayout(StrEnum):
    """Where the stores of a state directory lie, each with its share of the checkpoint and origin files."""

    TASK = "task"
    """Below their task's folder. The default."""
    STORE_PARTITION = "store-partition"
    """Below folders of their own, which no change of the topology's numbers concerns."""


def read_layout(state: Path) -> DirectoryLayout:
    """The layout of the state directory ``state``, which need not exist.

    Raises: StoreCorruptedError for a damaged note; StoreUnavailableError.
    """
    with system_errors_told(state):
        try:
            # Whoever opens a task finds a damaged journal, and says so.
            with suppress(KeyError, TypeError, ValueError, StrangeFileError):
                journal: Any = read_json(state / JOURNAL_FILE, JOURNAL_BYTES_MAX)
                return DirectoryLayout(journal["layout"])
        except FileNotFoundError:
            pass
        file = state / LAYOUT_FILE
        try:
            told: Any = read_json(file, _BYTES_MAX)
            return DirectoryLayout(told["layout"])
        except FileNotFoundError:
            return DirectoryLayout.TASK
        except (KeyError, TypeError, ValueError, StrangeFileError) as error:
            raise StoreCorruptedError(
                f"{file} is damaged: it notes the layout of the state directory. Remove it, and run python -m "
                "stores.relocate with the --layout that the stores have"
            ) from error


def write_layout(state: Path, layout: DirectoryLayout) -> None:
    """Note the layout of the state directory ``state``; durable on return. Raises: OSError."""
    file = state / LAYOUT_FILE
    if layout is not DirectoryLayout.TASK:
        replace_file(file, json.dumps({"layout": layout}) + "\n")
    elif os.path.lexists(file):
        file.unlink()
        sync_folder(state)
