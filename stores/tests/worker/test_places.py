"""Waiting for outputs: it ends when no worker can make them any more, and says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from stores.tests.worker import places
from stores.tests.worker.places import EmbeddedPlace
from stores.tests.worker.worker_process import IDLE, WorkerProcess
from stores.worker.__main__ import REFUSED


def test_outputs_that_no_worker_can_make_any_more_are_not_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "LAST_S", 0.0)
    place = EmbeddedPlace(tmp_path)
    place.feed(["to", "be"])
    application = "stores.tests.worker.counting_app:inputless"
    with WorkerProcess(tmp_path, "w", place.properties(), application=application) as worker:
        assert worker.ended() == REFUSED
        with pytest.raises(AssertionError) as error:
            place.await_counted(1)
    assert worker.report in str(error.value)
    assert f"status {REFUSED}" in worker.report
    assert "'missing'" in worker.report


def test_a_report_has_the_newest_status_line_only(tmp_path: Path) -> None:
    place = EmbeddedPlace(tmp_path)
    place.feed(["to", "be"])
    with WorkerProcess(tmp_path, "w", place.properties(), verbose=True) as worker:
        worker.await_line(f"4 {IDLE}")
        report = worker.report
    assert report.count("records/s") == 1
    assert "task 0_0 runs" in report
