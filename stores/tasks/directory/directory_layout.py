"""The two layouts of a state directory. The directory notes its layout, and its tasks follow it.

    task              0_3/rocksdb/counts, 0_3/.checkpoint, 0_3/.origin
    store-partition   counts/3/rocksdb, counts/3/.checkpoint, counts/3/.origin; the folder 0_3 has the task's lock alone

In the second one no path depends on a sub-topology's number, and the task that has the store open holds the lock on
``.lock`` in ``counts/3`` (flock). The file ``.state-layout`` notes the layout (JSON); without the file it is ``task``.
During a change, the layout is the one that the journal of relocations leads to.

Source: KIP-816, "Alternative 1".
"""

from __future__ import annotations

import json
import os
import shlex
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from stores.errors import StoreCorruptedError
from stores.files.plain_files import StrangeFileError, read_json, replace_file, sync_folder, translated_system_errors

LAYOUT_FILE, JOURNAL_FILE, RELOCATING_FILE = ".state-layout", ".relocation", ".relocating"
_BYTES_MAX = 1 << 10
JOURNAL_BYTES_MAX = 256 << 20
"""Enough for some hundred thousand stores."""


RELOCATE = "python -P -m stores.relocate"
"""The command that moves stores by hand. With ``-P`` Python imports nothing from the working folder."""


def relocate_command(state: Path, options: str) -> str:
    """Return the command for the state directory ``state``, quoted for a shell."""
    return f"{RELOCATE} {shlex.quote(str(state))} {options}"


class DirectoryLayout(StrEnum):
    """The place of the stores in a state directory, and of their checkpoint and origin files."""

    TASK = "task"
    """Below their task's folder. The default."""
    STORE_PARTITION = "store-partition"
    """In folders of their own, which do not depend on the topology's numbers."""


def read_layout(state: Path) -> DirectoryLayout:
    """Return the layout of the state directory ``state``, which need not exist.

    Raises: StoreCorruptedError for a damaged note; StoreUnavailableError.
    """
    with translated_system_errors(state):
        try:
            # A damaged journal is reported when a task is opened.
            with suppress(KeyError, TypeError, ValueError, StrangeFileError):
                journal: Any = read_json(state / JOURNAL_FILE, JOURNAL_BYTES_MAX)
                return DirectoryLayout(journal["layout"])
        except FileNotFoundError:
            pass
        file = state / LAYOUT_FILE
        try:
            content: Any = read_json(file, _BYTES_MAX)
            return DirectoryLayout(content["layout"])
        except FileNotFoundError:
            return DirectoryLayout.TASK
        except (KeyError, TypeError, ValueError, StrangeFileError) as error:
            raise StoreCorruptedError(
                f"{file} is damaged. It names the layout of the state directory: remove it, and run "
                f"{relocate_command(state, '--layout LAYOUT')} with the layout that the stores have"
            ) from error


def write_layout(state: Path, layout: DirectoryLayout) -> None:
    """Note the layout of the state directory ``state``; durable on return. Raises: OSError."""
    file = state / LAYOUT_FILE
    if layout is not DirectoryLayout.TASK:
        replace_file(file, json.dumps({"layout": layout}) + "\n")
    elif os.path.lexists(file):
        file.unlink()
        sync_folder(state)
