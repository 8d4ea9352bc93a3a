"""Kafka Streams keeps offsets and position in its stores from 4.3 on (KIP-1035): a takeover reads them there.

``test_streams`` and ``test_streams_kinds`` do it with state directories of Kafka Streams 4.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from stores.changelog import MemoryChangelog
from stores.errors import StoreIncompatibleError
from stores.interface import IsolationLevel, TopicPartition
from stores.tests.tasks.global_topic import PRICES, partition
from stores.tests.tasks.setup import INDEXED, INPUT, LEFT, RIGHT, changelog_of, counting_task, expected_state, state
from stores.tests.tasks.stores.test_kinds_takeover import check
from stores.tests.tasks.stores.test_takeover import ELSEWHERE, KEYS, LMDB, check_and_count_on, left_by_streams, opened
from stores.tests.tasks.streams_folder import (
    all_files,
    end_entries,
    keep_end,
    leave_offsets,
    streams_folder,
    task_folder,
)
from stores.tests.tasks.streams_kinds import KINDS, LOG, PUTS, contents, kind_task, logged, model, segments_folder
from stores.tests.tasks.streams_kinds import left_by_streams as left_by_streams_of_kind
from stores.tests.tasks.test_global_takeover import WHOLE, global_folder
from stores.tests.tasks.test_global_takeover import check as check_global
from stores.tests.tasks.test_global_takeover import left as left_prices
from stores.tests.tasks.test_global_takeover import left_by_streams as left_global

POSITION = {INPUT: 2, ELSEWHERE: 5}


def left(folder: Path, log: MemoryChangelog, entries: Mapping[str, Mapping[bytes, bytes]], end: int = 3) -> None:
    """Leave both stores with the first ``end`` records, and the entries of each."""
    left_by_streams(folder, log, offset=None, end=end)
    for name, of_store in entries.items():
        keep_end(streams_folder(folder, name), of_store)


def both(offset: int, status: int | None = 0) -> dict[str, dict[bytes, bytes]]:
    return {name: end_entries({changelog_of(name): offset}, POSITION, status=status) for name in ("left", "right")}


@pytest.mark.parametrize("status", [0, None], ids=["closed", "transactional"])
@pytest.mark.parametrize("backend", [INDEXED, LMDB])
def test_offset_and_position_are_those_of_the_store(
    tmp_path: Path, log: MemoryChangelog, backend: str, status: int | None
) -> None:
    """A transactional store has no status."""
    left(tmp_path, log, both(2, status))
    leave_offsets(task_folder(tmp_path) / "left.position", {INPUT: 1})
    with closing(counting_task(tmp_path, log, backend)) as task:
        assert opened(task) == [(False, 0)] * 2
        assert task.changelog_offsets() == {LEFT: 2, RIGHT: 2}
        assert task._context.store("left").position(IsolationLevel.READ_COMMITTED) == POSITION
    check_and_count_on(tmp_path, log, backend, [(False, 0)] * 2)


def test_the_tail_is_restored_and_a_checkpoint_file_beside_it_is_ignored(tmp_path: Path, log: MemoryChangelog) -> None:
    left(tmp_path, log, both(1), end=2)
    leave_offsets(task_folder(tmp_path) / ".checkpoint", {LEFT: 2, RIGHT: 2})
    check_and_count_on(tmp_path, log, INDEXED, [(False, 1)] * 2)


GOOD = end_entries({LEFT: 2}, POSITION)
REFUSED: Mapping[str, Mapping[bytes, bytes]] = {
    "open": end_entries({LEFT: 2}, POSITION, status=1),
    "no offset": end_entries({}, POSITION),
    "another partition": end_entries({LEFT._replace(partition=7): 2}, POSITION),
    "a short offset": {**GOOD, b"app-left-changelog-0": b"\0\0\2"},
    "a negative offset": {**GOOD, b"app-left-changelog-0": b"\xff" * 8},
    "no partition": {**GOOD, b"other": bytes(8)},
    "another version": {**GOOD, b"position": b"\1" + GOOD[b"position"][1:]},
    "a short position": {**GOOD, b"position": GOOD[b"position"][:30]},
    "no text": {**GOOD, b"position": GOOD[b"position"].replace(b"input", b"\xffnput")},
}


@pytest.mark.parametrize("entries", REFUSED.values(), ids=REFUSED)
def test_without_an_offset_that_can_be_trusted_the_store_is_restored_whole(
    tmp_path: Path, log: MemoryChangelog, entries: Mapping[bytes, bytes]
) -> None:
    left(tmp_path, log, {**both(2), "left": entries})
    leave_offsets(task_folder(tmp_path) / ".checkpoint", {LEFT: 2, RIGHT: 2})  # Of the release before.
    with closing(counting_task(tmp_path, log)) as task:
        reports = {report.store: report for report in task.open()}
        assert [reports[name].wiped for name in ("left", "right")] == [True, False]
        assert reports["left"].reason
        assert state(task, "left") == state(task, "right") == expected_state(KEYS)


def test_the_store_of_another_application_is_refused_unchanged(tmp_path: Path, log: MemoryChangelog) -> None:
    left(tmp_path, log, {"left": end_entries({TopicPartition("other-left-changelog", 0): 2}, {})})
    before = all_files(streams_folder(tmp_path, "left"))
    with (
        closing(counting_task(tmp_path, log)) as task,
        pytest.raises(StoreIncompatibleError, match="other-left-changelog"),
    ):
        task.open()
    assert all_files(streams_folder(tmp_path, "left")) == before


def databases(folder: Path, kind: str) -> list[Path]:
    """Return the databases of the store ``s``."""
    return [streams_folder(folder, "s")] if kind == "versioned" else sorted(segments_folder(folder).iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_are_taken_over_with_the_offsets_of_their_databases(
    tmp_path: Path, log: MemoryChangelog, kind: str
) -> None:
    left_by_streams_of_kind(tmp_path, log, kind)
    (task_folder(tmp_path) / ".checkpoint").unlink()
    for path in databases(tmp_path, kind):
        keep_end(path, end_entries({LOG: len(logged(kind, PUTS)) - 1}, {ELSEWHERE: 5}))
    check(tmp_path, log, kind, INDEXED, (False, 0))


def test_segments_of_different_offsets_are_restored_from_the_changelog(tmp_path: Path, log: MemoryChangelog) -> None:
    left_by_streams_of_kind(tmp_path, log, "window")
    (task_folder(tmp_path) / ".checkpoint").unlink()
    last = len(logged("window", PUTS)) - 1
    for number, path in enumerate(databases(tmp_path, "window")):
        keep_end(path, end_entries({LOG: last - (not number)}, {}))
    with closing(kind_task(tmp_path, log, "window", INDEXED)) as task:
        [report] = task.open()
        assert report.wiped
        assert "was not closed cleanly" in (report.reason or "")
        assert contents("window", task) == model("window", PUTS)


@pytest.mark.parametrize("status", [0, 1])
def test_a_global_store_goes_on_at_the_offsets_that_it_keeps(tmp_path: Path, log: MemoryChangelog, status: int) -> None:
    """They are those of the next records, as in the file before."""
    left_global(tmp_path, log)
    (global_folder(tmp_path) / ".checkpoint").unlink()
    offsets = {partition(number): at for number, at in WHOLE.items()}
    keep_end(left_prices(tmp_path), end_entries(offsets, {}, status))
    check_global(tmp_path, log, INDEXED, len(PRICES) * status, wiped=bool(status))
