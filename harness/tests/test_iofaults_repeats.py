"""Trials of I/O faults as commands that repeat them, and what is no trial."""

from __future__ import annotations

import json
import shlex
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from harness import replay
from harness.checkers.prefix import Found, PrefixFinding, Promised
from harness.cli import main
from harness.experiments.iofaults.case import IoFaultCase, read_asked, repeat_command
from harness.experiments.iofaults.fault import IO_FAULTS as FAULTS
from harness.experiments.iofaults.power import UnseenWritesError
from harness.experiments.iofaults.processes import to_plan
from harness.experiments.iofaults.subjects import (
    CHECKPOINT,
)
from harness.experiments.iofaults.workshop import Workshop
from harness.io_trace.recorder import Fail, KillAt, read_recording
from harness.processes.fork_server import ForkServer, ForkServerError
from harness.tests.exploring import SEED, explore, points_of, rows_of
from stores.errors import ConfigError

pytestmark = pytest.mark.usefixtures("own_recordings")


def test_a_subset_has_the_rows_it_has_among_all(fork_server: ForkServer) -> None:
    case = IoFaultCase(CHECKPOINT, "DISK", "kill", commits=3)
    points = points_of(case, SEED, fork_server)
    whole = list(rows_of(case, points, SEED, fork_server=fork_server))
    half = len(points) // 2
    assert whole == [
        *rows_of(case, points[:half], SEED, fork_server=fork_server),
        *rows_of(case, points[half:], SEED, fork_server=fork_server),
    ]
    assert [row["point"] for row in whole] == list(points)


def test_the_command_of_a_row_repeats_it_alone(capsys: pytest.CaptureFixture[str], fork_server: ForkServer) -> None:
    case = IoFaultCase(CHECKPOINT, "DISK", "power", commits=3, mutant="unsynced-rename")
    row = next(row for row in explore(fork_server, case, places=6, width=3) if row["result"] == Found.LOST)
    asked = row["repeat"].removeprefix("python -m harness repeat iofaults ").strip("'")
    assert read_asked(asked).only == row["only"]
    assert main(["repeat", "iofaults", asked]) == 1
    assert row["description"] in capsys.readouterr().out


def test_a_command_without_a_point_repeats_the_whole_case_and_tells_what_is_wrong(
    capsys: pytest.CaptureFixture[str], fork_server: ForkServer
) -> None:
    for mutant, status in (("", 0), ("unsynced-rename", 1)):
        case = IoFaultCase(CHECKPOINT, "DISK", "power", commits=2, mutant=mutant, states_per_position=2)
        assert main(shlex.split(repeat_command(case, None, SEED))[3:]) == status
        *wrong, last = capsys.readouterr().out.splitlines()
        assert bool(wrong) == bool(status)
        assert int(last.split()[0]) == len(
            list(rows_of(case, points_of(case, SEED, fork_server), SEED, fork_server=fork_server))
        )


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "{}",
        '{"case": {"subject": "lmdb-indexed-batch", "level": "DISK"}, "point": 0, "seed": 0}',
        '{"case": {"subject": "nothing", "level": "DISK", "fault": "kill"}, "point": 0, "seed": 0}',
        '{"case": {"subject": "checkpoint-file", "level": "PROCESS", "fault": "kill"}, "point": 0, "seed": 0}',
        '{"case": {"subject": "checkpoint-file", "level": "DISK", "fault": "flood"}, "point": 0, "seed": 0}',
        '{"case": {"subject": "checkpoint-file", "level": "DISK", "fault": "kill", "x": 1}, "point": 0, "seed": 0}',
        '{"case": {"subject": ["lmdb"], "level": "DISK", "fault": "kill"}, "point": 0}',
        '{"case": {"subject": "checkpoint-file", "level": "DISK", "fault": {}}, "point": 0}',
        '{"case": {"subject": "checkpoint-file", "level": "DISK", "fault": "kill", "commits": 1.5}, "point": 0}',
        '{"case": {"subject": "checkpoint-file", "level": "DISK", "fault": "kill", "commits": 1000000000}, "point": 0}',
        '{"case": {"subject": "checkpoint-file", "level": "DISK", "fault": "kill", "mutant": ["no-sync"]}, "point": 0}',
        '{"case": {"subject": "checkpoint-file", "level": "DISK", "fault": "kill"}, "point": 9223372036854775808}',
        '{"case": {"subject": "checkpoint-file", "level": "DISK", "fault": "kill"}, "point": 0, "only": "nonsense"}',
        '{"case": {"subject": "checkpoint-file", "level": "DISK", "fault": "kill_twice"}, "point": 0, "only": "-1"}',
        "[" * 100_000,
    ],
)
def test_what_is_no_trial_is_refused_with_a_sentence(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repeat", "iofaults", text]) == 2
    assert capsys.readouterr().err


def test_a_case_comes_back_from_its_json() -> None:
    for fault, kind in FAULTS.items():
        for variant in kind.variants:
            case = IoFaultCase(CHECKPOINT, "DISK", fault, variant, commits=4, states_per_position=5)
            assert replay.from_text(IoFaultCase, replay.text_of(case)) == case
    with pytest.raises(ConfigError):
        IoFaultCase(CHECKPOINT, "DISK", "power", "no-such-model")


def test_a_find_keeps_its_recording_and_nothing_else_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.folders._MEMORY", tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("harness.experiments.iofaults.workshop.KEPT", tmp_path / "kept")
    with Workshop(IoFaultCase(CHECKPOINT, "DISK", "power", commits=2), SEED) as shop:
        recording = shop.recording()
        row = shop.row(1, "", "made up", Promised(), PrefixFinding(Found.TORN, None, False))
    kept = Path(read_asked(row["repeat"].removeprefix("python -m harness repeat iofaults ").strip("'")).case.recording)
    assert kept.parent == tmp_path / "kept"
    assert read_recording(kept) == recording
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [kept]


@pytest.mark.parametrize(
    "trouble", [UnseenWritesError("a map"), OSError(28, "No space left on device"), ForkServerError()]
)
def test_a_trial_that_can_not_be_made_here_is_one_sentence_and_no_verdict(
    trouble: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*given: object) -> NoReturn:
        raise trouble

    monkeypatch.setattr(Workshop, "writer", refuse)
    asked = json.dumps({"case": {"subject": CHECKPOINT, "level": "DISK", "fault": "power"}, "point": 0})
    assert main(["repeat", "iofaults", asked]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_recording_that_is_not_whole_or_of_another_writer_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fork_server: ForkServer
) -> None:
    case = IoFaultCase(CHECKPOINT, "DISK", "power", commits=2, recording=str(tmp_path / "whole"))
    with Workshop(case, SEED, fork_server) as shop:
        assert shop.recording()
    raw = (tmp_path / "whole").read_bytes()
    cut, garbled = replace(case, recording=str(tmp_path / "cut")), replace(case, recording=str(tmp_path / "garbled"))
    Path(cut.recording).write_bytes(raw[: len(raw) // 2])
    Path(garbled.recording).write_bytes(raw[: len(raw) // 2] + bytes(300) + raw[len(raw) // 2 :])
    for promises, seed in ((case, SEED + 1), (replace(case, commits=3), SEED), (cut, SEED), (garbled, SEED)):
        asked = json.dumps({"case": replay.to_json(promises), "point": 1, "seed": seed})
        assert main(["repeat", "iofaults", asked]) == 2
        assert capsys.readouterr().err


def test_a_plan_is_given_by_its_name() -> None:
    assert to_plan(["KillAt", 3]) == KillAt(3)
    assert to_plan(["Fail", 3, 5, True]) == Fail(3, 5, True)


def test_the_repeat_command_names_one_trial() -> None:
    case = IoFaultCase(CHECKPOINT, "DISK", "tear")
    promises = json.loads(shlex.split(repeat_command(case, 4, SEED, "7"))[5])
    assert promises == {
        "case": {"subject": CHECKPOINT, "level": "DISK", "fault": "tear"},
        "point": 4,
        "seed": SEED,
        "only": "7",
    }
