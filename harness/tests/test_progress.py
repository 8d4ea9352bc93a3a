"""A stage has one line, which says what it has found and how much time is left."""

from __future__ import annotations

import io
import time
from pathlib import Path
from queue import SimpleQueue

import pytest

from harness import progress
from harness.budget import Deadline
from harness.progress import LINE_EVERY_S, PROGRESS_FILE, Progress, ProgressFile, note_progress
from harness.tests.clock import Clock


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made)
    return made


def stages(shown: Progress, clock: Clock) -> None:
    """Two stages with three and one results, and one without any."""
    shown.stage("throughput")
    for number in range(3):
        clock.now += 1.0
        shown.say(f"result {number}")
    shown.stage("nothing")
    shown.stage("crash trials")
    shown.say("all as promised")
    clock.now += 1.0
    shown.end_stage()


def test_a_stage_has_one_line_with_its_last_result_and_the_time_left(clock: Clock) -> None:
    stream = io.StringIO()
    stages(Progress(Deadline(clock.now + 100, clock), stream), clock)
    assert stream.getvalue().splitlines() == [
        "    3 s, 97 s left  throughput: result 2",
        "    4 s, 96 s left  crash trials: all as promised",
    ]


def test_a_long_stage_has_further_lines_and_repeats_none_at_its_end(clock: Clock) -> None:
    stream = io.StringIO()
    shown = Progress(stream=stream)
    shown.stage("throughput")
    for number in range(4):
        clock.now += LINE_EVERY_S / 2
        shown.say(f"result {number}")
    shown.end_stage()
    assert [line.rpartition(": ")[2] for line in stream.getvalue().splitlines()] == ["result 1", "result 3"]


def test_on_a_terminal_the_line_of_a_stage_is_drawn_again_and_ends_with_the_stage(clock: Clock) -> None:
    stream = Terminal()
    stages(Progress(stream=stream), clock)
    lines = stream.getvalue().split("\n")
    assert [line.rpartition(": ")[2] for line in lines] == ["result 2", "done", "all as promised", ""]
    assert lines[0].count("\r") > 1


def test_a_line_is_no_wider_than_the_terminal(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    shown = Progress(stream=stream)
    shown.stage("throughput")
    shown.say("long " * 20)
    shown.end_stage()
    assert max(len(line.replace(progress._CLEAR, "")) for line in stream.getvalue().split("\r")) <= 40


def test_each_line_of_a_progress_file_is_passed_on_once_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "POLL_S", 600.0)
    path, said = tmp_path / PROGRESS_FILE, list[str]()
    with ProgressFile(path, said.append) as shown:
        note_progress(path, "first")
        with path.open("a") as file:
            file.write("sec")
        shown._say_new()
        assert said == ["first"]
        with path.open("a") as file:
            file.write("ond\n")
        shown._say_new()
        note_progress(path, "third\nand last")
    assert said == ["first", "second", "third and last"]


def test_a_process_that_nobody_watches_notes_no_progress(tmp_path: Path) -> None:
    note_progress(tmp_path / PROGRESS_FILE, "first")
    assert list(tmp_path.iterdir()) == []


def test_a_line_of_a_progress_file_is_passed_on_while_the_process_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "POLL_S", 0.01)
    path, said = tmp_path / PROGRESS_FILE, SimpleQueue[str]()
    with ProgressFile(path, said.put):
        note_progress(path, "first")
        assert said.get(timeout=600) == "first"
