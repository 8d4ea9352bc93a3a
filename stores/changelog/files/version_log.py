"""A version log: its folder, its description, and the logs of its partitions."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from secrets import token_hex
from zlib import crc32

from stores.changelog.files.folder import ASIDE, Folder, PutIfAbsent, open_folder
from stores.changelog.files.format import FORMAT
from stores.changelog.files.names import DESCRIPTION
from stores.changelog.files.partition_log import PartitionLog, Retention
from stores.errors import ChangelogError, ChangelogLostError, StoreIncompatibleError


class VersionLog:
    """The log of a number of partitions in one folder. It holds no file open, and any process may use it.

    A *version* is a number, 0 or more, that the caller gives: for a streaming query, that of its batch. The first
    attempt that puts the file of a version in place has written it, and no file changes after that.
    """

    def __init__(self, folder: Folder, log_id: str, description: Mapping[str, object], retention: Retention) -> None:
        """Use ``VersionLog.open``, or ``open_or_create``."""
        self._folder = folder
        self._retention = retention
        self.id = log_id
        """Unique to this folder, from its creation on: state of another log never goes on with this one."""
        self.description = description
        """The properties that the log was created with; ``partitions`` is one of them."""

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        number = self.description["partitions"]
        assert isinstance(number, int)
        return number

    @property
    def location(self) -> str:
        """The folder's location."""
        return self._folder.location

    @classmethod
    def open_or_create(
        cls,
        location: str | os.PathLike[str],
        description: Mapping[str, object],
        *,
        retention: Retention | None = None,
        put_if_absent: PutIfAbsent | None = None,
    ) -> VersionLog:
        """Open the log in a folder; create it with ``description``, values of JSON, if the folder has none.

        Raises: StoreIncompatibleError if it was created with another description, which names both values of each
        difference, or the folder has other files; ChangelogLostError for partitions without a description; ConfigError;
        StoreUnavailableError.
        """
        folder = open_folder(location, put_if_absent)
        if DESCRIPTION not in folder.names():
            if folder.names("p00000"):
                raise ChangelogLostError(
                    f"{folder.location} has versions, and no {DESCRIPTION}: bring that file back from a copy, or "
                    "choose another folder"
                )
            others = sorted(name for name in folder.names() if not name.startswith(".") and not name.endswith(ASIDE))
            if others:
                raise StoreIncompatibleError(
                    f"{folder.location} belongs to another application: it has the file {others[0]!r}, and no "
                    f"{DESCRIPTION}. Choose a new or empty folder"
                )
            content = {"format": FORMAT, "id": token_hex(16), "description": dict(description)}
            folder.put_if_absent(DESCRIPTION, _summed(content))
        log = cls._opened(folder, retention)
        given = json.loads(json.dumps(dict(description)))
        different = [
            f"{name} {_shown(log.description.get(name))} (given: {_shown(given.get(name))})"
            for name in sorted({*log.description, *given})
            if log.description.get(name) != given.get(name)
        ]
        if different:
            raise StoreIncompatibleError(
                f"the state in {folder.location} was created with {', '.join(different)}: give the same values, or "
                "choose another folder"
            )
        return log

    @classmethod
    def open(
        cls,
        location: str | os.PathLike[str],
        *,
        retention: Retention | None = None,
        put_if_absent: PutIfAbsent | None = None,
    ) -> VersionLog:
        """Open the log in a folder. Raises: ChangelogError if there is none or it is damaged; else as above."""
        return cls._opened(open_folder(location, put_if_absent, for_reading=True), retention)

    @classmethod
    def _opened(cls, folder: Folder, retention: Retention | None) -> VersionLog:
        try:
            content = folder.read(DESCRIPTION)
        except FileNotFoundError:
            raise ChangelogError(f"{folder.location} has no {DESCRIPTION}: name the folder of a version log") from None
        try:
            found = json.loads(content)
            sound = content == _summed({name: found[name] for name in ("format", "id", "description")})
        except (ValueError, KeyError, TypeError):
            sound = False
        if not sound:
            raise ChangelogError(f"{folder.location}/{DESCRIPTION} is damaged: bring it back from a copy")
        if found["format"] != FORMAT:
            raise ChangelogError(
                f"{folder.location} has format {found['format']}, and this release reads {FORMAT}: read it with the "
                "release that wrote it"
            )
        return cls(folder, found["id"], found["description"], retention or Retention())

    def partition(self, partition: int) -> PartitionLog:
        """Return the log of a partition. Raises: ValueError if there is no such partition."""
        if not 0 <= partition < self.partitions:
            raise ValueError(f"{self.location} has partitions 0 to {self.partitions - 1}, not {partition}")
        return PartitionLog(self._folder, partition, self._retention)

    def newest_complete(self) -> int | None:
        """Return the newest version that each partition has reached, None if one of them has no version.

        A version that only some partitions have belongs to a batch that is not done.
        """
        reached = [self.partition(number).listing().newest for number in range(self.partitions)]
        return None if None in reached else min(number for number in reached if number is not None)


def _summed(content: Mapping[str, object]) -> bytes:
    plain = json.dumps(content, sort_keys=True)
    return json.dumps({**content, "checksum": crc32(plain.encode())}, sort_keys=True).encode()


def _shown(value: object) -> str:
    return "none" if value is None else json.dumps(value, sort_keys=True)
