"""Mutants of a real backend, task or log: each must be detected by the checker that it names.

They are patched into the processes of a trial that asks for one, and exist nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from harness.faults.registry import check_known
from harness.mutants.patch import replace
from stores.changelog.producer import BufferedProducer
from stores.engines.engine import Engine, Writes
from stores.errors import OffsetOutOfRangeError, ProducerFencedError
from stores.failpoints import declare, reach
from stores.interface import Position, TopicPartition
from stores.registry import Backend
from stores.strategies.store import EngineStore
from stores.tasks.stores import task_store
from stores.tasks.stores.restore import restore
from stores.tasks.stores.store_group import StoreGroup

SEGMENT_BYTES = 8
"""The length of the prefix of a key in a window or session store that names its segment."""

HALF_WRITTEN = declare("sabotage.half_written", "a commit that should be one write has done the first of two")
BETWEEN = declare("sabotage.between", "of outputs and input offsets, one is committed and the other is not")

FAILPOINTS = (HALF_WRITTEN, BETWEEN)

Settings = dict[str, bool]
"""Further arguments for the task."""


@dataclass(frozen=True, slots=True)
class Sabotage:
    """A defect: its description, the checker that must detect it, and the function that builds it in."""

    meaning: str
    convicted_by: str
    apply: Callable[[type[Engine], type[EngineStore]], Settings]


def sabotage(name: str | None, backend: Backend) -> Settings:
    """Build the mutant ``name`` into this process; None builds in none. Raises: ConfigError for an unknown name."""
    if name is None:
        return {}
    check_known("sabotage", SABOTAGES, name)
    return SABOTAGES[name].apply(backend.load_engine(), backend.load_strategy())


def _offsets_before_data(engine: type[Engine], strategy: type[EngineStore]) -> Settings:
    def first_and_rest(layers: Sequence[Writes]) -> tuple[list[Writes], list[Writes]]:
        return [], list(layers)

    return _in_two_writes(engine, first_and_rest, meta_first=True)


def _torn_commit(engine: type[Engine], strategy: type[EngineStore]) -> Settings:
    def first_and_rest(layers: Sequence[Writes]) -> tuple[list[Writes], list[Writes]]:
        parts = [(layer, list(layer.writes.items())) for layer in layers]
        return (
            [Writes(layer.ranges, dict(pairs[: len(pairs) // 2])) for layer, pairs in parts],
            [Writes((), dict(pairs[len(pairs) // 2 :])) for _, pairs in parts],
        )

    return _in_two_writes(engine, first_and_rest, meta_first=False)


def _segments_apart(engine: type[Engine], strategy: type[EngineStore]) -> Settings:
    def first_and_rest(layers: Sequence[Writes]) -> tuple[list[Writes], list[Writes]]:
        newest = max((key[:SEGMENT_BYTES] for layer in layers for key in layer.writes), default=b"")

        def part(layer: Writes, *, is_newest: bool) -> dict[bytes, bytes | None]:
            return {key: value for key, value in layer.writes.items() if key.startswith(newest) is is_newest}

        return (
            [Writes(layer.ranges, part(layer, is_newest=True)) for layer in layers],
            [Writes((), part(layer, is_newest=False)) for layer in layers],
        )

    return _in_two_writes(engine, first_and_rest, meta_first=True)


def _in_two_writes(
    engine: type[Engine],
    first_and_rest: Callable[[Sequence[Writes]], tuple[list[Writes], list[Writes]]],
    *,
    meta_first: bool,
) -> Settings:
    write = engine.write

    def broken(
        self: Engine, layers: Sequence[Writes], meta: Mapping[bytes, bytes | None], *, durable: bool = True
    ) -> None:
        if not layers:
            write(self, layers, meta, durable=durable)
            return
        first, rest = first_and_rest(layers)
        write(self, first, meta if meta_first else {}, durable=durable)
        reach(HALF_WRITTEN)
        write(self, rest, {} if meta_first else meta, durable=durable)

    replace(engine, "write", broken)
    return {}


def _early_acknowledgement(engine: type[Engine], strategy: type[EngineStore]) -> Settings:
    commit = strategy.commit
    asked: dict[str, int] = {}

    def broken(self: EngineStore, changelog_offsets: Mapping[TopicPartition, int | None] | None = None) -> None:
        asked[self.name] = asked.get(self.name, 0) + 1
        if asked[self.name] % 2 == 0:
            commit(self, changelog_offsets)

    replace(strategy, "commit", broken)
    return {}


def _write_through(engine: type[Engine], strategy: type[EngineStore]) -> Settings:
    put = strategy.put

    def broken(self: EngineStore, key: bytes, value: bytes | None) -> None:
        put(self, key, value)
        self._engine.put(key, value)

    replace(strategy, "put", broken)
    return {}


def _forgetful_restore(engine: type[Engine], strategy: type[EngineStore]) -> Settings:
    restore = strategy.restore

    def broken(
        self: EngineStore,
        pairs: Iterable[tuple[bytes, bytes | None]],
        changelog_offsets: Mapping[TopicPartition, int],
        position: Position | None = None,
    ) -> None:
        restore(self, list(pairs)[:-1], changelog_offsets, position)

    replace(strategy, "restore", broken)
    return {}


def _restore_from_start(engine: type[Engine], strategy: type[EngineStore]) -> Settings:
    def broken(store: Any, changelog: Any, partition: TopicPartition, offset: int | None, *rest: Any) -> Any:
        return restore(store, changelog, partition, None, *rest)

    replace(task_store, "restore", broken)
    return {}


def _newest_offset_wins(engine: type[Engine], strategy: type[EngineStore]) -> Settings:
    up_to_date: set[str] = set()

    def broken(store: Any, changelog: Any, partition: TopicPartition, offset: int | None, *rest: Any) -> Any:
        last = changelog.end_offset(partition) - 1
        if offset == last:
            up_to_date.add(store.name)
        return restore(store, changelog, partition, last if up_to_date else offset, *rest)

    replace(task_store, "restore", broken)
    return {}


def _one_offset_for_all(engine: type[Engine], strategy: type[EngineStore]) -> Settings:
    commit = StoreGroup.commit

    def broken(self: StoreGroup, offsets: Mapping[TopicPartition, int], position: Position) -> None:
        # Outputs have offsets as well, which are never passed to a store.
        logged = [offsets[partition] for partition in self.partitions if partition in offsets]
        commit(self, dict.fromkeys(self.partitions, max(logged)) if logged else offsets, position)

    replace(StoreGroup, "commit", broken)
    return {}


def _kept_beyond_reach(engine: type[Engine], strategy: type[EngineStore]) -> Settings:
    def broken(store: Any, changelog: Any, partition: TopicPartition, offset: int | None, *rest: Any) -> Any:
        try:
            return restore(store, changelog, partition, offset, *rest)
        except OffsetOutOfRangeError:
            return restore(store, changelog, partition, None, *rest)

    replace(task_store, "restore", broken)
    return {}


def _wiped_on_timeout(engine: type[Engine], strategy: type[EngineStore]) -> Settings:
    def broken(self: Any, cause: BaseException, *rest: Any) -> Any:
        self._wipe("a commit has timed out")
        return self.restore(*rest)

    replace(task_store.TaskStore, "return_to_commit", broken)
    return {}


def _zombie_commits(engine: type[Engine], strategy: type[EngineStore]) -> Settings:
    commit = BufferedProducer.commit

    def broken(self: BufferedProducer) -> Mapping[TopicPartition, int]:
        try:
            return commit(self)
        except ProducerFencedError:
            self.abort()
            return {}

    replace(BufferedProducer, "commit", broken)
    return {}


def _skipped_wipe(engine: type[Engine], strategy: type[EngineStore]) -> Settings:
    return {"wipe_unclean": False}


def _inputs_after_outputs(engine: type[Engine], strategy: type[EngineStore]) -> Settings:
    return _inputs_apart(inputs_first=False)


def _inputs_before_outputs(engine: type[Engine], strategy: type[EngineStore]) -> Settings:
    return _inputs_apart(inputs_first=True)


def _inputs_apart(*, inputs_first: bool) -> Settings:
    commit = BufferedProducer.commit
    waiting: list[tuple[str, Mapping[TopicPartition, int]]] = []

    def set_aside(self: BufferedProducer, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        waiting.append((group, dict(offsets)))

    def send_waiting(self: BufferedProducer) -> None:
        plain = BufferedProducer(self._log, None)
        for group, offsets in waiting:
            send_offsets(plain, group, offsets)
        waiting.clear()

    def broken(self: BufferedProducer) -> Mapping[TopicPartition, int]:
        if inputs_first:
            send_waiting(self)
            reach(BETWEEN)
        committed = commit(self)
        if not inputs_first:
            reach(BETWEEN)
            send_waiting(self)
        return committed

    send_offsets = BufferedProducer.send_offsets
    replace(BufferedProducer, "send_offsets", set_aside)
    replace(BufferedProducer, "commit", broken)
    return {}


SABOTAGES: Mapping[str, Sabotage] = MappingProxyType(
    {
        "offsets_before_data": Sabotage(
            "a commit writes its offsets first, and its data in a second write", "atomicity", _offsets_before_data
        ),
        "torn_commit": Sabotage(
            "a commit writes half of its data first, and the rest with its offsets in a second write",
            "atomicity",
            _torn_commit,
        ),
        "segments_apart": Sabotage(
            "a window store commits its newest segment with the offsets first, and the older ones in a second write, "
            "as in Kafka",
            "atomicity",
            _segments_apart,
        ),
        "early_acknowledgement": Sabotage(
            "every other commit of a store returns at once, and is made up for by the next one",
            "durability",
            _early_acknowledgement,
        ),
        "write_through": Sabotage("a put goes straight into the engine as well", "uncommitted", _write_through),
        "skipped_wipe": Sabotage(
            "a direct store is not wiped after an abort or an unclean end", "uncommitted", _skipped_wipe
        ),
        "forgetful_restore": Sabotage(
            "a restore leaves out the last record of each piece", "convergence", _forgetful_restore
        ),
        "newest_offset_wins": Sabotage(
            "once one store of a task is at its changelog's end, the others are taken to be at theirs",
            "convergence",
            _newest_offset_wins,
        ),
        "one_offset_for_all": Sabotage(
            "each store of a task commits the highest changelog offset of all of them",
            "atomicity",
            _one_offset_for_all,
        ),
        "kept_beyond_reach": Sabotage(
            "a store that its changelog no longer reaches back to is restored without a wipe",
            "bounded_restore",
            _kept_beyond_reach,
        ),
        "wiped_on_timeout": Sabotage(
            "a commit that times out has every store wiped and restored, as in Kafka", "fallback", _wiped_on_timeout
        ),
        "zombie_commits": Sabotage(
            "a producer hides that it is fenced, and the stores commit what the changelog refused",
            "atomicity",
            _zombie_commits,
        ),
        "inputs_after_outputs": Sabotage(
            "input offsets are committed by themselves, after the outputs (KIP-129, duplicates)",
            "outputs",
            _inputs_after_outputs,
        ),
        "inputs_before_outputs": Sabotage(
            "input offsets are committed by themselves, before the outputs (KIP-129, losses)",
            "outputs",
            _inputs_before_outputs,
        ),
        "restore_from_start": Sabotage(
            "a restore replays the whole changelog, whatever the store has", "bounded_restore", _restore_from_start
        ),
    }
)
