"""The processing guarantee of a task. Source: KIP-129, ``processing.guarantee``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import MemoryChangelog
from stores.config import StoreConfig
from stores.errors import ConfigError
from stores.interface import Durability
from stores.registry import backend_named, backends
from stores.tasks import ProcessingGuarantee, StreamTask, TaskId, TaskSettings
from stores.tests.tasks.setup import AT_LEAST_ONCE, DIRECT, EXACTLY_ONCE, INDEXED, counting_task, feed, state


def task(folder: Path, *properties: dict[str, str], guarantee: ProcessingGuarantee | None = None) -> StreamTask:
    return StreamTask(
        "app",
        TaskId(0, 0),
        state_dir=folder,
        changelog=MemoryChangelog(),
        stores={f"store{number}": StoreConfig.from_properties(given) for number, given in enumerate(properties)},
        process=lambda record, context: None,
        inputs=[],
        settings=TaskSettings(guarantee=guarantee),
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


def test_a_task_is_exactly_once_by_default(tmp_path: Path) -> None:
    assert task(tmp_path, {}).guarantee is EXACTLY_ONCE


def test_a_guarantee_may_be_given_as_text(tmp_path: Path) -> None:
    text: Any = "exactly_once"
    counting = task(tmp_path, {}, guarantee=text)
    assert counting.guarantee is EXACTLY_ONCE
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


def switched(
    folder: Path, log: MemoryChangelog, backend: str, durability: Durability, former: ProcessingGuarantee, clean: bool
) -> None:
    """Two records committed by a task under ``former``, and a third that is processed and not committed."""
    feed(log, [1, 1, 1])
    task_ = counting_task(folder, log, backend, durability=durability, guarantee=former)
    task_.open()
    task_.run(2)
    task_.commit()
    task_.run(1)
    task_.close(clean)


def closings() -> Iterator[tuple[str, Durability, bool]]:
    """Every backend closed uncleanly; the one that keeps nothing apart at every level, and closed cleanly, too."""
    for name, backend in backends().items():
        for durability in sorted(backend.durabilities) if name == DIRECT else (min(backend.durabilities),):
            yield name, durability, False
    yield DIRECT, Durability.CHANGELOG, True
    yield INDEXED, Durability.CHANGELOG, True


@pytest.mark.parametrize("former", [AT_LEAST_ONCE, EXACTLY_ONCE])
@pytest.mark.parametrize(("backend", "durability", "clean"), list(closings()))
def test_a_task_that_changes_its_guarantee_counts_each_record_once(
    tmp_path: Path,
    log: MemoryChangelog,
    backend: str,
    durability: Durability,
    clean: bool,
    former: ProcessingGuarantee,
) -> None:
    """A store that the former guarantee does not cover is wiped and restored. Source: KIP-129, swap and restart."""
    switched(tmp_path, log, backend, durability, former, clean)
    other = EXACTLY_ONCE if former is AT_LEAST_ONCE else AT_LEAST_ONCE
    task_ = counting_task(tmp_path, log, backend, durability=durability, guarantee=other)
    reports = task_.open()
    kept_apart = backend_named(backend).manages_offsets
    assert [report.wiped for report in reports] == [not (clean or kept_apart)] * 2
    assert state(task_, "left") == state(task_, "right") == {b"1": b"3" if clean else b"2"}
    task_.run(commit=True)
    assert state(task_, "left") == state(task_, "right") == {b"1": b"3"}
    task_.close()


@pytest.mark.parametrize("adopting", [DIRECT, INDEXED])
def test_writes_that_at_least_once_kept_are_found_however_many_clean_closes_later(
    tmp_path: Path, log: MemoryChangelog, adopting: str
) -> None:
    """The second task keeps what the first left uncommitted, and closes cleanly; a third one keeps offsets itself."""
    switched(tmp_path, log, DIRECT, Durability.CHANGELOG, AT_LEAST_ONCE, clean=False)
    for backend in (DIRECT, adopting):
        task_ = counting_task(tmp_path, log, backend, guarantee=AT_LEAST_ONCE)
        assert [report.wiped for report in task_.open()] == [False] * 2
        task_.close()
    task_ = counting_task(tmp_path, log, adopting, guarantee=EXACTLY_ONCE)
    assert [report.wiped for report in task_.open()] == [True] * 2
    assert state(task_, "left") == {b"1": b"2"}
    task_.close()
    # Once wiped, they are what the changelog has.
    task_ = counting_task(tmp_path, log, adopting, guarantee=EXACTLY_ONCE)
    assert [report.wiped for report in task_.open()] == [False] * 2
    task_.close()


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"stores": {"left": "clean"}, "checksum": 0}\n', None])
def test_a_direct_store_with_a_missing_or_damaged_origin_is_wiped(
    tmp_path: Path, log: MemoryChangelog, damage: bytes | None
) -> None:
    switched(tmp_path, log, DIRECT, Durability.CHANGELOG, AT_LEAST_ONCE, clean=False)
    file = tmp_path / "state" / "0_0" / ".origin"
    assert file.exists()
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage)
    task_ = counting_task(tmp_path, log, DIRECT, guarantee=EXACTLY_ONCE)
    assert [report.wiped for report in task_.open()] == [True] * 2
    assert state(task_, "left") == {b"1": b"2"}
    task_.close()


@pytest.mark.parametrize("damage", [b"", b'{"stores": {}, "checksum": 0}\n'])
def test_writes_that_at_least_once_kept_are_not_trusted_where_the_file_that_names_them_is_damaged(
    tmp_path: Path, log: MemoryChangelog, damage: bytes
) -> None:
    """Also in a store that keeps its uncommitted writes apart now, and needs no entry of its own."""
    switched(tmp_path, log, DIRECT, Durability.CHANGELOG, AT_LEAST_ONCE, clean=False)
    task_ = counting_task(tmp_path, log, INDEXED, guarantee=AT_LEAST_ONCE)
    task_.open()
    task_.close()
    (tmp_path / "state" / "0_0" / ".origin").write_bytes(damage)
    task_ = counting_task(tmp_path, log, INDEXED, guarantee=EXACTLY_ONCE)
    assert [report.wiped for report in task_.open()] == [True] * 2
    assert state(task_, "left") == {b"1": b"2"}
    task_.close()


def test_stores_that_keep_everything_themselves_need_no_note_of_their_guarantee(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    for guarantee in (AT_LEAST_ONCE, EXACTLY_ONCE):
        switched(tmp_path, log, INDEXED, Durability.CHANGELOG, guarantee, clean=False)
        assert not (tmp_path / "state" / "0_0" / ".origin").exists()
