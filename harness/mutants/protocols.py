"""Mutants of protocols that belong to no backend: migration, offset import, removal, and a task's commit.

Each function patches the process that it runs in, a child of the fork server.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from harness.mutants.patch import replace
from stores.engines.engine import Engine, Writes
from stores.engines.split import OLD
from stores.errors import StoreLockedError
from stores.files.creation import wipe
from stores.files.identity import STEPS, OpenEngine, present_version
from stores.files.locks import take
from stores.files.plain_files import replace_file, sync_folder
from stores.files.store_directory import StoreDirectory
from stores.interface import KeyValueStore, TopicPartition
from stores.records.split import UpgradingReader
from stores.records.timestamps import SURROGATE
from stores.registry import Backend
from stores.strategies import opening
from stores.tasks.context import NO_PARTITION, TaskContext
from stores.tasks.directory import directory_layout, process_file
from stores.tasks.directory.checkpoint_file import CheckpointFile
from stores.tasks.directory.directory_layout import write_layout
from stores.tasks.directory.relocation_journal import Journal
from stores.tasks.directory.state_directory import CHECKPOINT_FILE, StateDirectory
from stores.tasks.stores import offset_import as adoption
from stores.tasks.stores import upgrading
from stores.tasks.stores.restore import Restored, restore
from stores.tasks.stores.store_group import StoreGroup
from stores.tasks.stores.swap import PREPARE_END, beside
from stores.tasks.timing.stream_time import StreamTime


def migration_noted_first(subject: str) -> None:
    """Record the next format version when a migration step opens the engine, before it has written data."""

    def broken(directory: StoreDirectory, open_engine: OpenEngine) -> None:
        def opened(folder: Path) -> Engine:
            directory.identify(directory.identity._replace(format_version=version + 1))
            return open_engine(folder)

        while (version := directory.identity.format_version) < present_version():
            STEPS[version - 1](directory.path, opened)

    replace(opening, "migrate", broken)


def upgraded_outside(subject: str) -> None:
    """Delete an old record at once when it is converted, and write the new record with the commit."""

    def broken(self: UpgradingReader, key: bytes) -> bytes | None:
        store: Any = self._staging.store
        old = store.get(OLD + key) if store.is_split else None
        if old is None:
            return get(self, key)
        store._engine.write([Writes((), {OLD + key: None})], {})
        self._staging.put_unlogged(key, SURROGATE + old)
        return SURROGATE + cast(bytes, old)

    get = UpgradingReader.get
    replace(UpgradingReader, "get", broken)


def swapped_without_note(subject: str) -> None:
    """Delete the old store, then rename the new one, without the file that says the new one counts."""

    def broken(path: Path) -> None:
        wipe(path)
        beside(path, PREPARE_END).rename(path)
        sync_folder(path.parent)

    replace(upgrading, "swap", broken)


def stepped_offset_first(subject: str) -> None:
    """Write the offset of an upgrade's step into the new store before the step's records."""

    def broken(store: KeyValueStore, *given: Any, **named: Any) -> Restored:
        write = store.restore

        def apart(pairs: Any, offsets: Any, position: Any = None, marks: Any = None) -> None:
            write([], offsets, position, marks)
            write(pairs, {})

        broken_store: Any = store
        broken_store.restore = apart
        try:
            return restore(store, *given, **named)
        finally:
            del broken_store.restore

    replace(upgrading, "restore", broken)


def adopted_before_import(subject: str) -> None:
    """Name the new backend first, and only then write the offsets into the store."""
    write = adoption._write

    def broken(directory: StoreDirectory, backend: Backend, *given: Any) -> None:
        directory.identify(directory.identity._replace(backend=backend.name))
        write(directory, backend, *given)

    replace(adoption, "_write", broken)


def one_offset_for_all(subject: str) -> None:
    """Commit every store of a task with the highest offset of all their changelogs."""
    commit = StoreGroup.commit

    def broken(self: StoreGroup, offsets: Mapping[TopicPartition, int], *given: Any, **named: Any) -> None:
        logged = [offsets[partition] for partition in self.partitions if partition in offsets]
        commit(self, dict.fromkeys(self.partitions, max(logged)) if logged else offsets, *given, **named)

    replace(StoreGroup, "commit", broken)


def stream_time_forgotten(subject: str) -> None:
    """Commit the input's offsets without the stream time."""
    replace(StreamTime, "uncommitted", lambda time: {})


def punctuated_outside(subject: str) -> None:
    """Send the records that a punctuator forwards at once, outside the task's transaction."""
    forward = TaskContext.forward

    def broken(self: TaskContext, topic: str, *given: Any, **named: Any) -> None:
        producer = self.producer
        if self.partition == NO_PARTITION:
            self.producer = self._changelog.producer()
        try:
            forward(self, topic, *given, **named)
            if self.producer is not producer:
                self.producer.flush()
        finally:
            self.producer = producer

    replace(TaskContext, "forward", broken)


def removed_in_place(subject: str) -> None:
    """Remove a task's folder in place, one file after the other."""

    def broken(self: StateDirectory, folder: Path, oldest: float) -> bool:
        try:
            os.close(take(folder / ".lock", note=False))
        except StoreLockedError:
            return False
        shutil.rmtree(folder)
        return True

    replace(StateDirectory, "_removed", broken)


def checkpoint_before_folder(subject: str) -> None:
    """Copy a store's offsets into the checkpoint file of its new task, then move its folder."""

    def broken(self: Journal, state: Path) -> None:
        for move in self.moves:
            file = CheckpointFile(state / str(move.target) / CHECKPOINT_FILE)
            offsets = self.offsets.get(move, {})
            file.write({**file.read(), **{TopicPartition(topic, 0): offset for topic, offset in offsets.items()}})
        carry_out(self, state)

    carry_out = Journal.carry_out
    replace(Journal, "carry_out", broken)
    # Without a journal, recovery cannot repair this.
    replace(Journal, "write", lambda self, state: None)


def layout_noted_last(subject: str) -> None:
    """Carry out and remove the journal of a layout change, then record the new layout."""

    def broken(self: Journal, state: Path) -> None:
        carry_out(dataclasses.replace(self, layout=None), state)
        if self.layout is not None:
            write_layout(state, self.layout)

    carry_out = Journal.carry_out
    replace(Journal, "carry_out", broken)


def unsynced_layout(subject: str) -> None:
    """Write the layout of a state directory without a sync."""

    def broken(file: Path, text: str) -> None:
        replace_file(file, text, durable=False)

    replace(directory_layout, "replace_file", broken)
    replace(directory_layout, "sync_folder", lambda folder: None)


def unsynced_process_id(subject: str) -> None:
    """Return the ID of a state directory before its file is synced."""

    def broken(path: Path, text: str) -> None:
        replace_file(path, text, durable=False)

    replace(process_file, "replace_file", broken)
    replace(process_file, "sync_folder", lambda folder: None)
