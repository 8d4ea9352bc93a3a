"""Readers of a RocksDB database that this process does not write to, without a change to its folder.

rocksdict writes its own settings at each opening. So it opens a temporary folder, which has them and links to the
files. Files that another process has open are read by a secondary instance: it shows what is in them, which is each
commit that has a WAL, and without one each that was flushed. Source: RocksDB's wiki, "Read-only and Secondary
instances".
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple
from weakref import finalize

from rocksdict import AccessType, DBPath, Options

from stores.engines.engine import Engine, Writes, converted
from stores.engines.rocksdb.database import has_second_family, manifest_of, open_database, reading_error
from stores.errors import damaged
from stores.ordered import WHOLE

SETTINGS = "rocksdict-config.json"
"""The settings that rocksdict keeps beside RocksDB's files."""
CACHE_BYTES = 8 << 20
"""The cache of a reader of live files. The memory that stores share has write buffers, which it could not flush."""


class Mirror:
    """A temporary folder. It is removed with the object, or at the process's end, but never by a forked process."""

    def __init__(self) -> None:
        self.name = mkdtemp(prefix="txstores-")
        self._remove = finalize(self, _remove_own, self.name, os.getpid())

    @property
    def is_whole(self) -> bool:
        """False if the folder was emptied: systems remove what is old in their folder for temporary files."""
        return os.path.exists(f"{self.name}/CURRENT")

    def cleanup(self) -> None:
        """Remove the folder."""
        self._remove()


def _remove_own(folder: str, process: int) -> None:
    if process == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


class DatabaseReader(NamedTuple):
    """A handle that only reads."""

    db: Any
    second: bool
    """True if the database has a second data family."""
    manifest: Path
    mirror: Mirror
    """The folder that is open in place of the database's. It is removed after ``db`` is closed."""

    def is_current(self) -> bool:
        """Return whether no other process has opened the database for writes since: each makes a manifest.

        Without the file ``CURRENT`` RocksDB would show no later commit, and raise nothing.
        """
        return manifest_of(self.manifest.parent) == self.manifest and self.mirror.is_whole

    def catch_up(self) -> None:
        """Show what is in live files now.

        A WAL that is removed between RocksDB's looks at the manifest and at the WALs would be left out, and with it
        commits in the middle. So this is repeated until the same WALs are there before and after. Raises: StoreError.
        """
        folder = self.manifest.parent
        with converted(Exception, reading_error):
            while True:
                before = {file.name for file in folder.glob("*.log")}
                self.db.try_catch_up_with_primary()
                if {file.name for file in folder.glob("*.log")} == before:
                    return


def open_reader(path: Path, options: Mapping[str, object], *, live: bool) -> DatabaseReader:
    """Open the database in ``path``, ``live`` if another process may write to it. Raises: OSError; StoreError."""
    manifest = manifest_of(path)
    if manifest is None:
        raise damaged(f"{path} has no database")
    mirror = mirrored(path, only=(manifest,) if live else None)
    try:
        second = has_second_family(path)
        if live:
            secondary = AccessType.secondary(f"{mirror.name}/secondary")
            db = open_database(Path(mirror.name), options, secondary, second=second, also=_live_options(path))
        else:
            db = open_database(Path(mirror.name), options, AccessType.read_only(), second=second)
    except BaseException:
        mirror.cleanup()
        raise
    return DatabaseReader(db, second, manifest, mirror)


def copy_into(target: Engine, source: Engine) -> None:
    """Write the committed data of ``source`` into ``target``, which is new: a secondary instance has no checkpoint."""
    snapshot = source.snapshot()
    assert snapshot is not None
    with closing(snapshot):
        if source.num_families > 1 or target.num_families > 1:
            target.add_family()
        target.write([], snapshot.meta())
        target.select_families()
        for family in range(source.num_families):
            scan = snapshot.scan(WHOLE._replace(family=family))
            while chunk := scan.fetch():
                target.write([Writes((), dict(chunk), family)], {}, durable=False)
        target.sync()


def mirrored(path: Path, only: Collection[Path] | None = None) -> Mirror:
    """Return a temporary folder with links to the database's files, and copies of those that may be replaced.

    ``only`` are the files that have a link, if they are not all: live files come and go. Raises: OSError.
    """
    mirror = Mirror()
    for file in path.iterdir():
        if file.name in (SETTINGS, "CURRENT"):
            shutil.copyfile(file, Path(mirror.name, file.name))
        elif only is None or file in only:
            Path(mirror.name, file.name).symlink_to(file.absolute())
    return mirror


def _live_options(path: Path) -> Callable[[Options], None]:
    """Return a function that sets the options of a secondary instance of the database in ``path``."""

    def set_options(options: Options) -> None:
        options.set_db_paths([DBPath(str(path.absolute()), 0)])
        options.set_wal_dir(str(path.absolute()))
        # All tables stay open, so that those can be read that the other process removes.
        options.set_max_open_files(-1)

    return set_options
