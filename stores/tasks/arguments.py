"""Checks of the arguments of a task, so that a wrong one is refused when the task is created, by its name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from stores.changelog.interface import Changelog, Record
from stores.config import StoreConfig
from stores.contract.arguments import check_type
from stores.interface import TopicPartition
from stores.tasks.directory.names import check_inputs
from stores.tasks.identifier import TaskId


def check_configurations(stores: Mapping[str, StoreConfig]) -> None:
    """Check the configurations of a task's stores. Raises: TypeError."""
    check_type(stores, Mapping, "stores is a mapping of names to StoreConfig")
    for name, config in stores.items():
        check_type(config, StoreConfig, f"store {name!r} needs a StoreConfig")


def checked_inputs(inputs: object) -> tuple[TopicPartition, ...]:
    """Return the input partitions. Raises: TypeError; ConfigError for one that no task can have."""
    if isinstance(inputs, TopicPartition) or not isinstance(inputs, Sequence) or isinstance(inputs, str | bytes):
        given = repr(inputs) if isinstance(inputs, str | TopicPartition) else type(inputs).__name__
        raise TypeError(f"inputs is a list of TopicPartition, not {given}: write [TopicPartition('topic', 0)]")
    for each in inputs:
        if not isinstance(each, tuple) or len(each) != len(TopicPartition._fields):
            raise TypeError(f"an input is a TopicPartition, not {each!r}: write TopicPartition('topic', 0)")
    partitions = tuple(TopicPartition(*each) for each in inputs)
    check_inputs(partitions)
    return partitions


def check_changelog(changelog: object) -> None:
    """Check the changelog of a task. Raises: TypeError."""
    check_type(changelog, Changelog, "changelog is a Changelog", ": open one first, for example SqliteChangelog(path)")


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
