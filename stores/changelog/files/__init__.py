"""A changelog of versions in a folder, on any file system of ``pyarrow.fs``: one immutable file for each commit.

``VersionLog`` is not a ``Changelog``. A ``Changelog`` appends records whose offsets its log gives out, in transactions
of a producer that fences the one before. Here the caller names the version, two attempts may write the same one, and
the file system decides which of them did. There is no producer that lives longer than one commit.
"""

from stores.changelog.files.format import Header, StoreChanges
from stores.changelog.files.partition_log import PartitionLog, Retention
from stores.changelog.files.version_log import VersionLog
from stores.files.folder import Folder, open_folder

__all__ = ["Folder", "Header", "PartitionLog", "Retention", "StoreChanges", "VersionLog", "open_folder"]
