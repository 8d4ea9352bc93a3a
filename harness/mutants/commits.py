"""Mutants of a store's commit: it is not one write, or is not durable when it returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, cast

from harness.mutants.mutant import CrashDetection, IoFault, ReaderDetection, isolates, mutant
from harness.mutants.patches import Meta, Patches, Write, engine_of, folders_of, instead_of_writes, opened_with
from stores.engines.engine import Engine, Transaction, TransactionalEngine, Writes
from stores.errors import CommitFailedError
from stores.failpoints import Part, declare, failpoint, reach
from stores.interface import Durability, TopicPartition
from stores.registry import backends
from stores.strategies.sst_ingest import INGESTED, RECOVER_BEFORE_REMOVAL
from stores.strategies.store import Store

SEGMENT_BYTES = 8
"""The length of the prefix of a key in a window or session store that names its segment."""

HALF_WRITTEN = declare("mutant.half_written", "a commit that should be one write has done the first of several")


def syncs_by_level(name: str) -> bool:
    """Return True for a backend that isolates writes, and whose engine syncs because of the level of durability."""
    # RocksDB syncs what it ingests, whatever the level is.
    return isolates(name) and INGESTED not in backends()[name].failpoints


@mutant("a store at DISK opens its engine without syncs", IoFault("power", syncs_by_level, unseen_by="kill"))
def _no_sync(patches: Patches, subject: str) -> None:
    opened_with(patches, engine_of(subject), lambda path, durability, options: (Durability.PROCESS, options))


@mutant(
    "every other commit of a store returns at once, and the next one makes up for it",
    IoFault("kill", isolates),
    CrashDetection("durability"),
)
def _early_acknowledgement(patches: Patches, subject: str) -> None:
    commit = Store.commit
    asked: dict[str, int] = {}

    def mutated(self: Store, changelog_offsets: Mapping[TopicPartition, int | None] | None = None) -> None:
        asked[self.name] = asked.get(self.name, 0) + 1
        if asked[self.name] % 2 == 0:
            commit(self, changelog_offsets)

    patches.replace(Store, "commit", mutated)


@mutant("a commit that failed is acknowledged all the same", IoFault("error", isolates, variant="EIO once"))
def _swallowed_error(patches: Patches, subject: str) -> None:
    commit = Store.commit

    def mutated(self: Store, changelog_offsets: Mapping[TopicPartition, int | None] | None = None) -> None:
        try:
            commit(self, changelog_offsets)
        except CommitFailedError:
            self.rollback()

    patches.replace(Store, "commit", mutated)


@mutant("a put also writes into the engine at once", CrashDetection("uncommitted"))
def _write_through(patches: Patches, subject: str) -> None:
    engine = engine_of(subject)
    folders = folders_of(patches, engine)
    put = Store.put

    def mutated(self: Store, key: bytes, value: bytes | None) -> None:
        put(self, key, value)
        for opened, folder in folders.items():
            if folder.name == "data" and self.name in folder.parts:
                opened.put(key, value)

    patches.replace(Store, "put", mutated)


class _OneWrite(Transaction):
    """A transaction whose commit is one ``write`` of its engine, where a mutant can divide it, instead of its own."""

    def __init__(self, engine: Engine, own: Transaction) -> None:
        self._engine, self._own = engine, own
        self._layers: list[Writes] = []

    def get(self, key: bytes, family: int = 0) -> bytes | None:
        return self._own.get(key, family)

    def fetch(self, *range_and_most: Any, **direction: Any) -> tuple[list[tuple[bytes, bytes]], bool]:
        return self._own.fetch(*range_and_most, **direction)

    def put(self, key: bytes, value: bytes | None, family: int = 0) -> None:
        self._own.put(key, value, family)
        if not self._layers or self._layers[-1].family != family:
            self._layers.append(Writes((), {}, family))
        cast(dict[bytes, bytes | None], self._layers[-1].writes)[key] = value

    def delete_range(self, start: bytes | None, end: bytes | None, family: int = 0) -> None:
        self._own.delete_range(start, end, family)
        self._layers.append(Writes([(start, end)], {}, family))

    def commit(self, meta: Meta) -> None:
        self._own.abort()
        self._engine.write(self._layers, meta)

    def abort(self) -> None:
        self._own.abort()


Division = Callable[[Sequence[Writes], Meta], Iterable[tuple[Sequence[Writes], Meta]]]
"""Return the writes into which a mutant divides one."""


def in_several_writes(divide: Division, of: type[Engine] | None = None) -> Callable[[Patches, str], None]:
    """Return the builder of a mutant that divides each commit into the writes that ``divide`` yields, and its name.

    It is built into the engine ``of``, or into that of the subject.
    """

    @wraps(divide)
    def build(patches: Patches, subject: str) -> None:
        engine = of or engine_of(subject)
        if issubclass(engine, TransactionalEngine):
            begin = engine.begin
            patches.replace(engine, "begin", lambda self: _OneWrite(self, begin(self)))

        def divided(self: Engine, write: Write, layers: Sequence[Writes], meta: Meta, durable: bool) -> None:
            if not layers or not meta:
                write(self, layers, meta, durable=durable)
                return
            for number, (some, entries) in enumerate(divide(layers, meta)):
                if number == 1:
                    reach(HALF_WRITTEN)
                    time.sleep(0)
                write(self, some, entries, durable=durable)

        instead_of_writes(patches, engine, divided)

    return build


def commits_once(name: str) -> bool:
    """Return True for a backend whose commit is one write: recovery repeats no commit of ordinary size."""
    return isolates(name) and not any(map(_repeats_ordinary_commits, backends()[name].failpoints))


@mutant(
    "a commit writes its offsets first, and its data in a second write",
    IoFault("kill", commits_once),
    CrashDetection("atomicity"),
)
@in_several_writes
def _offsets_before(layers: Sequence[Writes], meta: Meta) -> Iterable[tuple[Sequence[Writes], Meta]]:
    return [([], meta), (layers, {})]


@mutant("a commit writes its data first, and its offsets in a second write", IoFault("kill", commits_once))
@in_several_writes
def _offsets_after(layers: Sequence[Writes], meta: Meta) -> Iterable[tuple[Sequence[Writes], Meta]]:
    return [(layers, {}), ([], meta)]


@mutant(
    "a commit writes half of its data first, and the rest with its offsets in a second write",
    CrashDetection("atomicity"),
    ReaderDetection("indexed-batch"),
)
@in_several_writes
def _torn_commit(layers: Sequence[Writes], meta: Meta) -> Iterable[tuple[Sequence[Writes], Meta]]:
    parts = [(layer, list(layer.writes.items())) for layer in layers]
    return [
        ([Writes(layer.ranges, dict(pairs[: len(pairs) // 2]), layer.family) for layer, pairs in parts], {}),
        ([Writes((), dict(pairs[len(pairs) // 2 :]), layer.family) for layer, pairs in parts], meta),
    ]


@mutant("a commit is one write for each key", IoFault("kill", commits_once))
@in_several_writes
def _write_per_key(layers: Sequence[Writes], meta: Meta) -> Iterable[tuple[Sequence[Writes], Meta]]:
    for layer in layers:
        yield [Writes(layer.ranges, {}, layer.family)], {}
        for key, value in layer.writes.items():
            yield [Writes((), {key: value}, layer.family)], {}
    yield [], meta


@mutant(
    "a window store commits segment by segment, the newest first, with the offsets (KIP-258, as in Kafka)",
    IoFault("kill", commits_once, records="window"),
    CrashDetection("atomicity"),
)
@in_several_writes
def _segments_one_by_one(layers: Sequence[Writes], meta: Meta) -> Iterable[tuple[Sequence[Writes], Meta]]:
    segments = {key[:SEGMENT_BYTES] for layer in layers for key in layer.writes}
    newest = max(segments, default=b"")
    for segment in sorted(segments | {newest}, reverse=True):
        part = [
            Writes(
                layer.ranges if segment == newest else (),
                {key: value for key, value in layer.writes.items() if key[:SEGMENT_BYTES] == segment},
                layer.family,
            )
            for layer in layers
        ]
        yield part, meta if segment == newest else {}


def _repeats_ordinary_commits(name: str) -> bool:
    """Return True for a failpoint of a recovery that a kill in a commit of ordinary size leads to."""
    if name == RECOVER_BEFORE_REMOVAL:
        return False
    point = failpoint(name)
    earlier = point.after_at(Durability.DISK)
    return point.part is Part.RECOVERY and not (earlier and failpoint(earlier).options)
