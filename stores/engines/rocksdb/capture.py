"""A capture of a RocksDB database: a checkpoint, whose tables are hard links to those of the database."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ClassVar

from rocksdict import Checkpoint

from stores.engines.engine import Capture, converted
from stores.engines.rocksdb.database import writing_error
from stores.engines.rocksdb.reader import SETTINGS
from stores.files.plain_files import translated_system_errors


class RocksDBCapture(Capture):
    """A checkpoint of ``db`` in ``folder``, which is whole when it begins. All families are flushed for it."""

    shares_files: ClassVar[bool] = True

    def __init__(self, db: Any, folder: Path) -> None:
        """Make it. Raises: StoreUnavailableError; CommitFailedError, after which the database can't be written."""
        with converted(Exception, writing_error):
            Checkpoint(db).create_checkpoint(str(folder))
        with translated_system_errors(folder):
            shutil.copyfile(Path(db.path(), SETTINGS), folder / SETTINGS)

    def complete(self) -> None:
        """Do nothing: the checkpoint is whole."""

    def end(self) -> None:
        """Do nothing: the checkpoint is independent of the database."""
