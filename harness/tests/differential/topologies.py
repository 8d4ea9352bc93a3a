"""The topologies in ours, and a worker of one of them; ``Topologies.java`` has the same in Kafka Streams.

``python -m harness.tests.differential.topologies TOPOLOGY NAME PROPERTIES [MUTANT]``
"""

from __future__ import annotations

import sys
from typing import Any

from confluent_kafka import Producer

from harness.mutants import patch
from harness.mutants.mutant import Patches
from harness.processes.child import end_with_starter
from harness.tests.differential.trial import (
    COUNT,
    GAP_MS,
    GRACE_MS,
    JOIN,
    LETTERS,
    RETENTION_MS,
    SESSIONS,
    SIZE_MS,
    WINDOWS,
)
from stores.changelog.interface import Record
from stores.changelog.partitioners import of_murmur2
from stores.records import INT64, STR, KeyValue, Session, TimestampedKeyValue, Window, Windowed
from stores.settings import Properties
from stores.tasks import DeadLetterTopic, TaskContext
from stores.worker import Application, Processor, Topic
from stores.worker.settings import read_properties

STORE = "store"
OURS = "ours"
_KINDS: dict[str, Any] = {
    COUNT: TimestampedKeyValue(key=STR, value=INT64),
    WINDOWS: Window(key=STR, value=INT64, size_ms=SIZE_MS, retention_ms=RETENTION_MS, timestamped=True),
    SESSIONS: Session(key=STR, value=INT64, retention_ms=RETENTION_MS),
    JOIN: TimestampedKeyValue(key=STR, value=STR),
    LETTERS: KeyValue(key=STR, value=INT64),
}


class Topology:
    """The functions of one trial, whose topics begin with ``name``."""

    def __init__(self, topology: str, name: str) -> None:
        self._topology, self._name = topology, name
        self._output, self._letters = f"{name}-{OURS}-output", f"{name}-{OURS}-letters"

    def application(self) -> Application:
        """Return the application."""
        texts = [Topic(f"{self._name}-{each}", key=STR, value=STR) for each in self._inputs()]
        letters = DeadLetterTopic(self._letters)
        functions = {
            COUNT: self._count,
            WINDOWS: self._windows,
            SESSIONS: self._sessions,
            JOIN: self._join,
            LETTERS: self._number,
        }
        processor = Processor(
            texts,
            functions[self._topology],
            {STORE: _KINDS[self._topology]},
            on_error=letters if self._topology == LETTERS else "raise",
        )
        return Application(f"{self._name}-{OURS}", processor)

    def _inputs(self) -> list[str]:
        return ["table", "input"] if self._topology == JOIN else ["input"]

    def _count(self, record: Record[str, str], context: TaskContext) -> None:
        """Count as ``KGroupedStream.count()``, which drops a record without a key or a value."""
        if record.key is None or record.value is None:
            return
        counts = context.store(STORE)
        before = counts.get(record.key)
        count = 1 if before is None else before.value + 1
        time_ms = record.timestamp_ms if before is None else max(before.timestamp_ms, record.timestamp_ms)
        counts.put(record.key, count, time_ms)
        context.forward(self._output, record.key.encode(), b"%d" % count, time_ms)

    def _windows(self, record: Record[str, str], context: TaskContext) -> None:
        """Count as ``TimeWindowedKStream.count()``, which drops a record without a key."""
        if record.key is None:
            return
        windows, time_ms = context.store(STORE), record.timestamp_ms
        if windows.update(record.key, time_ms, lambda count: (count or 0) + 1, grace_ms=GRACE_MS) is None:
            return
        start_ms = time_ms // SIZE_MS * SIZE_MS
        count = windows.fetch_one(record.key, start_ms)
        self._forward_windowed(context, f"{record.key}@{start_ms}", b"%d" % count.value, count.timestamp_ms)

    def _sessions(self, record: Record[str, str], context: TaskContext) -> None:
        """Count as ``SessionWindowedKStream.count()``: a tombstone for each session that is merged comes first.

        Only a session of the record's own time alone has none: its key stays.
        """
        if record.key is None:
            return
        sessions, time_ms = context.store(STORE), record.timestamp_ms
        with sessions.find_sessions(record.key, time_ms - GAP_MS, time_ms + GAP_MS) as pairs:
            parts = [session for session, _ in pairs]
        found = sessions.merge(record.key, time_ms, GAP_MS, lambda counts: sum(counts) + 1, grace_ms=GRACE_MS)
        if found is None:
            return
        merged, count = found
        for part in parts if merged != Windowed(record.key, time_ms, time_ms) else ():
            self._forward_session(context, part, None)
        self._forward_session(context, merged, b"%d" % count)

    def _forward_session(self, context: TaskContext, session: Windowed[str], value: bytes | None) -> None:
        key = f"{session.key}@{session.start_ms}-{session.end_ms}"
        self._forward_windowed(context, key, value, session.end_ms)

    def _forward_windowed(self, context: TaskContext, key: str, value: bytes | None, time_ms: int) -> None:
        context.forward(self._output, key.encode(), value, time_ms, partitioner=_by_key)

    def _join(self, record: Record[str, str], context: TaskContext) -> None:
        """Join as ``KStream.join(KTable)``; a record of the table without a value deletes."""
        table = context.store(STORE)
        if record.key is None:
            return
        if context.partition.topic.endswith("-table"):
            if record.value is None:
                table.delete(record.key)
            else:
                table.put(record.key, record.value, record.timestamp_ms)
            return
        other = table.get(record.key)
        if record.value is not None and other is not None:
            context.forward(self._output, record.key.encode(), f"{record.value}/{other.value}".encode())

    def _number(self, record: Record[str, str], context: TaskContext) -> None:
        """Number the amounts of a key. One that is no number raises after the write."""
        numbers, headers = context.store(STORE), context.record.headers
        if record.key is None:
            raise ValueError("a record without a key")
        if record.value is None:
            numbers.delete(record.key)
            context.forward(self._output, record.key.encode(), None, headers=headers)
            return
        number = (numbers.get(record.key) or 0) + 1
        numbers.put(record.key, number)
        context.forward(self._output, record.key.encode(), b"%d:%d" % (number, int(record.value)), headers=headers)


def _by_key(key: bytes, partitions: int) -> int:
    """Return one partition for all outputs of a key, whatever their window is."""
    return of_murmur2(key.partition(b"@")[0], partitions)


def properties_of(settings: dict[str, Any]) -> Properties:
    """Return the properties of a worker of ours for the settings of a trial, with ``address`` and ``state``."""
    # By its name a worker aborts what the killed one has left open. Otherwise readers wait for the timeout.
    named = {"group.instance.id": "worker"} if settings["scope"] == "thread" else {}
    return {
        **named,
        "bootstrap.servers": settings["address"],
        "state.dir": settings["state"],
        "store.backend": settings["backend"],
        "transaction.scope": settings["scope"],
        "commit.interval.ms": str(settings["commit_interval_ms"]),
        "session.timeout.ms": str(settings["session_timeout_ms"]),
        "status.interval.ms": "0",
    }


OUTSIDE = "outputs-outside"
"""A defect beside those of ``harness.mutants``: outputs are sent at once, outside of the transaction."""


def _send_outside(address: str) -> None:
    producer = Producer({"bootstrap.servers": address, "partitioner": "murmur2_random"})

    def forward(
        context: TaskContext, topic: str, key: bytes, value: bytes, time_ms: int = -1, headers: Any = (), **_: Any
    ) -> None:
        time_ms = context.timestamp_ms if time_ms == -1 else time_ms
        producer.produce(topic, value, key, timestamp=time_ms, headers=list(headers))
        producer.flush()

    Patches().replace(TaskContext, "forward", forward)


def main(topology: str, name: str, properties: str, mutant: str = "") -> None:
    """Run a worker until SIGTERM, or the end of the process that started this one."""
    end_with_starter()
    settings = read_properties(properties)
    if mutant == OUTSIDE:
        _send_outside(settings["bootstrap.servers"])
    else:
        patch(mutant, settings["store.backend"])
    Topology(topology, name).application().run(settings)


if __name__ == "__main__":
    main(*sys.argv[1:])
