"""A batch job makes the version after the newest, or repeats one that is not complete; not in the state of a query."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stores.changelog.files import VersionLog
from stores.errors import ConfigError, StoreError, StoreIncompatibleError
from stores.spark.stateful import next_version
from stores.tests.changelog.files.log_model import header, opened


def log_at(folder: Path, *reached: int, query: str | None = None) -> VersionLog:
    """A log of two partitions that have these versions as their newest."""
    log = opened(folder)
    for partition, newest in enumerate(reached):
        for version in range(newest + 1):
            log.partition(partition).append(replace(header(version), partition=partition, query=query), {})
    return log


def test_the_next_version_follows_the_newest_and_the_newest_can_be_repeated(tmp_path: Path) -> None:
    assert next_version(log_at(tmp_path / "new", -1, -1), None) == (0, False)
    log = log_at(tmp_path / "state", 2, 2)
    assert next_version(log, None) == next_version(log, 3) == (3, False)
    assert next_version(log, 2) == (2, True)
    for wrong in (0, 1, 4):
        with pytest.raises(ConfigError):
            next_version(log, wrong)


@pytest.mark.parametrize("reached", [(0, -1), (3, 2), (2, 3)])
def test_a_version_that_some_partitions_lack_is_repeated_first(tmp_path: Path, reached: tuple[int, int]) -> None:
    log, last = log_at(tmp_path, *reached), max(reached)
    assert next_version(log, last) == (last, True)
    for wanted in (None, last + 1, last - 1):
        with pytest.raises(StoreError) as error:
            next_version(log, wanted)
        assert f"version={last} " in str(error.value)


def test_partitions_that_are_further_apart_were_brought_back_from_different_copies(tmp_path: Path) -> None:
    log = log_at(tmp_path, 1, 3)
    for wanted in (None, 3, 4):
        with pytest.raises(StoreError) as error:
            next_version(log, wanted)
        assert "versions 1 to 3" in str(error.value)


def test_the_state_of_a_query_is_continued_by_a_job_only_if_it_names_the_version(tmp_path: Path) -> None:
    log = log_at(tmp_path, 1, 1, query="q")
    with pytest.raises(StoreIncompatibleError) as error:
        next_version(log, None)
    assert "q" in str(error.value)
    assert next_version(log, 2) == (2, False)
