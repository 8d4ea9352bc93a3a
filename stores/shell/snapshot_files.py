"""The commands for snapshots of stores by files: ``txstores snapshots list|verify|restore|prune LOCATION``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

from stores.errors import ConfigError, StoreCorruptedError, StoreError, StoreIncompatibleError, nearest
from stores.files.creation import is_unfinished, is_unused
from stores.files.folder import Folder, open_folder
from stores.files.identity import present_version
from stores.files.plain_files import translated_system_errors
from stores.registry import backend_named
from stores.shell.decoding import Line, as_json, as_text
from stores.snapshots.index import IndexName, SnapshotIndex
from stores.snapshots.objects import StoreObjects, folder_name, partition_of
from stores.snapshots.pruning import prune
from stores.snapshots.restoring import make_store
from stores.snapshots.settings import GRACE_MS, KEEP, THREADS

DAMAGED = 1


def add_snapshot_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``snapshots`` with its own commands. Each sets ``run``, which returns the exit status."""
    text = "list, verify, restore or remove snapshots of stores by files"
    group = commands.add_parser("snapshots", help=text, description=f"{text[0].upper()}{text[1:]}.")
    own = group.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        parser = own.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        parser.add_argument("location", metavar="LOCATION", help="where they are: a path, or a URI of pyarrow.fs")
        parser.add_argument("--json", action="store_true", help="print JSON, one object per line")
        parser.set_defaults(run=run)
        return parser

    command("list", _list, "print the snapshots of all stores, the newest of each first")
    command("verify", _verify, "read the snapshots of all stores whole; status 1 if one is damaged")
    restoring = command("restore", _restore, "make a store of the newest snapshot of one that is whole")
    restoring.add_argument("store", metavar="STORE", help="the changelog partition of the store, as list prints it")
    restoring.add_argument("path", metavar="PATH", type=Path, help="the folder of the new store: empty, or none yet")
    restoring.add_argument("--offset", type=int, metavar="N", help="only that snapshot, by its offset")
    pruning = command("prune", _prune, "remove old snapshots, and objects that none names")
    pruning.add_argument(
        "--keep", type=int, default=KEEP, metavar="N", help=f"the snapshots of each store to keep, {KEEP} by default"
    )
    pruning.add_argument(
        "--grace-s",
        type=float,
        default=GRACE_MS / 1_000,
        metavar="SECONDS",
        help="nothing is removed that an upload or a restore has needed for so long; an hour by default",
    )


def _list(args: argparse.Namespace) -> int:
    for objects in _stores_in(args.location):
        for name in objects.indexes():
            _print(args, {"store": _store_of(objects), "offset": name.offset, **_facts(objects, name)})
    return 0


def _facts(objects: StoreObjects, name: IndexName) -> Line:
    try:
        index = objects.index(name)
    except StoreCorruptedError as error:
        return {"problem": str(error)}
    return {
        "taken": datetime.fromtimestamp(index.created_ms / 1_000, UTC).isoformat(timespec="seconds"),
        "backend": index.kind.backend,
        "files": len(index.files) + len(index.changes),
        "parts": len(list(index.parts())),
        "bytes": index.num_bytes,
    }


def _verify(args: argparse.Namespace) -> int:
    damaged = 0
    for objects in _stores_in(args.location):
        sound: set[str] = set()
        for name in objects.indexes():
            problem = _problem(objects, name, sound)
            damaged += problem is not None
            _print(args, {"store": _store_of(objects), "offset": name.offset, "problem": problem or "none"})
    return DAMAGED if damaged else 0


def _problem(objects: StoreObjects, name: IndexName, sound: set[str]) -> str | None:
    """Return the damage of a snapshot, None if there is none. ``sound`` are the objects that were read before."""
    try:
        index: SnapshotIndex = objects.index(name)
        for part in index.parts():
            if str(part) not in sound:
                objects.fetch(part)
                sound.add(str(part))
    except StoreCorruptedError as error:
        return str(error)
    return None


def _restore(args: argparse.Namespace) -> int:
    objects, path = _store_named(args), args.path
    with translated_system_errors(path):
        if os.path.lexists(path) and not (path.is_dir() and (is_unused(path) or is_unfinished(path))):
            raise ConfigError(
                f"{path} is there already, and nothing of it is replaced: name a folder that does not exist"
            )
    names = [name for name in objects.indexes() if args.offset in (None, name.offset)]
    if not names:
        of_offset = "" if args.offset is None else f" of offset {args.offset}"
        raise ConfigError(f"{args.store} has no snapshot{of_offset} in {args.location}: see txstores snapshots list")
    for name in names:
        try:
            index = _restored(objects, name, path)
        except StoreError as error:
            print(f"The snapshot of offset {name.offset} was not used: {error}", file=sys.stderr)
            continue
        facts = {"offset": index.offset, "backend": index.kind.backend, "bytes": index.num_bytes, "path": str(path)}
        _print(args, {"store": args.store, **facts})
        return 0
    return DAMAGED


def _restored(objects: StoreObjects, name: IndexName, path: Path) -> SnapshotIndex:
    """Make the store of a snapshot; return its index. Raises: as ``make_store``; ConfigError for an unknown backend."""
    index = objects.index(name)
    if index.kind.format_version != present_version():
        raise StoreIncompatibleError(f"it has the format version {index.kind.format_version}, not {present_version()}")
    make_store(objects, index, path, backend_named(index.kind.backend), THREADS)
    return index


def _prune(args: argparse.Namespace) -> int:
    if args.keep < 1 or not 0 <= args.grace_s < float("inf"):
        raise ConfigError(f"--keep is 1 or more and --grace-s 0 or more, not {args.keep} and {args.grace_s}")
    for objects in _stores_in(args.location):
        removed = prune(objects, args.keep, args.grace_s)
        _print(
            args,
            {
                "store": _store_of(objects),
                "removed_snapshots": removed.num_indexes,
                "removed_objects": removed.num_objects,
                "removed_bytes": removed.num_bytes,
            },
        )
    return 0


def _stores_in(location: str) -> Iterator[StoreObjects]:
    """Return the objects of each store, and say so if there is none."""
    folder: Folder = open_folder(location, for_reading=True)
    partitions = [partition for name in folder.folders() if (partition := partition_of(name)) is not None]
    if not partitions:
        print(f"{location} has no snapshots.", file=sys.stderr)
    for partition in partitions:
        yield StoreObjects(folder, partition)


def _store_named(args: argparse.Namespace) -> StoreObjects:
    stores = {_store_of(objects): objects for objects in _stores_in(args.location)}
    if args.store not in stores:
        near = nearest(args.store, stores)
        raise ConfigError(f"{args.location} has no snapshots of {args.store}{near}: see txstores snapshots list")
    return stores[args.store]


def _store_of(objects: StoreObjects) -> str:
    return unquote(folder_name(objects.partition))


def _print(args: argparse.Namespace, line: Line) -> None:
    print((as_json if args.json else as_text)(line))
