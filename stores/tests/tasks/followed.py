"""Standby copies of tests: follow a changelog to its end, and look at the stores behind the copy's back."""

from __future__ import annotations

from collections.abc import Mapping

from stores.tasks.task_resources import StandbyTask


def follow(copy: StandbyTask, max_records: int = 7) -> None:
    """Follow the changelogs to their ends, in small steps."""
    while copy.follow(max_records):
        pass


def kept(copy: StandbyTask, number: int = 0) -> Mapping[bytes, bytes]:
    """Return the pairs of the store of that number."""
    with copy._stores._stores[number].store.all() as pairs:
        return dict(pairs)
