"""Mutants of the order in which a task commits its outputs and its input offsets.

Source: KIP-129, "Motivation": of the two orders without a transaction one repeats, and the other loses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.mutants.mutant import BrokerTrial, CrashTrial, Mutant
from harness.mutants.patches import Patches
from stores.changelog.interface import Changelog
from stores.changelog.producer import BufferedProducer
from stores.failpoints import declare, reach
from stores.interface import ProcessingGuarantee, TopicPartition
from stores.tasks.task import StreamTask

BETWEEN = declare("mutant.between", "of outputs and input offsets, one is committed and the other is not")


def _inputs_apart(patches: Patches, *, inputs_first: bool) -> None:
    make, commit, send_offsets = StreamTask.__init__, BufferedProducer.commit, BufferedProducer.send_offsets
    logs: list[Changelog] = []
    waiting: list[tuple[str, Mapping[TopicPartition, int]]] = []

    def made(self: StreamTask, *given: Any, **named: Any) -> None:
        # A process of a trial has one changelog, whichever it is.
        logs[:] = [named["changelog"]]
        make(self, *given, **named)

    def set_aside(self: BufferedProducer, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        waiting.append((group, dict(offsets)))

    def send_waiting() -> None:
        with logs[0].producer() as plain:
            assert isinstance(plain, BufferedProducer)
            for group, offsets in waiting:
                send_offsets(plain, group, offsets)
        waiting.clear()

    def mutated(self: BufferedProducer) -> Mapping[TopicPartition, int]:
        if inputs_first:
            send_waiting()
            reach(BETWEEN)
        committed = commit(self)
        if not inputs_first:
            reach(BETWEEN)
            send_waiting()
        return committed

    patches.replace(StreamTask, "__init__", made)
    patches.replace(BufferedProducer, "send_offsets", set_aside)
    patches.replace(BufferedProducer, "commit", mutated)


def _without_transactions(patches: Patches, subject: str) -> None:
    make = StreamTask.__init__

    def made(self: StreamTask, *given: Any, **named: Any) -> None:
        make(self, *given, **{**named, "guarantee": ProcessingGuarantee.AT_LEAST_ONCE})

    patches.replace(StreamTask, "__init__", made)


def _offsets_before_records(patches: Patches, subject: str) -> None:
    """Send the records of a task without transactions only after its input offsets are committed."""
    flush, send_offsets = BufferedProducer.flush, BufferedProducer.send_offsets

    def sent(self: BufferedProducer, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        send_offsets(self, group, offsets)
        if not group.endswith("/stream-time"):
            reach(BETWEEN)
            flush(self)

    patches.replace(BufferedProducer, "flush", lambda self: {})
    patches.replace(BufferedProducer, "send_offsets", sent)


MUTANTS = (
    Mutant(
        "inputs-after-outputs",
        "input offsets are committed separately, after the outputs (KIP-129, duplicates)",
        lambda patches, subject: _inputs_apart(patches, inputs_first=False),
        (CrashTrial("outputs"), BrokerTrial("task killed", BETWEEN, "repeated")),
    ),
    Mutant(
        "inputs-before-outputs",
        "input offsets are committed separately, before the outputs (KIP-129, losses)",
        lambda patches, subject: _inputs_apart(patches, inputs_first=True),
        (
            CrashTrial("outputs"),
            BrokerTrial("task killed", BETWEEN, "lost"),
            BrokerTrial("worker killed", BETWEEN, "lost"),
            # Offsets whose commit gets no answer may be committed later, so only the outputs may be what is cut off.
            BrokerTrial("broker killed", BETWEEN, "lost"),
        ),
    ),
    Mutant(
        "no-transactions",
        "a task that promises exactly once works without transactions",
        _without_transactions,
        (
            BrokerTrial("task killed", "task.after_log_commit", "repeated"),
            BrokerTrial("worker killed", "task.after_log_commit", "repeated"),
            BrokerTrial("zombie wakes", "task.before_log_commit", "repeated"),
        ),
    ),
    Mutant(
        "offsets-before-records",
        "at least once, input offsets are committed before the outputs are sent (KIP-129, losses)",
        _offsets_before_records,
        (BrokerTrial("task killed", BETWEEN, "lost", "at_least_once"),),
    ),
)
