"""Upgrades from any format to any other: in place before the first record or beside a running task, and rolled over."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from stores.changelog import MemoryChangelog, Record
from stores.config import StoreConfig
from stores.errors import (
    ChangelogLostError,
    ConfigError,
    ProducerFencedError,
    StoreIncompatibleError,
)
from stores.records import INT64, STR, KeyValue, ValueAndTimestamp
from stores.registry import StoreBackend, backends
from stores.settings import Upgrade, UpgradeMode, UpgradeProgress
from stores.tasks import StateDirectory, TaskConfig, TaskContext
from stores.tasks.directory.replacement import RENAMED
from stores.tasks.identifier import check_stores
from stores.tasks.stores.log_format import VERSION_HEADER
from stores.tests.minimal_store import Direct
from stores.tests.tasks.setup import DIRECT, INDEXED, MEMORY, TASK, Crash, begun, crashing_at
from stores.tests.tasks.typed import STORE, feed_times, kept, store_folder
from stores.tests.tasks.upgrading import (
    BACKENDS,
    NEW,
    NewApi,
    expected,
    names_beside,
    new_task,
    old_task,
    online_task,
    shown,
    to_new,
    work,
    write_new,
)


@pytest.mark.parametrize("backend", [*BACKENDS, DIRECT, MEMORY])
def test_a_store_of_any_format_is_upgraded_before_the_first_record(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    feed_times(log, range(20))
    work(old_task(tmp_path, log, backend), 12)
    with closing(new_task(tmp_path, log, backend)) as task:
        task.open()
        assert shown(task) == expected(12)
        task.run(commit=True)
        assert shown(task) == expected(20)
        assert task.metrics.stores["s"].upgrade_total == (backend != MEMORY)
    if backend != MEMORY:
        assert names_beside(tmp_path) == []
        with closing(new_task(tmp_path, log, backend)) as task:
            [report] = task.open()
            assert (report.wiped, report.records) == (False, 0)


def test_records_bear_their_format_and_a_mixed_changelog_restores(tmp_path: Path, log: MemoryChangelog) -> None:
    """Source: KIP-258, first draft: version number in the record header."""
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 12)
    work(new_task(tmp_path, log))
    assert {record.headers for record in log.read(STORE)} == {(), ((VERSION_HEADER, b"1"),)}
    with closing(new_task(tmp_path / "other", log)) as task:
        task.open()
        assert shown(task) == expected(20)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_foreign_file_in_the_store_s_folder_stays_there_through_upgrades(
    tmp_path: Path, log: MemoryChangelog, backend: str
) -> None:
    feed_times(log, range(6))
    work(old_task(tmp_path, log, backend), 3)
    letter = store_folder(tmp_path) / "letter"
    letter.write_text("mine")
    work(new_task(tmp_path, log, backend), 1)
    assert letter.read_text() == "mine"
    again = Upgrade(
        2, lambda record, version: to_new(record, 0) if version == 0 else [(record.key or b"", record.value)]
    )
    with closing(new_task(tmp_path, log, backend, store_upgrade=again)) as task:
        task.open()
        assert shown(task) == expected(4)
    assert letter.read_text() == "mine"
    assert names_beside(tmp_path) == []


def test_held_records_bear_their_format_too(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(3))
    work(new_task(tmp_path, log, store_changelog_coalescing=True))
    assert {record.headers for record in log.read(STORE)} == {((VERSION_HEADER, b"1"),)}


def test_a_second_upgrade_converts_the_records_of_each_earlier_format(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 6)
    work(new_task(tmp_path, log), 6)

    def doubled(record: Record, version: int) -> Iterable[tuple[bytes, bytes | None]]:
        for key, value in to_new(record, 0) if version == 0 else [(record.key or b"", record.value)]:
            yield key, None if value is None else INT64.serialize(2 * INT64.deserialize(value))

    def write(record: Record, context: TaskContext) -> None:
        context.store("s").put(f"key-{record.offset}", 2 * record.offset, record.timestamp_ms)

    with closing(new_task(tmp_path, log, store_upgrade=Upgrade(2, doubled), process=write)) as task:
        task.open()
        assert shown(task) == {key: (2 * value, time_ms) for key, (value, time_ms) in expected(12).items()}


def test_a_store_of_an_earlier_format_is_refused_without_a_mode_and_one_of_a_later_format_always(
    tmp_path: Path, log: MemoryChangelog
) -> None:
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 5)
    before = kept(tmp_path, INDEXED)
    for mode in (None, "roll_over"):
        with pytest.raises(StoreIncompatibleError):
            new_task(tmp_path, log, mode=mode).open()
    assert kept(tmp_path, INDEXED) == before
    work(new_task(tmp_path, log), 5)
    before = kept(tmp_path, INDEXED)
    for task in (old_task(tmp_path, log), online_task(tmp_path, log)):
        with pytest.raises(StoreIncompatibleError):
            task.open()
    assert kept(tmp_path, INDEXED) == before
    work(new_task(tmp_path, log, mode=None))
    # An empty store does not make a changelog of a later format readable either.
    with pytest.raises(StoreIncompatibleError):
        old_task(tmp_path / "other", log).open()


def test_modes_are_read_from_the_property(tmp_path: Path) -> None:
    read = [
        StoreConfig.from_properties({"upgrade.mode": text}).upgrade_mode for text in ("null", "in_place", "roll_over")
    ]
    assert read == [None, UpgradeMode.IN_PLACE, UpgradeMode.ROLL_OVER]
    with pytest.raises(ConfigError):
        StoreConfig.from_properties({"upgrade.mode": "sideways"})
    with pytest.raises(ConfigError):
        StoreConfig(upgrade_mode="sideways")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"to_version": 0}, ConfigError),
        ({"to_version": True}, TypeError),
        ({"convert": None}, TypeError),
        ({"online": 1}, TypeError),
        ({"records": NEW}, ConfigError),
        ({"proxy": str}, ConfigError),
        ({"online": True, "proxy": 1}, TypeError),
        ({"online": True, "swap_running": True}, ConfigError),
        ({"rewrite_changelog": 1}, TypeError),
        ({"online": True, "proxy": str, "swap_running": 1}, TypeError),
        ({"online": True, "before": Upgrade(1, to_new)}, ConfigError),
    ],
)
def test_an_upgrade_is_checked_when_made(wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Upgrade(**{"to_version": 1, "convert": to_new, **wrong})


def test_a_store_in_memory_is_upgraded_offline_only() -> None:
    """Source: KIP-258, first draft, which has nothing to gain there either."""
    with pytest.raises(ConfigError):
        StoreConfig(MEMORY, upgrade=Upgrade(1, to_new, online=True), upgrade_mode=UpgradeMode.IN_PLACE)


def test_an_upgrade_from_an_empty_changelog_does_not_empty_the_store(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(5))
    work(old_task(tmp_path, log))
    before = kept(tmp_path, INDEXED)
    with MemoryChangelog() as other:
        feed_times(other, range(5))
        with pytest.raises(ChangelogLostError):
            new_task(tmp_path, other).open()
    assert kept(tmp_path, INDEXED) == before


def test_an_error_of_the_converter_leaves_the_old_store(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(5))
    work(old_task(tmp_path, log))
    before = kept(tmp_path, INDEXED)

    def broken(record: Record, version: int) -> Iterable[tuple[bytes, bytes | None]]:
        raise Crash

    with pytest.raises(Crash):
        new_task(tmp_path, log, store_upgrade=Upgrade(1, broken)).open()
    assert kept(tmp_path, INDEXED) == before
    work(old_task(tmp_path, log))
    assert names_beside(tmp_path) == []


def test_progress_is_reported_up_to_the_swap_and_counted(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 10)
    monkeypatch.setattr("stores.tasks.stores.log_follower.PIECE_RECORDS_MAX", 5)
    progress: list[UpgradeProgress] = []
    with closing(new_task(tmp_path, log, store_upgrade=Upgrade(1, to_new, on_upgrade=progress.append))) as task:
        task.open()
        metrics = task.metrics.stores["s"]
    assert [(step.records, step.swapped) for step in progress] == [(5, False), (10, False), (12, False), (12, True)]
    assert progress[-1].offset == progress[-1].to_offset - 1
    assert (metrics.upgrade_total, metrics.upgrade_records_total, metrics.upgrade_remaining_offsets) == (1, 12, 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_online_upgrade_goes_on_in_steps_while_the_task_works_and_the_next_opening_swaps(
    tmp_path: Path, log: MemoryChangelog, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed_times(log, range(40))
    work(old_task(tmp_path, log, backend), 20)
    monkeypatch.setattr("stores.tasks.stores.store_format.STEP_RECORDS_MIN", 4)
    progress: list[UpgradeProgress] = []
    with closing(online_task(tmp_path, log, backend, told=progress.append)) as task:
        task.open()
        assert progress == []
        for _ in range(6):
            task.run(2, commit=True)
        assert task.metrics.stores["s"].upgrade_remaining_offsets == 0
        assert shown(task)[b"k30"] == b"30"
    records = [step.records for step in progress]
    assert all(0 < later - earlier <= 12 for earlier, later in zip([0, *records], records, strict=False))
    assert names_beside(tmp_path) == [".prepare"]
    built = progress[-1].offset
    final: list[UpgradeProgress] = []
    with closing(new_task(tmp_path, log, backend, store_upgrade=Upgrade(1, to_new, on_upgrade=final.append))) as task:
        task.open()
        # Only what the closing commit has logged was left to do.
        assert sum(record.offset > built for record in log.read(STORE)) == final[-1].records
        assert shown(task) == expected(32)
        task.run(commit=True)
        assert shown(task) == expected(40)
    assert names_beside(tmp_path) == []


def test_an_error_in_an_online_upgrade_leaves_the_task_at_work(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(20))

    def broken(record: Record, version: int) -> Iterable[tuple[bytes, bytes | None]]:
        raise Crash

    with closing(online_task(tmp_path, log, convert=broken)) as task:
        task.open()
        for _ in range(4):
            task.run(5, commit=True)
        assert shown(task)[b"k19"] == b"19"
    work(new_task(tmp_path, log))
    with closing(new_task(tmp_path, log)) as task:
        task.open()
        assert shown(task) == expected(20)


def test_an_upgrade_that_is_given_up_leaves_no_trace(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(20))
    with closing(online_task(tmp_path, log)) as task:
        task.open()
        task.run(10, commit=True)
    assert names_beside(tmp_path) == [".prepare"]
    work(old_task(tmp_path, log))
    assert names_beside(tmp_path) == []


def test_new_instances_roll_over_while_the_old_one_works(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(40))
    old = old_task(tmp_path / "old", log)
    begun(old)
    new = new_task(tmp_path / "new", log, mode="roll_over")
    total = 0
    for _ in range(3):
        old.run(8, commit=True)
        [report] = new.rebuild()
        assert report.wiped is False
        total += report.records
    # The old one was not fenced, nor disturbed.
    old.run(3, commit=True)
    with closing(new):
        [report] = new.open()
        assert total + report.records == len(list(log.read(STORE)))
        assert 0 < report.records <= 4
        assert shown(new) == expected(28)
        with pytest.raises(ProducerFencedError):
            old.run(1, commit=True)
        new.run(commit=True)
        assert shown(new) == expected(40)


def test_an_online_upgrade_may_follow_another_upgrade(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 6)
    work(new_task(tmp_path, log), 6)

    def to_plain(record: Record, version: int) -> Iterable[tuple[bytes, bytes | None]]:
        return to_new(record, 0) if version == 0 else [(record.key or b"", record.value)]

    online = Upgrade(2, to_plain, online=True, records=KeyValue(key=STR, value=INT64), before=Upgrade(1, to_new))
    work(new_task(tmp_path, log, store_upgrade=online), 4)
    offline = Upgrade(2, to_plain)
    with closing(new_task(tmp_path, log, store_upgrade=offline, store_records=KeyValue(key=STR, value=INT64))) as task:
        task.open()
        assert shown(task) == {key: value for key, (value, _) in expected(16).items()}


def test_a_folder_with_an_unfinished_upgrade_is_removed_like_any_other(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(20))
    work(online_task(tmp_path, log), 10)
    work(online_task(tmp_path, log), 0)
    with crashing_at(RENAMED):
        new_task(tmp_path, log).open()
    directory = StateDirectory(tmp_path / "state")
    assert directory.clean(0) == [TASK]
    assert directory.tasks() == []
    with closing(new_task(tmp_path, log)) as task:
        task.open()
        assert shown(task) == expected(10)


@pytest.mark.parametrize("name", ["s.prepare", "s.former", "s.swap"])
def test_names_that_an_upgrade_needs_are_no_names_of_stores(name: str) -> None:
    with pytest.raises(ConfigError):
        check_stores([name])


def test_the_common_mode_of_an_application_is_that_of_stores_without_their_own(tmp_path: Path) -> None:
    properties = {"application.id": "app", "state.dir": str(tmp_path), "upgrade.mode": "in_place"}
    configs = TaskConfig.from_properties(properties).stores(
        {
            "plain": StoreConfig(MEMORY),
            "upgraded": StoreConfig(MEMORY, upgrade=Upgrade(1, to_new)),
            "own": StoreConfig(MEMORY, upgrade=Upgrade(1, to_new), upgrade_mode=UpgradeMode.ROLL_OVER),
        }
    )
    assert {name: config.upgrade_mode for name, config in configs.items()} == {
        "plain": None,
        "upgraded": UpgradeMode.IN_PLACE,
        "own": UpgradeMode.ROLL_OVER,
    }


def test_the_new_function_may_work_on_the_old_store_through_a_proxy(tmp_path: Path, log: MemoryChangelog) -> None:
    """Source: KIP-258, first draft, ``StoreUpgradeBuilder``: "new API over the old format"."""
    feed_times(log, range(20))
    work(old_task(tmp_path, log), 6)
    upgrade = Upgrade(1, to_new, online=True, records=NEW, proxy=NewApi)
    with closing(
        old_task(tmp_path, log, process=write_new, store_upgrade=upgrade, store_upgrade_mode="in_place")
    ) as task:
        task.open()
        task.run(6, commit=True)
        assert task.store("s").get("key-10") == ValueAndTimestamp(10, -1)
    with closing(new_task(tmp_path, log)) as task:
        task.open()
        assert shown(task) == expected(12)


def test_a_store_that_keeps_no_marks_can_not_be_upgraded(tmp_path: Path, log: MemoryChangelog) -> None:
    feed_times(log, range(5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(cast("dict[str, Any]", backends()), "minimal", StoreBackend("minimal", load_store=lambda: Direct))
        work(old_task(tmp_path, log, "minimal"))
        with pytest.raises(StoreIncompatibleError):
            new_task(tmp_path, log, "minimal").open()
        work(old_task(tmp_path, log, "minimal"))
