"""Global stores: all partitions of a topic in one store, which each process follows by itself, in a folder of its own.

Functions only read them. A store keeps the offsets of all partitions with its data, and every commit has both. After a
kill it goes on from a commit: the last one, or at the level CHANGELOG an earlier one, ``restore_max_bytes`` before it
at most.

Source: KIP-99; KIP-892, "Atomic Checkpointing".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, Self, TypeVar, overload

from stores.changelog.arguments import check_changelog
from stores.changelog.interface import Changelog
from stores.contract.arguments import check_type
from stores.declarations import check_name
from stores.errors import (
    ConfigError,
    StoreClosedError,
    StoreIncompatibleError,
    StoreLockedError,
)
from stores.files.creation import wipe
from stores.files.locks import take
from stores.files.plain_files import check_no_link, make_folder, translated_system_errors
from stores.files.store_directory import checked_path
from stores.interface import Closeable, PositionBound
from stores.records.handles import Kinds, ViewHandle
from stores.records.record_kind import RecordKind
from stores.registry import backend_named
from stores.snapshots import Snapshots
from stores.tasks.directory.store_places import places
from stores.tasks.first_error import FirstError
from stores.tasks.global_copy import GlobalCopy, GlobalStore
from stores.tasks.identifier import check_application, check_stores
from stores.tasks.on_error import DeadLetterTopic
from stores.tasks.stores.file_snapshots import check_snapshots

View = TypeVar("View")
RECORDS_MAX = 10_000
"""The most records of a commit of one store."""
PROCESSES_MAX = 64
"""The most processes that share a state directory."""
FOLDER, LOCK_FILE = "global", ".lock"


class GlobalStores(Closeable):
    """Stores that tasks read and topics fill. One thread opens, follows and closes them; any thread reads.

        state_dir/global/ENGINE/NAME     a store
        state_dir/global/.lock           held (flock) by its process
        state_dir/global-2/              the same for the second process that shares the state directory

    In a ``with`` block they are opened, brought to the ends of their topics, and closed. Give them to ``StreamTask``,
    whose function then gets a view of each by ``TaskContext.store``, and call ``follow`` again and again. A worker does
    both. Two reads of one record may see different commits.

    ``application_id`` names the transactions of dead letters: all processes of an application have the same one, and
    applications have different ones. With ``snapshots`` a store that is missing begins from the files of one, and the
    processes take turns to make them.

    Raises: TypeError; ConfigError, also for a store with a ``DeadLetterTopic`` if there is no ``application_id``.
    Source: KIP-99; Kafka Streams, ``GlobalStateUpdateTask``.
    """

    def __init__(
        self,
        state_dir: str | PathLike[str],
        changelog: Changelog,
        stores: Mapping[str, GlobalStore],
        *,
        application_id: str | None = None,
        snapshots: Snapshots | None = None,
    ) -> None:
        check_changelog(changelog)
        check_descriptions(stores)
        check_type(snapshots, Snapshots | None, "snapshots is a Snapshots or None")
        if snapshots is not None:
            check_snapshots({name: described.config for name, described in stores.items()}, changelog)
        self._snapshots = snapshots
        self._application_id = _checked_application(application_id, stores)
        self._state, self._changelog, self._stores = checked_path(state_dir), changelog, dict(stores)
        self._copies: dict[str, GlobalCopy] = {}
        self._lock: int | None = None
        self._readable: Mapping[str, GlobalCopy] | None = None
        """The copies from the end of the opening on: before, a store may lack what it has had."""
        self.restored = 0
        """The records that were read since ``open`` was called."""

    def __repr__(self) -> str:
        state = "closed" if self._readable is None else "open"
        return f"<{type(self).__name__} {', '.join(self._stores) or 'none'}, {state}>"

    @property
    def names(self) -> frozenset[str]:
        """The names of the stores."""
        return frozenset(self._stores)

    @property
    def kinds(self) -> Kinds:
        """The descriptions of the stores by name."""
        return {name: described.config.records for name, described in self._stores.items()}

    def __enter__(self) -> Self:
        self.open()
        return self

    def open(self, on_progress: Callable[[int], None] | None = None) -> None:
        """Open the stores, and bring each to the end of its topic as of now.

        ``on_progress`` is called after each commit with the number of offsets that were left before, and while the
        files of a snapshot are fetched; its exception ends the opening. A store that is damaged or does not fit its
        topic is wiped, and read whole. The store that another engine has left under the same name is removed.

        Raises: ChangelogError if a topic does not exist; ChangelogTimeoutError; StoreLockedError if too many processes
        share the state directory; as ``open_store``.
        """
        self.close()
        try:
            folder = self._taken()
            for name, described in self._stores.items():
                place = folder / backend_named(described.config.backend).engine / name
                with translated_system_errors(place):
                    check_no_link(self._state, place)
                    make_folder(place.parent, 0o700)
                self._copies[name] = copy = GlobalCopy(
                    name, place, described, self._changelog, self._application_id, self._snapshots
                )
                copy.open(None if on_progress is None else lambda progress: on_progress(progress.left))
                for other in places(folder):  # Of an earlier configuration.
                    if other.store == name and other.engine != place.parent.name:
                        with suppress(StoreIncompatibleError):  # It is no store's folder.
                            wipe(other.within(folder))
            self._read_to_the_ends(on_progress)
            self._readable = self._copies
        except BaseException:
            self.close()
            raise

    def follow(self, records_max: int = RECORDS_MAX) -> int:
        """Write up to ``records_max`` records into each store, and commit it; return how many were read."""
        self._readable_copies()
        return self._follow(records_max)

    def lag(self) -> int:
        """Return the number of offsets that the stores have not read yet, together. For the thread that follows.

        It is 0 after a ``follow`` that has read all, also if markers of transactions come last. Raises:
        ChangelogTimeoutError.
        """
        return sum(copy.lag(copy.ends()) for copy in self._copies.values())

    def wiped(self) -> dict[str, str]:
        """Return the reason for each store that was wiped when it was opened."""
        return {name: copy.wiped_because for name, copy in self._copies.items() if copy.wiped_because is not None}

    @overload
    def view(self, store: ViewHandle[View], bound: PositionBound | None = None) -> View: ...

    @overload
    def view(self, store: str, bound: PositionBound | None = None) -> Any: ...

    def view(self, store: object, bound: PositionBound | None = None) -> Any:
        """Return a view of the committed state, for any thread, of a store by its description or its name.

        Raises: KeyError, StoreClosedError.
        """
        name = store.name if isinstance(store, RecordKind) else store
        if not isinstance(name, str) or name not in self._stores:
            raise KeyError(name)
        return self._readable_copies()[name].view(bound)

    def views(self) -> dict[str, Any]:
        """Return a view of each store by name. Raises: StoreClosedError."""
        return {name: self.view(name) for name in self._stores}

    def opened(self) -> list[GlobalCopy]:
        """Return the open copies of this process. Raises: StoreClosedError."""
        return list(self._readable_copies().values())

    def close(self) -> None:
        """Close the stores. Their views are closed with them. May be called more than once."""
        self._readable = None
        copies, self._copies = self._copies, {}
        errors = FirstError()
        for copy in copies.values():
            with errors.step():
                copy.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)
        self.restored = 0
        errors.reraise()

    def _follow(self, records_max: int = RECORDS_MAX) -> int:
        read = sum(copy.follow(records_max) for copy in self._copies.values())
        self.restored += read
        return read

    def _read_to_the_ends(self, on_progress: Callable[[int], None] | None) -> None:
        ends = {name: copy.ends() for name, copy in self._copies.items()}
        # If nothing is read, markers, aborted records and gaps are all that is left.
        while (remaining := sum(copy.lag(ends[name]) for name, copy in self._copies.items())) and self._follow():
            if on_progress is not None:
                on_progress(remaining)

    def _taken(self) -> Path:
        """Lock the first folder that no process has, and return it."""
        with translated_system_errors(self._state):
            make_folder(self._state, 0o700)
        for number in range(1, PROCESSES_MAX + 1):
            folder = self._state / (FOLDER if number == 1 else f"{FOLDER}-{number}")
            try:
                with translated_system_errors(folder):
                    check_no_link(self._state, folder)
                    make_folder(folder, 0o700)
                    self._lock = take(folder / LOCK_FILE)
                return folder
            except StoreLockedError:
                continue
        raise StoreLockedError(
            f"{PROCESSES_MAX} processes have global stores in {self._state}: give this one another state directory"
        )

    def _readable_copies(self) -> Mapping[str, GlobalCopy]:
        copies = self._readable
        if copies is None:
            raise StoreClosedError("the global stores are closed: open them")
        return copies


def _checked_application(application_id: str | None, stores: Mapping[str, GlobalStore]) -> str:
    """Return the ID of the application, "" for none if no store needs it. Raises: TypeError, ConfigError."""
    if application_id is not None:
        check_application(application_id)
        return application_id
    for name, described in stores.items():
        if isinstance(described.on_deserialization_error, DeadLetterTopic):
            raise ConfigError(
                f"the dead letters of global store {name!r} are sent in transactions of the application: give "
                "GlobalStores its application_id"
            )
    return ""


def check_descriptions(stores: Mapping[str, GlobalStore]) -> None:
    """Check the descriptions of global stores by name. Raises: TypeError, ConfigError."""
    check_type(stores, Mapping, "global stores are a mapping of names to GlobalStore")
    check_stores(stores)
    for name, described in stores.items():
        check_type(described, GlobalStore, f"global store {name!r} needs a GlobalStore")
        check_name(name, described.store)


def check_apart(global_names: Collection[str], names: Collection[str]) -> None:
    """Check that no store of a task has the name of a global store. Raises: ConfigError."""
    check_stores(sorted({*global_names, *names}))
    for name in sorted(set(global_names).intersection(names)):
        raise ConfigError(f"{name!r} is the name of a global store and of a store of a task: rename one of them")
