"""Views of a task's stores on other threads, and the input position that they reflect.

Source: KIP-892, "Interactive Queries" and "Interactive Query .position Offsets"; KIP-796.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import MemoryChangelog
from stores.config import StoreConfig
from stores.errors import CommitFailedError, NotUpToBoundError, StoreClosedError, StoreRestoringError
from stores.interface import IsolationLevel, KeyValueView, PositionBound
from stores.strategies.store import Store
from stores.tasks import RestoreProgress, StreamTask
from stores.tests.tasks.setup import (
    AT_LEAST_ONCE,
    DIRECT,
    EXACTLY_ONCE,
    INDEXED,
    INPUT,
    LEFT,
    MEMORY,
    Crash,
    begun,
    counting_task,
    crashing_at,
    expected_state,
    feed,
    raising_at,
    state,
)

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


def positions(task: StreamTask, store: str = "left") -> list[int | None]:
    """Committed and uncommitted position in the input."""
    return [task.store(store, level).position().get(INPUT) for level in (COMMITTED, UNCOMMITTED)]


@pytest.mark.parametrize(
    ("guarantee", "configured", "seen"),
    [
        (EXACTLY_ONCE, None, COMMITTED),
        (EXACTLY_ONCE, UNCOMMITTED, UNCOMMITTED),
        (AT_LEAST_ONCE, None, UNCOMMITTED),
        (AT_LEAST_ONCE, COMMITTED, COMMITTED),
    ],
)
def test_a_view_has_the_configured_level_unless_it_asks_for_another(
    tmp_path: Path, log: MemoryChangelog, guarantee: Any, configured: IsolationLevel | None, seen: IsolationLevel
) -> None:
    feed(log, [1, 1])
    settings = StoreConfig(MEMORY, isolation_level=configured)
    task = begun(counting_task(tmp_path, log, guarantee=guarantee, stores={"left": settings, "right": settings}))
    task.run(1)
    shows = {COMMITTED: b"1", UNCOMMITTED: b"2"}
    assert task.store("left").isolation_level is seen
    assert task.store("left").get(b"1") == shows[seen]
    for level in IsolationLevel:
        view = task.store("left", level)
        assert isinstance(view, KeyValueView)
        assert view.get(b"1") == shows[level]
        assert view.get_many([b"1", b"2"]) == [shows[level], None]
        assert list(view.all()) == list(view.reverse_all()) == list(view.prefix_scan(b"1")) == [(b"1", shows[level])]
    with pytest.raises(ValueError):
        task.store("left", "READ_NOTHING")  # type: ignore[call-overload]
    task.close()


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_a_position_advances_with_each_record_and_is_rolled_back_with_the_transaction(
    tmp_path: Path, log: MemoryChangelog, guarantee: Any
) -> None:
    poisoned = [3]
    feed(log, [1, 2, 3, 1])
    task = counting_task(tmp_path, log, MEMORY, process=raising_at(poisoned), guarantee=guarantee)
    task.open()
    assert positions(task) == [None, None]
    task.run(2)
    assert positions(task) == [None, 1]
    task.commit()
    assert positions(task) == positions(task, "right") == [1, 1]
    task.run(1)
    assert positions(task) == [1, 2]
    with pytest.raises(Crash):
        task.run()
    assert positions(task) == [1, 1]
    poisoned.clear()
    task.run()
    task.commit()
    assert positions(task) == [3, 3]
    task.close()


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
@pytest.mark.parametrize("backend", [MEMORY, INDEXED, DIRECT])
def test_a_store_that_is_restored_is_at_the_position_that_its_changelog_reflects(
    tmp_path: Path, log: MemoryChangelog, backend: str, guarantee: Any
) -> None:
    feed(log, [1, 2, 3])
    task = counting_task(tmp_path, log, backend, guarantee=guarantee)
    task.open()
    task.run(2)
    task.commit()
    task.close()
    elsewhere = counting_task(tmp_path / "elsewhere", log, backend, guarantee=guarantee)
    left, _ = elsewhere.open()
    assert left.records == 2
    assert positions(elsewhere) == positions(elsewhere, "right") == [1, 1]
    elsewhere.close()
    again = counting_task(tmp_path / "elsewhere", log, backend, guarantee=guarantee)
    left, _ = again.open()
    assert left.records == (2 if backend == MEMORY else 0)
    assert positions(again) == [1, 1]
    again.close()


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_a_store_whose_commit_failed_is_at_the_position_of_the_commit_that_it_replays(
    tmp_path: Path, log: MemoryChangelog, guarantee: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(log, [1, 2])
    task = counting_task(tmp_path, log, INDEXED, guarantee=guarantee)
    task.open()
    task.run()
    views = [task.store("left", level) for level in IsolationLevel]
    commit = Store.commit

    def refused(store: Store, *offsets: Any) -> None:
        monkeypatch.setattr(Store, "commit", commit)
        raise CommitFailedError("no", reopen=True)

    monkeypatch.setattr(Store, "commit", refused)
    task.commit()
    assert positions(task) == [1, 1]
    # They outlast the store that was opened again.
    assert [dict(view.all()) for view in views] == [expected_state([1, 2])] * 2
    task.close()
    for view in views:
        with pytest.raises(StoreClosedError):
            view.get(b"1")


def test_no_query_is_answered_from_a_store_that_is_being_restored(
    tmp_path: Path, log: MemoryChangelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore's pieces are no commits: what lies between them was never a state of the task's."""
    monkeypatch.setattr("stores.tasks.stores.log_follower.PIECE_RECORDS_MAX", 1)
    feed(log, [1, 2, 3])
    asked: list[object] = []
    views: list[KeyValueView] = []

    def ask() -> None:
        with pytest.raises(StoreRestoringError):
            views[0].get(b"1")
        with pytest.raises(StoreRestoringError):
            views[0].all()
        asked.append(None)

    def on_restore(progress: RestoreProgress) -> None:
        if progress.store == "left":
            pool.submit(ask).result(600)

    task = counting_task(tmp_path, log, INDEXED, on_restore=on_restore)
    with ThreadPoolExecutor(1) as pool:
        task.open()
        views.append(task.store("left"))
        task.run()
        with crashing_at("task.after_log_commit"):
            task.commit()
        task.close()
        with pytest.raises(StoreClosedError):
            views[0].get(b"1")
        task.open()
    assert len(asked) == 3
    assert dict(views[0].all()) == expected_state([1, 2, 3])
    task.close()


def test_a_bound_is_checked_against_the_position_of_the_view_s_own_level(tmp_path: Path, log: MemoryChangelog) -> None:
    feed(log, [1, 2, 3])
    task = begun(counting_task(tmp_path, log, MEMORY))
    task.run(1)
    bound = PositionBound({INPUT: 1})
    assert task.store("left", UNCOMMITTED, bound).get(b"2") == b"1"
    waiting = task.store("left", COMMITTED, bound)
    with pytest.raises(NotUpToBoundError) as error:
        waiting.get(b"2")
    assert error.value.behind == {INPUT: 1}
    task.commit()
    assert waiting.get(b"2") == b"1"
    with pytest.raises(NotUpToBoundError) as error:
        task.store("left", UNCOMMITTED, PositionBound({INPUT: 9, LEFT: 0})).all()
    assert error.value.behind == {INPUT: 8, LEFT: 1}
    task.close()


def test_views_go_on_while_the_task_works(tmp_path: Path, log: MemoryChangelog) -> None:
    """Committed data shows every seventh record's state only, and never goes back."""
    feed(log, [1] * 200)
    task = counting_task(tmp_path, log, INDEXED, commit_every_records=7)
    task.open()
    steps: list[bool] = []

    def read() -> list[int]:
        view, answer = task.store("left"), [0]
        while not steps:
            answer.append(int(view.get(b"1") or b"0"))
        return answer

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        try:
            task.run()
        finally:
            steps.append(True)
        answer = reader.result(600)
    assert answer == sorted(answer)
    assert {number % 7 for number in answer} == {0}
    assert state(task, "left") == expected_state([1] * 200)
    task.close()
