"""The journal of a relocation: the moves, with the stores' entries in the files of their tasks.

It lies in the state directory while stores are moved. A process that finds it there carries it out from the beginning:

1. remove the entries of the stores from the checkpoint and origin files of both tasks; the journal has them;
2. rename each store, unless that was done;
3. write the entries into the files of the tasks that have the stores now;
4. note the layout of the directory, if the layout changes;
5. remove folders that are left empty, and the journal.

So no file ever has an offset of a store that is not beside it. If neither task has a store that the journal names, the
store is gone, and its entries are dropped. JSON with a checksum.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stores.errors import ConfigError, StoreCorruptedError
from stores.failpoints import Part, declare, reach
from stores.files.creation import is_plain
from stores.files.plain_files import StrangeFileError, make_folder, read_json, sync_folder
from stores.interface import TopicPartition
from stores.tasks.directory.entry_files import Origin, checksum
from stores.tasks.directory.placement import Move, StoreEntries
from stores.tasks.directory.replacement import carry_out, decide
from stores.tasks.directory.state_directory import LOCK_FILE
from stores.tasks.directory.store_places import JOURNAL_BYTES_MAX, JOURNAL_FILE, DirectoryLayout, parts, write_layout
from stores.tasks.identifier import Home, StorePartition, TaskId, check_stores

ENTRIES_TAKEN = declare(
    "relocation.entries_taken", "no file has entries of the stores, which are where they were", part=Part.CHANGE
)
ENTRIES_WRITTEN = declare(
    "relocation.entries_written", "the entries are beside their stores; the journal is still there", part=Part.CHANGE
)
LAYOUT_NOTED = declare(
    "relocation.layout_noted",
    "the directory notes its new layout, which its stores have; the journal is still there",
    part=Part.CHANGE,
)
FAILPOINTS = (ENTRIES_TAKEN, ENTRIES_WRITTEN, LAYOUT_NOTED)
"""The failpoints of a relocation between those of every replacement. LAYOUT_NOTED is reached if the layout changes."""


@dataclass(frozen=True)
class Journal:
    """The plan of a relocation."""

    moves: tuple[Move, ...]
    taken: Mapping[Home, tuple[str, ...]] = field(default_factory=dict)
    """The changelog topics whose offsets are removed from the checkpoint file of a task."""
    offsets: Mapping[Move, Mapping[str, int]] = field(default_factory=dict)
    """The offsets that move with a store, by changelog topic."""
    origins: Mapping[Move, Origin] = field(default_factory=dict)
    layout: DirectoryLayout | None = None
    """The new layout of the directory, if the layout changes."""

    @property
    def homes(self) -> list[Home]:
        """The owners of the folders that give or get a store, always in the same order."""
        return sorted({home for move in self.moves for home in (move.source, move.target)}, key=str)

    def write(self, state: Path) -> None:
        """Write the journal to the state directory; durable on return. Raises: OSError."""
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
        content = {
            "version": 1,
            "moves": moves,
            "taken": {str(home): list(topics) for home, topics in self.taken.items()},
        }
        if self.layout is not None:
            content["layout"] = self.layout
        decide(state / JOURNAL_FILE, json.dumps({**content, "checksum": checksum(content)}) + "\n")

    @classmethod
    def read(cls, state: Path) -> Journal | None:
        """Return the journal of the state directory, None if there is none. Raises: StoreCorruptedError; OSError."""
        file = state / JOURNAL_FILE
        try:
            content: Any = read_json(file, JOURNAL_BYTES_MAX)
        except FileNotFoundError:
            return None
        except StrangeFileError:
            raise
        except ValueError:
            content = None
        # Its writer may have been killed before its name was synced.
        sync_folder(state)
        try:
            if content.pop("checksum") == checksum(content) and content["version"] == 1:
                moves = {_move_of(each): each for each in content["moves"]}
                return cls(
                    tuple(moves),
                    {_home_of(home): tuple(map(_topic, topics)) for home, topics in content["taken"].items()},
                    {move: _offsets_in(each["offsets"]) for move, each in moves.items()},
                    {move: Origin(each["origin"]) for move, each in moves.items() if each["origin"] is not None},
                    DirectoryLayout(content["layout"]) if "layout" in content else None,
                )
        except (AttributeError, KeyError, TypeError, ValueError, ConfigError):
            pass
        raise StoreCorruptedError(
            f"{file} is damaged. It is the journal of a relocation: remove it, and start again with the topology. "
            "Stores in the wrong place are found by their names, and those without an offset are restored"
        )

    def carry_out(self, state: Path) -> None:
        """Carry out the journal, or complete it. The tasks among its ``homes`` are locked. Raises: OSError."""
        moves: defaultdict[Home, list[Move]] = defaultdict(list)
        for move in self.moves:
            moves[move.source].append(move)
            moves[move.target].append(move)
        for home in self.homes:
            self._take_entries(state, home, moves[home])
        reach(ENTRIES_TAKEN)

        def settle() -> None:
            for home in self.homes:
                self._write_entries(state, home, moves[home])
            reach(ENTRIES_WRITTEN)
            if self.layout is not None:
                write_layout(state, self.layout)
                reach(LAYOUT_NOTED)
            for home in self.homes:
                tidy(state, home, {move.engine for move in moves[home]})

        carry_out(state / JOURNAL_FILE, self._renames(state), settle)

    def _take_entries(self, state: Path, home: Home, moves: Iterable[Move]) -> None:
        """Remove the entries of the moved stores from the files of one task, or of one store's own folder."""
        entries = StoreEntries(state, home)
        if entries.folder.is_dir():
            topics = self.taken.get(home, ())
            entries.remove({TopicPartition(topic, home.partition) for topic in topics}, {move.store for move in moves})

    def _renames(self, state: Path) -> Iterator[tuple[Path, Path]]:
        target_folders: dict[Path, None] = {}
        source_folders: dict[Path, None] = {}
        for move in self.moves:
            source, target = move.path(state, move.source), move.path(state, move.target)
            for part in parts(source):
                name = target.with_name(target.name + part.name.removeprefix(source.name))
                if not os.path.lexists(name):
                    make_folder(target.parent, 0o700)
                    yield part, name
            position = state / str(move.source) / f"{move.store}.position"
            # It moves along with a store that has imported no offset yet.
            replaced = state / str(move.target) / position.name
            is_moved = os.path.lexists(position) and is_plain(position) and is_plain(replaced)
            if is_moved and self._has_arrived(state, move):
                yield position, replaced
            # Sync these also if an earlier attempt renamed the store and was interrupted before the sync.
            for folders, home, path in ((target_folders, move.target, target), (source_folders, move.source, source)):
                folders.update(dict.fromkeys((path.parent, state / str(home))))
        for folder in (*target_folders, *source_folders):
            if folder.is_dir():
                sync_folder(folder)

    @staticmethod
    def _has_arrived(state: Path, move: Move) -> bool:
        source, target = move.path(state, move.source), move.path(state, move.target)
        return not parts(source) and bool(parts(target))

    def _write_entries(self, state: Path, home: Home, moves: Iterable[Move]) -> None:
        arrived = [move for move in moves if move.target == home and self._has_arrived(state, move)]
        offsets = {
            TopicPartition(topic, home.partition): offset
            for move in arrived
            for topic, offset in self.offsets.get(move, {}).items()
        }
        origins = {move.store: self.origins[move] for move in arrived if move in self.origins}
        StoreEntries(state, home).add(offsets, origins)


def planned(state: Path, moves: Iterable[Move], known: Iterable[str], application_id: str | None = None) -> Journal:
    """Return the journal for ``moves``, with the entries that the files of their tasks have now.

    ``known`` are the stores' names in the topology. Without ``application_id`` the end of a changelog topic's name
    identifies the store. The offset of a topic that fits two stores moves with neither; a store that needs it is
    restored. All entries in a store's own folder are those of the store. Raises: OSError.
    """
    journal = Journal(tuple(moves))
    out: defaultdict[Home, dict[str, Move]] = defaultdict(dict)
    into: defaultdict[Home, set[str]] = defaultdict(set)
    for move in journal.moves:
        out[move.source][move.store] = move
        into[move.target].add(move.store)
    removals: dict[Home, tuple[str, ...]] = {}
    offsets: defaultdict[Move, dict[str, int]] = defaultdict(dict)
    origins: dict[Move, Origin] = {}
    common = set(known)
    for home in journal.homes:
        entries = StoreEntries(state, home)
        leaving, moving = out[home], out[home].keys() | into[home]
        topics = []
        for partition, offset in entries.offsets().items():
            stores = entries.owners(partition, common, application_id)
            if moving & set(stores):
                topics.append(partition.topic)
                if len(stores) == 1 and stores[0] in leaving:
                    offsets[leaving[stores[0]]][partition.topic] = offset
        removals[home] = tuple(topics)
        origins |= {leaving[store]: origin for store, origin in entries.origins().items() if store in leaving}
    return Journal(journal.moves, removals, offsets, origins)


def _move_of(content: Mapping[str, Any]) -> Move:
    """Parse a move. Raises: KeyError, TypeError, ValueError, ConfigError."""
    for name in (content["store"], content["engine"]):
        check_stores([name])
    return Move(content["store"], content["engine"], _home_of(content["from"]), _home_of(content["to"]))


def _offsets_in(content: Mapping[str, object]) -> dict[str, int]:
    """Parse the offsets by topic. Raises: AttributeError, ValueError."""
    offsets = {}
    for topic, offset in content.items():
        if type(offset) is not int or not 0 <= offset < 1 << 63:
            raise ValueError(f"{offset!r} is no offset")
        offsets[_topic(topic)] = offset
    return offsets


def _topic(name: object) -> str:
    """Return ``name``, if it can be a topic in a checkpoint file. Raises: ValueError."""
    if not isinstance(name, str) or not name.isascii() or name.split() != [name]:
        raise ValueError(f"{name!r} is no topic")
    return name


def _home_of(content: str) -> Home:
    return StorePartition.parse(content) if "/" in content else TaskId.parse(content)


def tidy(state: Path, home: Home, engines: Iterable[str] = ()) -> None:
    """Remove empty folders of ``engines`` and of ``home``, whose lock file may be left. No task may have it open."""
    folder = state / str(home)
    # In a store's own folder, the folder with the engine's name is the store.
    for engine in engines if isinstance(home, TaskId) else ():
        if not (folder / engine).is_symlink():
            with suppress(OSError):
                (folder / engine).rmdir()
    with suppress(OSError):
        if [entry.name for entry in folder.iterdir()] == [LOCK_FILE]:
            (folder / LOCK_FILE).unlink()
        folder.rmdir()
    if isinstance(home, StorePartition):
        with suppress(OSError):
            folder.parent.rmdir()
