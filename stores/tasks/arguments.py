"""Checks of the arguments of a task, so that a wrong one is refused when the task is created, by its name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from stores.changelog.interface import Changelog, Record
from stores.config import StoreConfig
from stores.errors import ConfigError
from stores.interface import ProcessingGuarantee, TopicPartition
from stores.tasks.identifier import TaskId
from stores.tasks.memory_budget import BudgetShare
from stores.tasks.thread_transaction import ThreadTransaction


def check_task_id(task_id: object) -> None:
    """Check the ID of a task. Raises: TypeError."""
    if not isinstance(task_id, TaskId):
        raise TypeError(
            f"task_id is a TaskId, not {type(task_id).__name__}: write TaskId(0, 3), or TaskId.parse('0_3')"
        )


def check_configurations(stores: object) -> None:
    """Check the configurations of a task's stores. Raises: TypeError."""
    if not isinstance(stores, Mapping):
        raise TypeError(f"stores is a mapping of names to StoreConfig, not {type(stores).__name__}")
    for name, config in stores.items():
        if not isinstance(config, StoreConfig):
            raise TypeError(f"store {name!r} needs a StoreConfig, not {type(config).__name__}")


def checked_inputs(inputs: object) -> tuple[TopicPartition, ...]:
    """Return the input partitions. Raises: TypeError for anything but a sequence of topics with a partition."""
    if isinstance(inputs, TopicPartition) or not isinstance(inputs, Sequence) or isinstance(inputs, str | bytes):
        given = repr(inputs) if isinstance(inputs, str | TopicPartition) else type(inputs).__name__
        raise TypeError(f"inputs is a list of TopicPartition, not {given}: write [TopicPartition('topic', 0)]")
    for each in inputs:
        if not isinstance(each, tuple) or len(each) != len(TopicPartition._fields):
            raise TypeError(f"an input is a TopicPartition, not {each!r}: write TopicPartition('topic', 0)")
    return tuple(TopicPartition(*each) for each in inputs)


def check_changelog(changelog: object) -> None:
    """Check the changelog of a task. Raises: TypeError."""
    if not isinstance(changelog, Changelog):
        raise TypeError(
            f"changelog is a Changelog, not {type(changelog).__name__}: open one first, for example "
            "SqliteChangelog(path)"
        )


def check_memory(memory: object) -> None:
    """Check the memory budget of a task. Raises: TypeError."""
    if memory is not None and not isinstance(memory, BudgetShare):
        raise TypeError(f"memory is what MemoryBudget.share() returns, or None, not {type(memory).__name__}")


def check_transaction(transaction: object, guarantee: ProcessingGuarantee) -> None:
    """Check the transaction that a task shares with others. Raises: TypeError, ConfigError."""
    if transaction is None:
        return
    if not isinstance(transaction, ThreadTransaction):
        raise TypeError(f"transaction is a ThreadTransaction or None, not {type(transaction).__name__}")
    if guarantee is not ProcessingGuarantee.EXACTLY_ONCE:
        raise ConfigError("a task that shares a transaction is exactly-once: at least once there are no transactions")


def check_flags(**flags: object) -> None:
    """Check arguments that are True or False. Raises: TypeError."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name} is True or False, not {flag!r}")


def check_clock(clock: object) -> None:
    """Check the clock of a task. Raises: TypeError."""
    lacking = [name for name in ("monotonic_ns", "epoch_ms", "sleep") if not callable(getattr(clock, name, None))]
    if clock is not None and lacking:
        raise TypeError(f"clock is an object with the methods of Clock; {type(clock).__name__} lacks {lacking[0]}()")


def check_function(name: str, function: object, *arguments: str) -> None:
    """Check that ``function`` can be called with so many arguments. Raises: TypeError.

    A callable whose signature Python does not know, such as one written in C, is accepted.
    """
    wanted = f"{name} is a function of {' and '.join(arguments)}"
    if not callable(function):
        raise TypeError(f"{wanted}, not {type(function).__name__}")
    called: Any = function
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise TypeError(f"{wanted}; this one does not take them: {error}") from None


def unexpected_record(
    task_id: TaskId, next_offsets: Mapping[TopicPartition, int], partition: TopicPartition, record: Record
) -> ValueError:
    """Return the error for a record that a task can't be given: of another partition, or processed before."""
    if partition not in next_offsets:
        inputs = ", ".join(map(str, next_offsets))
        return ValueError(f"{partition} is not an input of task {task_id}: give it a record of {inputs}")
    return ValueError(
        f"record {record.offset} of {partition} was processed before: the next one is {next_offsets[partition]}"
    )
