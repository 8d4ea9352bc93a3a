"""Which guarantee a task works under. Source: KIP-129, ``processing.guarantee``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stores.changelog import MemoryChangelog
from stores.config import StoreConfig
from stores.errors import ConfigError
from stores.tasks import ProcessingGuarantee, StreamTask, TaskId

EXACTLY_ONCE, AT_LEAST_ONCE = ProcessingGuarantee.EXACTLY_ONCE, ProcessingGuarantee.AT_LEAST_ONCE


def task(folder: Path, *properties: dict[str, str], guarantee: ProcessingGuarantee | None = None) -> StreamTask:
    return StreamTask(
        "app",
        TaskId(0, 0),
        state_dir=folder,
        changelog=MemoryChangelog(),
        stores={f"store{number}": StoreConfig.from_properties(given) for number, given in enumerate(properties)},
        process=lambda record, context: None,
        inputs=[],
        guarantee=guarantee,
    )


@pytest.mark.parametrize(
    ("value", "guarantee"),
    [
        ("at_least_once", AT_LEAST_ONCE),
        ("exactly_once", EXACTLY_ONCE),
        ("exactly_once_beta", EXACTLY_ONCE),
        ("exactly_once_v2", EXACTLY_ONCE),
    ],
)
def test_kafka_s_property_decides_the_guarantee(tmp_path: Path, value: str, guarantee: ProcessingGuarantee) -> None:
    assert task(tmp_path, {"processing.guarantee": value}, {}).guarantee is guarantee


def test_what_is_given_to_the_task_goes_before_the_property(tmp_path: Path) -> None:
    assert task(tmp_path, {"processing.guarantee": "exactly_once"}, guarantee=AT_LEAST_ONCE).guarantee is AT_LEAST_ONCE


def test_a_task_is_exactly_once_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    assert task(tmp_path, {}).guarantee is EXACTLY_ONCE


def test_a_guarantee_may_be_given_as_text(tmp_path: Path) -> None:
    text: Any = "exactly_once"
    given = task(tmp_path, {}, guarantee=text)
    assert given.guarantee is EXACTLY_ONCE
    configured = StreamTask(
        "app",
        TaskId(0, 0),
        state_dir=tmp_path,
        changelog=MemoryChangelog(),
        stores={"s": StoreConfig(processing_guarantee=text)},
        process=lambda record, context: None,
        inputs=[],
    )
    assert configured.guarantee is EXACTLY_ONCE


def test_stores_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        task(tmp_path, {"processing.guarantee": "exactly_once"}, {"processing.guarantee": "at_least_once"})


def test_a_guarantee_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError):
        StoreConfig.from_properties({"processing.guarantee": "at_most_once"})
