"""The position that a standby copy claims for queries: asked for at intervals, and never ahead of its state."""

from __future__ import annotations

from pathlib import Path

import pytest

from stores.tasks import TaskId
from stores.tasks.task_resources import StandbyTask
from stores.tests.changelog.records import MANY
from stores.tests.worker.queries.test_standby_queries import FollowedTask, followed  # noqa: F401
from stores.worker import standbys
from stores.worker.standbys import StandbyCopy


def test_a_copy_has_no_position_whose_records_can_not_be_read_yet(followed: FollowedTask) -> None:  # noqa: F811
    """An open transaction hides them. Kafka shows offsets and records of one commit one after another."""
    [changelog] = [each for each in followed.task.changelog_offsets() if "values" in each.topic]
    followed.commit(b"first")
    assert followed.step() == (b"first", 0, 0)
    first, second = followed.log.producer("first"), followed.log.producer("second")
    for hidden, by, shown in ((b"second", first, (b"first", 0, 0)), (b"third", second, (b"first", 0, 0))):
        by.begin()
        for _ in range(MANY):
            by.send(changelog, b"open", b"")
        followed.commit(hidden)
        assert [followed.step() for _ in range(3)] == [shown] * 3
    # The position that was hidden by the first is shown, although that of a later commit still is not.
    first.abort()
    assert followed.step() == (b"second", 1, 0)
    assert followed.step() == (b"second", 1, 0)
    second.abort()
    assert [followed.step() for _ in range(2)][-1] == (b"third", 2, 0)


@pytest.mark.parametrize(("queried", "position_s", "expected"), [(False, 0.0, 0), (True, 600.0, 1), (True, 0.0, 4)])
def test_a_copy_asks_for_positions_at_intervals_if_it_is_queried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queried: bool, position_s: float, expected: int
) -> None:
    monkeypatch.setattr(standbys, "FOLLOW_S", 0.0)
    monkeypatch.setattr(standbys, "POSITION_S", position_s)
    asked: list[object] = []
    committed_position = StandbyTask.committed_position

    def counted(task: StandbyTask) -> object:
        asked.append(task)
        return committed_position(task)

    monkeypatch.setattr(StandbyTask, "committed_position", counted)
    task = FollowedTask(tmp_path)
    copy = StandbyCopy(TaskId(0, 0), lambda task_id, on_restore: task.made("copy"), queried=queried)
    for _ in range(4):
        copy.step()
    copy.close()
    task.task.close()
    assert len(asked) == expected
