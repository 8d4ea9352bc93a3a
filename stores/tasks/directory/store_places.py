"""The places of a task's stores in its folder, and the move of an older release's stores to them.

    0_3/rocksdb/counts    the store ``counts`` of the engine ``rocksdb``
    0_3/counts.position   a position file of Kafka's, beside the engines' folders
    0_3/counts            the store in earlier releases
    0_3/.layout/rocksdb   a store named like an engine, on its way from ``0_3/rocksdb`` to ``0_3/rocksdb/rocksdb``

Nothing here opens a store. Links are never followed. Source: KIP-816, "Background"; Kafka Streams, ``StateDirectory``.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from stores.errors import StoreCorruptedError, StoreIncompatibleError
from stores.failpoints import Part, declare, reach
from stores.files.creation import LOCK_FILE, is_store, is_unused
from stores.files.identity import read_identity
from stores.files.plain_files import make_folder, sync_folder
from stores.registry import backends, engines
from stores.tasks.directory.streams_folders import is_segmented_store, is_streams_store
from stores.tasks.stores.swap import ENDS, beside

PARKED = ".layout"

STORE_PARKED = declare(
    "layout.store_parked", "a store named like an engine has left the place of the engine's folder", part=Part.CHANGE
)
STORE_MOVED = declare(
    "layout.store_moved", "a store of an earlier release lies below its engine's folder", part=Part.CHANGE
)
FAILPOINTS = (STORE_PARKED, STORE_MOVED)
"""The failpoints in the opening of a task with stores in an earlier release's layout, for each of these stores."""


class Place(NamedTuple):
    """The place of a store in its task's folder."""

    engine: str | None
    """None for a store of an earlier release, in the task's folder itself."""
    store: str

    def within(self, folder: Path) -> Path:
        """Return the path of the store in the task's folder ``folder``."""
        return folder / self.store if self.engine is None else folder / self.engine / self.store


def places(folder: Path, names: Collection[str] = ()) -> list[Place]:
    """Return the places of the stores in the task's folder ``folder``, in order, from a listing of its engines.

    A folder of an earlier release counts if it is a store of the library, or its name is among ``names`` and it is no
    window or session store of Kafka Streams. A folder below one of an engine that is not installed counts if it is a
    store of the library. Raises: OSError.
    """
    found = []
    for entry in _folders(folder):
        if entry.name == PARKED or entry.name.endswith(ENDS):
            continue
        if entry.name in engines():
            inner = list(os.scandir(entry.path))
            if any(_is_part(part) for part in inner) and _is_old(Path(entry.path)):
                found.append(Place(None, entry.name))
                continue
            names_of = {_store_of(part.name) for part in inner if part.is_dir(follow_symlinks=False)}
            found += [Place(entry.name, name) for name in names_of]
        elif is_store(Path(entry.path)) or (entry.name in names and not is_segmented_store(Path(entry.path))):
            found.append(Place(None, entry.name))
        else:
            stores = {_store_of(part.name) for part in _folders(Path(entry.path)) if is_store(Path(part.path))}
            found += [Place(entry.name, name) for name in stores]
    return sorted(found, key=lambda place: (place.engine or "", place.store))


def parts(path: Path) -> list[Path]:
    """Return the existing parts of the store at ``path``: its folder, and those of an upgrade beside it. No links."""
    return [part for part in _names(path) if os.path.lexists(part) and not part.is_symlink()]


def is_taken(path: Path) -> bool:
    """Return whether a name of a store at ``path``, or of an upgrade beside it, is taken, even by a link."""
    return any(map(os.path.lexists, _names(path)))


def move_old_stores(folder: Path, chosen: Mapping[str, str]) -> None:
    """Move each store of an earlier release in ``folder``, whose lock is held, below its engine's folder.

    ``chosen`` is the configured engine by store: it is used for a store whose files do not name an engine. There is one
    rename per store. An interrupted call is completed by the next one. Durable on return.

    Raises: StoreIncompatibleError if both places have a store of one name; OSError.
    """
    old = {
        place.store: engine
        for place in places(folder, chosen)
        if place.engine is None and (engine := _engine_of(folder / place.store, chosen.get(place.store)))
    }
    parked = folder / PARKED
    names = engines() | set(chosen.values()) | set(old.values())
    for name in sorted(old):
        target = folder / old[name] / name
        if os.path.lexists(target) and old[name] not in old:
            if is_unused(folder / name):
                del old[name]
                continue
            raise StoreIncompatibleError(
                f"both {folder / name} and {target} hold the store {name!r}: remove one of them, and start again"
            )
    for name in sorted(set(old) & names):
        _move(folder / name, parked / name)
        reach(STORE_PARKED)
    for name in sorted(set(old) - names):
        _move(folder / name, folder / old[name] / name)
        reach(STORE_MOVED)
    for entry in list(_folders(parked)):
        engine = _engine_of(Path(entry.path), chosen.get(entry.name))
        if engine is not None:
            _move(Path(entry.path), folder / engine / entry.name)
            reach(STORE_MOVED)
    with suppress(OSError):
        parked.rmdir()


def own_engines(folder: Path) -> list[str]:
    """Return the engines that have a store in a store's own folder (``store-partition``), in order. Raises: OSError."""
    names = {
        _store_of(entry.name) for entry in _folders(folder) if entry.name in engines() or is_store(Path(entry.path))
    }
    return sorted(names)


def check_engine_of(name: str, path: Path) -> None:
    """Check that no other engine has the store ``name`` beside ``path``. Raises: StoreIncompatibleError; OSError."""
    for engine in own_engines(path.parent):
        other = path.with_name(engine)
        if other != path and not (other.is_dir() and is_unused(other)):
            raise _other_engine(other, name, engine, path.name)


def check_engines(folder: Path, chosen: Mapping[str, str]) -> None:
    """Check that no store of ``chosen`` (engine by name) lies below the folder of another engine.

    Raises: StoreIncompatibleError: the checkpoint file can't say which of two stores an offset belongs to; OSError.
    """
    for place in places(folder):
        engine = chosen.get(place.store)
        path = place.within(folder)
        if engine is None or place.engine in (None, engine) or (path.is_dir() and is_unused(path)):
            continue
        # The store of the other engine takes over one of Kafka Streams.
        if not is_streams_store(path):
            raise _other_engine(path, place.store, place.engine, engine)


def _other_engine(path: Path, store: str, present: str | None, chosen: str) -> StoreIncompatibleError:
    return StoreIncompatibleError(
        f"{path} contains the store {store!r} of the engine {present}, and its configuration names {chosen}: "
        f"configure {present} for it, or remove {path} to restore it from its changelog"
    )


def _folders(folder: Path) -> Iterator[os.DirEntry[str]]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        yield from (entry for entry in entries if entry.is_dir(follow_symlinks=False))


def _names(path: Path) -> list[Path]:
    return [path, *(beside(path, end) for end in ENDS)]


def _store_of(name: str) -> str:
    """Return the name of the store to which the folder ``name`` belongs: it may be one of an upgrade beside it."""
    return next((name.removesuffix(end) for end in ENDS if name.endswith(end)), name)


def _is_part(entry: os.DirEntry[str]) -> bool:
    """Return whether ``entry`` is a file. Its folder is then that of a store: an engine's folder has no files."""
    return entry.is_file(follow_symlinks=False)


def _is_old(path: Path) -> bool:
    """Return whether a folder named like an engine is a store of an earlier release, complete or not."""
    return is_store(path) or (is_unused(path) and os.path.lexists(path / LOCK_FILE))


def _engine_of(path: Path, chosen: str | None) -> str | None:
    """Return the engine of the store at ``path``: the one that its files name, or else ``chosen``."""
    try:
        backend = backends().get(read_identity(path).backend)
    except (StoreCorruptedError, OSError):
        return chosen
    return chosen if backend is None else backend.engine


def _move(source: Path, target: Path) -> None:
    make_folder(target.parent, 0o700)
    source.rename(target)
    sync_folder(target.parent)
    sync_folder(source.parent)
