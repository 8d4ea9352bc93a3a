"""A version log: its folder, its description, and the logs of its partitions."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from secrets import token_hex
from typing import Any
from zlib import crc32

from stores.changelog.files.format import ADDED, DESCRIPTION, FORMAT
from stores.changelog.files.partition_log import PartitionLog, Retention
from stores.errors import ChangelogError, ChangelogLostError, ConfigError, StoreIncompatibleError
from stores.files.folder import ASIDE, Folder, PutIfAbsent, open_folder
from stores.files.plain_files import parsed_json

PARTITIONS_MAX = 99_999
"""The most partitions of a log."""
_STORES = "stores"
"""The property of a description that has a value for each store, by name."""


class VersionLog:
    """The log of a number of partitions in one folder. It holds no file open, and any process may use it.

    A *version* is a number, 0 or more, that the caller gives: for a streaming query, that of its batch. The first
    attempt that puts the file of a version in place has written it, and no file changes after that.
    """

    def __init__(self, folder: Folder, log_id: str, description: Mapping[str, Any], retention: Retention) -> None:
        """Use ``VersionLog.open``, or ``open_or_create``."""
        self._folder, self.location = folder, folder.location
        self._retention = retention
        self._created = description
        self.partitions: int = description["partitions"]
        self.id = log_id
        """Unique to this folder, from its creation on: state of another log is refused."""

    @cached_property
    def description(self) -> Mapping[str, object]:
        """The properties that the log was created with, and the stores that were added. Read when it is first used.

        Raises: ChangelogError if the file of the added stores is damaged; StoreUnavailableError.
        """
        try:
            content = self._folder.read(ADDED)
        except FileNotFoundError:
            return self._created
        document = _checked(content, f"{self.location}/{ADDED}", ("format", "id", _STORES))
        if document["id"] != self.id:
            raise ChangelogError(f"{self.location}/{ADDED} is that of another log: bring its own back from a copy")
        return {**self._created, _STORES: {**_stores_of(self._created), **document[_STORES]}}

    @classmethod
    def open_or_create(
        cls,
        location: str | os.PathLike[str],
        description: Mapping[str, object],
        *,
        retention: Retention | None = None,
        put_if_absent: PutIfAbsent | None = None,
        may_add: Collection[str] = (),
    ) -> VersionLog:
        """Open the log in a folder; create it with ``description``, values of JSON, if the folder has none.

        Stores of the description that are named in ``may_add`` are added to a log that was created without them. Only
        name a store for which "it has nothing" is right in each version so far.

        Raises: StoreIncompatibleError if it was created with another description, which names both values of each
        difference, or the folder has other files; ChangelogLostError for partitions without a description; ConfigError;
        StoreUnavailableError.
        """
        if not _is_description(dict(description)):
            raise ConfigError(f"a log has 1 to {PARTITIONS_MAX:,} partitions, and stores by name: {dict(description)}")
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
        plain = json.loads(json.dumps(dict(description)))
        of_log = log.description
        new_names = (_stores_of(plain).keys() & set(may_add)) - _stores_of(of_log).keys()
        new_stores = {name: kind for name, kind in _stores_of(plain).items() if name in new_names}
        if new_stores:
            of_log = {**of_log, _STORES: {**_stores_of(of_log), **new_stores}}
        different = _differences(of_log, plain)
        if different:
            raise StoreIncompatibleError(
                f"the state in {folder.location} was created with {', '.join(different)}: give the same values, or "
                "choose another folder"
            )
        if new_stores:
            folder.put_if_absent(ADDED, _summed({"format": FORMAT, "id": log.id, _STORES: new_stores}))
            log = cls._opened(folder, retention)
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
        document = _checked(content, f"{folder.location}/{DESCRIPTION}", ("format", "id", "description"))
        return cls(folder, document["id"], document["description"], retention or Retention())

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


def _checked(content: bytes, what: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Return what ``_summed`` was given, which had ``names``.

    Raises: ChangelogError if it is damaged or newer, or has what the library never writes.
    """
    document: Any = None
    try:
        document = parsed_json(content)
        del document["checksum"]
        sound = content == _summed(document)
    except (ValueError, KeyError, TypeError):
        sound = False
    # Another format may have other names.
    if not sound or (document.get("format") == FORMAT and document.keys() != {*names}):
        raise ChangelogError(f"{what} is damaged: bring it back from a copy")
    if document.get("format") != FORMAT:
        raise ChangelogError(
            f"{what} has format {document.get('format')}, and this release reads {FORMAT}: read it with the release "
            "that wrote it"
        )
    checks: Mapping[str, Callable[[Any], bool]] = {
        "format": lambda value: True,
        "id": lambda value: isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) is not None,
        "description": _is_description,
        _STORES: lambda value: isinstance(value, dict),
    }
    # The ID becomes the name of a folder on each executor.
    for name, value in document.items():
        if not checks[name](value):
            raise ChangelogError(
                f"{what} has {name} {_shown(value)[:200]}, which this library never writes: bring it back from a copy"
            )
    checked: dict[str, Any] = document
    return checked


def _is_description(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get(_STORES, {}), dict):
        return False
    partitions = value.get("partitions")
    return type(partitions) is int and 1 <= partitions <= PARTITIONS_MAX


def _stores_of(description: Mapping[str, object]) -> Mapping[str, object]:
    stores = description.get(_STORES)
    return stores if isinstance(stores, dict) else {}


def _differences(kept: Mapping[str, object], given: Mapping[str, object]) -> list[str]:
    """Return each property with both values, and of the stores only those that differ."""
    ours, theirs = _by_store(kept), _by_store(given)
    return [
        f"{name} {_shown(ours.get(name))} (given: {_shown(theirs.get(name))})"
        for name in sorted({*ours, *theirs})
        if ours.get(name) != theirs.get(name)
    ]


def _by_store(description: Mapping[str, object]) -> dict[str, object]:
    stores = {f"store {name}": kind for name, kind in _stores_of(description).items()}
    return {**{name: value for name, value in description.items() if name != _STORES or not stores}, **stores}


def _shown(value: object) -> str:
    return "none" if value is None else json.dumps(value, sort_keys=True)
