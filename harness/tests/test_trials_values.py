"""Faults, trials and histories as values: they survive JSON, refuse nonsense, and are the same for the same seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import replay
from harness.experiments.crash.observation import History, read_history
from harness.experiments.crash.operations import Mix, decoded, encoded, expected, inputs
from harness.experiments.crash.trial import CrashTrial
from harness.faults import (
    FAULTS,
    Abort,
    Fault,
    Fence,
    Kill,
    KillAfter,
    KillInRecovery,
    Stop,
    Timeout,
    Truncate,
)
from stores.errors import ConfigError

EVERY_KIND: list[Fault] = [
    Kill("indexed_batch.before_write"),
    Kill("indexed_batch.before_write", hit=3),
    KillAfter(40),
    KillAfter(40, flush_pressure=True),
    Abort(40, flush_pressure=True, then="kill"),
    Stop(40),
    Timeout(4),
    Fence(40),
    Truncate(40, then="kill"),
    KillInRecovery(Kill("task.after_log_commit"), (Kill("restore.before_write"), KillAfter(3))),
]


@pytest.mark.parametrize("fault", EVERY_KIND, ids=str)
def test_a_fault_is_the_same_after_a_round_trip_through_json(fault: Fault) -> None:
    assert replay.read_fault(replay.to_json(fault)) == fault


def test_every_registered_fault_is_tried_here() -> None:
    assert {fault.name for fault in EVERY_KIND} == set(FAULTS)


@pytest.mark.parametrize(
    "row",
    [
        {"fault": "kil", "failpoint": "x"},
        {"fault": "kill"},
        {"fault": "kill", "failpoint": "x", "hits": 2},
        {"fault": "kill", "failpoint": "x", "hit": 0},
        {"fault": "kill_after", "records": "many"},
        {"fault": "kill_after", "records": 1, "flush_pressure": "yes"},
        {"fault": "kill", "failpoint": 5},
        {"fault": "abort", "records": 1, "then": "rest"},
        {"fault": "timeout", "commit": 0},
        {"fault": "fence", "records": 0},
        {"fault": "truncate", "records": 1, "then": "go_on"},
        {"fault": "kill_in_recovery", "first": {"fault": "kill", "failpoint": "x"}, "again": []},
        {
            "fault": "kill_in_recovery",
            "first": {"fault": "kill", "failpoint": "x"},
            "again": [{"fault": "stop", "records": 1}],
        },
        {"fault": "kill_in_recovery", "again": [{"fault": "kill", "failpoint": "x"}]},
        "kill",
        None,
    ],
)
def test_a_fault_that_is_none_is_refused(row: object) -> None:
    with pytest.raises(ConfigError):
        replay.read_fault(row)


def test_an_unknown_fault_gets_the_nearest_name_suggested() -> None:
    with pytest.raises(ConfigError) as caught:
        replay.read_fault({"fault": "kill_aftr", "records": 1})
    assert "'kill_after'" in str(caught.value)


def test_a_trial_is_the_same_after_a_round_trip_through_its_text() -> None:
    for fault in EVERY_KIND:
        trial = CrashTrial(
            "sqlite-indexed-batch",
            fault,
            durability="DISK",
            guarantee="at_least_once",
            seed=7,
            mix=Mix(records=12),
            commit_every=3,
            options=(("page_size", 4096),),
            mutant="skipped-wipe",
            uncommitted_max_bytes=1000,
        )
        again = replay.from_text(CrashTrial, trial.text)
        assert again == trial
        assert again.id == trial.id


def test_trials_that_differ_in_anything_have_different_ids() -> None:
    trials = [
        CrashTrial("a", fault, seed=seed, durability=level)
        for fault in EVERY_KIND
        for seed in (0, 1)
        for level in ("PROCESS", "DISK")
    ]
    assert len({trial.id for trial in trials}) == len(trials)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"backend": "memory-indexed-batch"}',
        '{"fault": {"fault": "stop", "records": 1}}',
        '{"backend": "b", "fault": {"fault": "stop", "records": 1}, "durabilty": "DISK"}',
        '{"backend": "b", "fault": {"fault": "stop", "records": 1}, "durability": "DISC"}',
        '{"backend": "b", "fault": {"fault": "stop", "records": 1}, "guarantee": "twice"}',
        '{"backend": "b", "fault": {"fault": "stop", "records": 1}, "mix": {"rows": 1}}',
        '{"backend": "b", "fault": {"fault": "stop", "records": 1}, "mix": 5}',
        '{"backend": "b", "fault": {"fault": "stop", "records": 1}, "options": 5}',
        '{"backend": "b", "fault": {"fault": "stop", "records": 1}, "commit_every": 0}',
        '{"backend": "b", "fault": {"fault": "stop", "records": 1}, "uncommitted_max_bytes": -2}',
        '{"backend": "b", "fault": {"fault": "stop", "records": 1}, "commit_every": "often"}',
        '{"backend": "b", "fault": {"fault": "stop", "records": 1}, "seed": "x"}',
        '{"backend": "b", "fault": {"fault": "stop", "records": 1}, "mutant": []}',
        '{"backend": "b", "fault": {"fault": "stop", "records": 1}, "mix": {"records": "many"}}',
        '{"backend": "b", "fault": {"fault": "stop", "records": 1}, "mix": {"keys": 0}}',
        '{"backend": 3, "fault": {"fault": "stop", "records": 1}}',
        '{"backend": "b", "fault": {"fault": "stop", "records": 1}, "options": {"staging_buffer_bytes": [1]}}',
        '{"backend": "b", "fault": {"fault": "stop", "records": 1}, "options": {"staging_buffer_bytes": null}}',
    ],
)
def test_a_text_that_is_no_trial_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        replay.from_text(CrashTrial, text)


def test_the_repeat_command_carries_the_whole_trial() -> None:
    import shlex

    trial = CrashTrial("rocksdb-direct", EVERY_KIND[-1], seed=3)
    assert replay.from_text(CrashTrial, shlex.split(replay.command("crash", trial))[-1]) == trial


def test_the_same_seed_gives_the_same_input_and_another_seed_another() -> None:
    assert list(inputs(Mix(), 1)) == list(inputs(Mix(), 1))
    assert list(inputs(Mix(), 1)) != list(inputs(Mix(), 2))


def test_operations_survive_their_encoding() -> None:
    for operations in inputs(Mix(records=100), 5):
        assert decoded(encoded(operations)) == operations


def test_the_oracle_expects_one_output_per_input_and_changes_in_both_stores() -> None:
    told = expected(inputs(Mix(records=60), 1))
    assert [key for key, _ in told.outputs] == [b"%06d" % number for number in range(60)]
    assert {change.store for change in told.changes} == {"left", "right"}
    assert any(change.value is None for change in told.changes)


def test_a_history_is_read_as_it_was_noted(tmp_path: Path) -> None:
    with History(tmp_path / "history") as history:
        history.note("begin")
        history.note("acknowledged", next_input=4)
    assert read_history(tmp_path / "history") == [{"event": "begin"}, {"event": "acknowledged", "next_input": 4}]


def test_a_torn_last_line_of_a_history_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "history").write_bytes(b'{"event":"begin"}\n{"event":"ackno')
    assert read_history(tmp_path / "history") == [{"event": "begin"}]


def test_a_history_that_was_never_begun_is_empty(tmp_path: Path) -> None:
    assert read_history(tmp_path / "history") == []


def test_a_history_with_a_damaged_line_inside_is_refused(tmp_path: Path) -> None:
    (tmp_path / "history").write_bytes(b'{"eve\n{"event":"begin"}\n')
    with pytest.raises(ValueError):
        read_history(tmp_path / "history")
