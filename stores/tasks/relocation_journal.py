"""The journal of a relocation: what is moved where, with the stores' entries in the files of their tasks.

It lies in the state directory while stores are on their way. Whoever finds it there carries it out, from its beginning:

1. take the entries of the stores out of the checkpoint and origin files of both tasks: the journal has them;
2. rename each store, unless that was done;
3. write the entries into the files of the tasks that have the stores now;
4. note the layout of the directory, if that is what changes;
5. remove folders that are left empty, and the journal.

So no file ever says of a store that is not beside it which offset it is at. What the journal names and neither task has
is gone, and so are its entries. JSON with a checksum.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from stores.errors import ConfigError, StoreCorruptedError
from stores.failpoints import declare, reach
from stores.files import StrangeFileError, make_folder, read_json, replace_file, sync_folder
from stores.interface import TopicPartition
from stores.tasks.checkpoint import CheckpointFile
from stores.tasks.directory_layout import JOURNAL_BYTES_MAX, JOURNAL_FILE, DirectoryLayout, write_layout
from stores.tasks.identifier import Home, StorePartition, TaskId
from stores.tasks.layout import parts, places
from stores.tasks.names import check_stores
from stores.tasks.origin_file import Origin, OriginFile
from stores.tasks.placement import Move
from stores.tasks.state_directory import CHECKPOINT_FILE, LOCK_FILE, ORIGIN_FILE

RELOCATING_FILE = ".relocating"

PLANNED = declare("relocation.planned", "the journal is durable, and nothing else has changed")
ENTRIES_TAKEN = declare("relocation.entries_taken", "no file has entries of the stores, which are where they were")
STORE_MOVED = declare("relocation.store_moved", "one more store has its new place; no file has entries of it")
STORES_MOVED = declare(
    "relocation.stores_moved", "all stores have their new places, durably; no file has their entries"
)
ENTRIES_WRITTEN = declare(
    "relocation.entries_written", "the entries are beside their stores; the journal is still there"
)
LAYOUT_NOTED = declare(
    "relocation.layout_noted", "the directory notes its new layout, which its stores have; the journal is still there"
)
FINISHED = declare("relocation.finished", "the journal is gone, and all is done")
FAILPOINTS = (PLANNED, ENTRIES_TAKEN, STORE_MOVED, STORES_MOVED, ENTRIES_WRITTEN, FINISHED)
"""What a relocation reaches, in this order; one to another layout reaches LAYOUT_NOTED as well."""


@dataclass(frozen=True)
class Journal:
    """What a relocation does."""

    moves: tuple[Move, ...]
    taken: Mapping[Home, tuple[str, ...]] = field(default_factory=dict)
    """Changelog topics whose offsets leave the checkpoint file of a task."""
    offsets: Mapping[Move, Mapping[str, int]] = field(default_factory=dict)
    """Offset by changelog topic that goes with a store."""
    origins: Mapping[Move, Origin] = field(default_factory=dict)
    layout: DirectoryLayout | None = None
    """What the directory has afterwards, where that changes."""

    @property
    def homes(self) -> list[Home]:
        """The tasks, or stores with a folder of their own, that give or get a store, always in the same order."""
        return sorted({home for move in self.moves for home in (move.source, move.target)}, key=str)

    def write(self, state: Path) -> None:
        """Put it into the state directory; durable on return. Raises: OSError."""
        moves = [
            {
                "store": move.store,
                "engine": move.engine,
                "from": str(move.source),
                "to": str(move.target),
                "offsets": dict(self.offsets.get(move, {})),
                "origin": self.origins.get(move),
            }
            for move in self.moves
        ]
        told = {"version": 1, "moves": moves, "taken": {str(home): list(topics) for home, topics in self.taken.items()}}
        if self.layout is not None:
            told["layout"] = self.layout
        replace_file(state / JOURNAL_FILE, json.dumps({**told, "checksum": _checksum(told)}) + "\n")
        reach(PLANNED)

    @classmethod
    def read(cls, state: Path) -> Journal | None:
        """The journal in the state directory, None if there is none. Raises: StoreCorruptedError; OSError."""
        file = state / JOURNAL_FILE
        try:
            told: Any = read_json(file, JOURNAL_BYTES_MAX)
        except FileNotFoundError:
            return None
        except StrangeFileError:
            raise
        except ValueError:
            told = None
        # Its writer may have been killed before its name was synced.
        sync_folder(state)
        try:
            checksum = told.pop("checksum")
            if told["version"] == 1 and checksum == _checksum(told):
                moves = {_move_of(each): each for each in told["moves"]}
                return cls(
                    tuple(moves),
                    {_home_of(home): tuple(topics) for home, topics in told["taken"].items()},
                    {move: each["offsets"] for move, each in moves.items()},
                    {move: Origin(each["origin"]) for move, each in moves.items() if each["origin"] is not None},
                    DirectoryLayout(told["layout"]) if "layout" in told else None,
                )
        except (AttributeError, KeyError, TypeError, ValueError, ConfigError):
            pass
        raise StoreCorruptedError(
            f"{file} is damaged: it is the journal of a relocation. Remove it, and start again with the topology: "
            "stores that lie in the wrong place are found by their names, and those without an offset are restored"
        )

    def carry_out(self, state: Path) -> None:
        """Do, or complete, what it says; the tasks among its ``homes`` are locked. Raises: OSError."""
        moves: defaultdict[Home, list[Move]] = defaultdict(list)
        for move in self.moves:
            moves[move.source].append(move)
            moves[move.target].append(move)
        for home in self.homes:
            self._take_entries(state, home, moves[home])
        reach(ENTRIES_TAKEN)
        self._move_stores(state)
        reach(STORES_MOVED)
        for home in self.homes:
            self._write_entries(state, home, moves[home])
        reach(ENTRIES_WRITTEN)
        if self.layout is not None:
            write_layout(state, self.layout)
            reach(LAYOUT_NOTED)
        for home in self.homes:
            _tidy(state, home, {move.engine for move in moves[home]})
        (state / JOURNAL_FILE).unlink(missing_ok=True)
        sync_folder(state)
        reach(FINISHED)

    def _take_entries(self, state: Path, home: Home, moves: Iterable[Move]) -> None:
        """Take the entries of all its stores out of the files of one task."""
        folder = state / str(home)
        if not folder.is_dir():
            return
        take_offsets(folder, (TopicPartition(topic, home.partition) for topic in self.taken.get(home, ())))
        take_origins(folder, {move.store for move in moves}, _names(state, home))

    def _move_stores(self, state: Path) -> None:
        made: dict[Path, None] = {}
        left: dict[Path, None] = {}
        for move in self.moves:
            source, target = move.path(state, move.source), move.path(state, move.target)
            for part in parts(source):
                name = target.with_name(target.name + part.name.removeprefix(source.name))
                if not os.path.lexists(name):
                    make_folder(target.parent, 0o700)
                    part.rename(name)
                    reach(STORE_MOVED)
            self._move_position(state, move)
            # Also where an earlier attempt has renamed it, and was cut short before a sync.
            for folders, home, path in ((made, move.target, target), (left, move.source, source)):
                folders.update(dict.fromkeys((path.parent, state / str(home))))
        for folder in (*made, *left):
            if folder.is_dir():
                sync_folder(folder)

    def _move_position(self, state: Path, move: Move) -> None:
        """Let the position file of a store that no task has adopted yet follow it."""
        source, target = (state / str(home) / f"{move.store}.position" for home in (move.source, move.target))
        if source.is_file() and not source.is_symlink() and self._has_arrived(state, move):
            if os.path.lexists(target) and (target.is_symlink() or not target.is_file()):
                return
            source.replace(target)

    @staticmethod
    def _has_arrived(state: Path, move: Move) -> bool:
        source, target = move.path(state, move.source), move.path(state, move.target)
        return not parts(source) and bool(parts(target))

    def _write_entries(self, state: Path, home: Home, moves: Iterable[Move]) -> None:
        folder = state / str(home)
        arrived = [move for move in moves if move.target == home and self._has_arrived(state, move)]
        offsets = {
            TopicPartition(topic, home.partition): offset
            for move in arrived
            for topic, offset in self.offsets.get(move, {}).items()
        }
        if offsets:
            CheckpointFile(folder / CHECKPOINT_FILE).write({**offsets_of(folder), **offsets})
        origins = {move.store: self.origins[move] for move in arrived if move in self.origins}
        if origins:
            file = OriginFile(folder / ORIGIN_FILE)
            file.write({**file.read(_names(state, home) - origins.keys()), **origins})


def planned(state: Path, moves: Iterable[Move], known: Iterable[str], application_id: str | None = None) -> Journal:
    """The journal for ``moves``, with the entries that the files of their tasks have now.

    ``known`` are the stores' names in the topology. Without ``application_id`` a changelog topic is its store's by its
    end; one that could be of two stores goes with neither, and a store that needs it is restored. In a folder of its
    own a store has all the entries. Raises: OSError.
    """
    journal = Journal(tuple(moves))
    out: defaultdict[Home, dict[str, Move]] = defaultdict(dict)
    into: defaultdict[Home, set[str]] = defaultdict(set)
    for move in journal.moves:
        out[move.source][move.store] = move
        into[move.target].add(move.store)
    taken: dict[Home, tuple[str, ...]] = {}
    offsets: defaultdict[Move, dict[str, int]] = defaultdict(dict)
    origins: dict[Move, Origin] = {}
    common = set(known)
    for home in journal.homes:
        folder = state / str(home)
        here = _names(state, home)
        leaving, moving = out[home], out[home].keys() | into[home]
        topics = []
        for (topic, number), offset in offsets_of(folder).items():
            stores = [*here] if isinstance(home, StorePartition) else owners(topic, common | here, application_id)
            if number == home.partition and moving & set(stores):
                topics.append(topic)
                if len(stores) == 1 and stores[0] in leaving:
                    offsets[leaving[stores[0]]][topic] = offset
        taken[home] = tuple(topics)
        found = OriginFile(folder / ORIGIN_FILE).read(here) if folder.is_dir() else {}
        origins |= {move: found[store] for store, move in leaving.items() if store in found}
    return Journal(journal.moves, taken, offsets, origins)


def owners(topic: str, known: set[str], application_id: str | None) -> list[str]:
    """The stores among ``known`` whose changelog the topic may be: APPLICATION-STORE-changelog."""
    name = topic.removesuffix("-changelog")
    if name == topic:
        return []
    if application_id is not None:
        store = name.removeprefix(f"{application_id}-")
        return [store] if store != name and store in known else []
    dashes = [place for place, letter in enumerate(name) if letter == "-" and place]
    return [store for place in dashes if (store := name[place + 1 :]) in known]


def take_offsets(folder: Path, partitions: Iterable[TopicPartition]) -> None:
    """Take the offsets of ``partitions`` out of the checkpoint file in a task's folder."""
    gone = set(partitions)
    found = offsets_of(folder)
    kept = {partition: offset for partition, offset in found.items() if partition not in gone}
    if kept != found:
        CheckpointFile(folder / CHECKPOINT_FILE).write(kept)


def take_origins(folder: Path, stores: Iterable[str], here: Collection[str]) -> None:
    """Take the entries of ``stores`` out of the file of origins in a folder, whose stores are ``here``."""
    file = OriginFile(folder / ORIGIN_FILE)
    gone = set(stores)
    found = file.read(here)
    kept = {store: origin for store, origin in found.items() if store not in gone}
    if kept != found:
        file.write(kept)


def offsets_of(folder: Path) -> dict[TopicPartition, int]:
    """What the checkpoint file in a task's folder says; nothing if it is damaged, which is how a task reads it."""
    try:
        return CheckpointFile(folder / CHECKPOINT_FILE).read()
    except StoreCorruptedError:
        return {}


def _names(state: Path, home: Home) -> set[str]:
    if isinstance(home, StorePartition):
        return {home.store}
    return {place.store for place in places(state / str(home))}


def _move_of(told: Mapping[str, Any]) -> Move:
    """Raises: KeyError, TypeError, ValueError."""
    for name in (told["store"], told["engine"] or told["store"]):
        check_stores([name])
    return Move(told["store"], told["engine"], _home_of(told["from"]), _home_of(told["to"]))


def _home_of(told: str) -> Home:
    return StorePartition.parse(told) if "/" in told else TaskId.parse(told)


def _tidy(state: Path, home: Home, engines: Iterable[str | None]) -> None:
    """Remove empty folders of ``engines``, and the task's folder where nothing is left but its lock.

    A store's own folder goes where nothing is left, and so does the one above it.
    """
    folder = state / str(home)
    if isinstance(home, StorePartition):
        for empty in (folder, folder.parent):
            with suppress(OSError):
                empty.rmdir()
        return
    for engine in engines:
        if engine is not None and not (folder / engine).is_symlink():
            with suppress(OSError):
                (folder / engine).rmdir()
    with suppress(OSError):
        if [entry.name for entry in folder.iterdir()] == [LOCK_FILE]:
            (folder / LOCK_FILE).unlink()
            folder.rmdir()


def _checksum(told: Mapping[str, object]) -> int:
    return crc32(json.dumps(told, sort_keys=True).encode())
