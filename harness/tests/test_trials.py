"""Trials whose processes are really killed: sound backends pass, and every mutant is detected."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness import replay
from harness.checkers.evidence import Result
from harness.cli import main
from harness.experiments.crash.experiment import failures, row
from harness.experiments.crash.observation import read_history
from harness.experiments.crash.operations import Mix
from harness.experiments.crash.plan import UNDER_PRESSURE, crash_matrix
from harness.experiments.crash.run import CHECKERS, CrashOutcome, examine
from harness.experiments.crash.trial import TRIAL_FILE, CrashTrial, history_file
from harness.faults import Abort, Fault, Fence, Kill, KillAfter, KillInRecovery, Stop, Timeout, Truncate
from harness.mutants import CRASH_TRIALS
from harness.processes.child import ORPHANED, run_child, run_forked
from harness.processes.fork_server import ForkServer
from harness.tests.comparison import comparable
from harness.typed_maps import IN_TURN, KINDS
from stores.registry import backends
from stores.strategies.dual_store import RECOVER_COPIED

SOUND = "sqlite-indexed-batch"
DIRECT = "rocksdb-direct"
TRANSACTIONAL = ("rocksdb-indexed-batch", "rocksdb-dual-store", "lmdb-indexed-batch", SOUND)
AFTER_LOG = Kill("task.after_log_commit", hit=5)
SMALL = Mix(records=48)
ABORT_UNDER_PRESSURE = Abort(220, flush_pressure=True, then="kill")

MUTATED = {
    "offsets-before": CrashTrial(SOUND, Kill("mutant.half_written", hit=5), "PROCESS"),
    "torn-commit": CrashTrial(SOUND, Kill("mutant.half_written", hit=5), "PROCESS"),
    "segments-one-by-one": CrashTrial(SOUND, Kill("mutant.half_written", hit=5), "PROCESS", records="window"),
    "early-acknowledgement": CrashTrial(SOUND, KillAfter(25), "PROCESS"),
    "write-through": CrashTrial(SOUND, KillAfter(60), "PROCESS"),
    "skipped-wipe": CrashTrial(DIRECT, ABORT_UNDER_PRESSURE, **UNDER_PRESSURE),
    "forgetful-restore": CrashTrial(SOUND, AFTER_LOG, "PROCESS"),
    "inputs-after-outputs": CrashTrial(SOUND, Kill("mutant.between", hit=3), "PROCESS"),
    "inputs-before-outputs": CrashTrial(SOUND, Kill("mutant.between", hit=3), "PROCESS"),
    "restore-from-start": CrashTrial(SOUND, AFTER_LOG, "PROCESS"),
    "newest-offset-wins": CrashTrial(SOUND, Kill("task.between_stores", hit=5), "PROCESS"),
    "one-offset-for-all": CrashTrial(SOUND, Kill("task.between_stores", hit=7), "PROCESS"),
    "kept-past-truncation": CrashTrial(SOUND, Truncate(60), "PROCESS"),
    "wiped-on-timeout": CrashTrial(SOUND, Timeout(5), "PROCESS"),
    "zombie-commits": CrashTrial(SOUND, Fence(60), "PROCESS"),
}


def assert_valid(outcome: CrashOutcome) -> None:
    assert outcome.result is Result.VALID, "\n".join(failures(outcome))


def result_of(outcome: CrashOutcome, checker: str) -> Result:
    return {verdict.checker: verdict.result for verdict in outcome.verdicts}[checker]


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer | None]:
    """The processes of most trials here are forked from it. Those of a few are started: the verdicts are the same."""
    if sys.platform != "linux":
        yield None
        return
    with ForkServer(preload=False) as warm:
        yield warm


@pytest.mark.parametrize("backend", backends())
def test_a_backend_killed_between_changelog_and_stores_and_again_while_restored_keeps_every_promise(
    backend: str, fork_server: ForkServer | None
) -> None:
    """Source: KIP-844, "crash between 3 and 4a"."""
    fault = KillInRecovery(
        AFTER_LOG,
        (Kill("task.restore.before_write"), Kill("task.restore.after_write"), KillAfter(30)),
    )
    assert_valid(examine(CrashTrial(backend, fault), fork_server=fork_server))


@pytest.mark.parametrize("backend", backends())
def test_a_backend_killed_inside_a_transaction_keeps_every_promise(
    backend: str, fork_server: ForkServer | None
) -> None:
    """Source: KIP-844, "crash between 1 and 3"."""
    level = "PROCESS" if "PROCESS" in backends()[backend].durabilities else "CHANGELOG"
    assert_valid(examine(CrashTrial(backend, KillAfter(60), level, seed=1), fork_server=fork_server))


@pytest.mark.parametrize("kind", KINDS)
def test_typed_stores_killed_between_two_of_a_task_keep_every_promise(
    kind: str, fork_server: ForkServer | None
) -> None:
    assert_valid(
        examine(
            CrashTrial("sqlite-native", Kill("task.between_stores", 4), records=kind),
            fork_server=fork_server,
        )
    )


@pytest.mark.parametrize("fault", [Abort(60), Abort(60, then="kill"), Abort(60, then="go_on"), Stop(60)], ids=str)
@pytest.mark.parametrize("backend", [SOUND, DIRECT])
def test_an_aborted_transaction_and_a_clean_stop_leave_nothing_behind(
    backend: str, fault: Fault, fork_server: ForkServer | None
) -> None:
    """Source: KIP-129, "Fault tolerance" (aborted updates are not applied)."""
    assert_valid(examine(CrashTrial(backend, fault), fork_server=fork_server))


@pytest.mark.parametrize(
    ("backend", "fault"),
    [
        (SOUND, Timeout(5)),
        (DIRECT, Timeout(5)),
        (SOUND, Fence(60)),
        (SOUND, Truncate(60, then="kill")),
        (DIRECT, Truncate(60)),
    ],
    ids=str,
)
def test_a_task_outlives_a_timeout_a_takeover_and_a_changelog_that_leaves_its_stores_behind(
    backend: str, fault: Fault, fork_server: ForkServer | None
) -> None:
    """Source: KIP-892, "Error Handling"; KIP-98, zombie fencing."""
    assert_valid(examine(CrashTrial(backend, fault, "PROCESS", mix=Mix(records=120)), fork_server=fork_server))


@pytest.mark.parametrize("backend", [SOUND, DIRECT])
@pytest.mark.parametrize("fault", [AFTER_LOG, Kill("task.after_store_commit", hit=4), KillAfter(60)], ids=str)
def test_at_least_once_loses_nothing(backend: str, fault: Fault, fork_server: ForkServer | None) -> None:
    """Source: KIP-129, at least once."""
    assert_valid(examine(CrashTrial(backend, fault, guarantee="at_least_once"), fork_server=fork_server))


def test_a_roll_forward_that_is_killed_is_repeated(fork_server: ForkServer | None) -> None:
    """Source: KIP-844, "roll forward"."""
    again = (
        Kill("dual_store.recover.before_copy"),
        Kill("dual_store.recover.before_copy"),
        Kill("dual_store.recover.copied"),
    )
    fault = KillInRecovery(Kill("dual_store.marker_synced", hit=5), again)
    assert_valid(examine(CrashTrial("rocksdb-dual-store", fault, "PROCESS"), fork_server=fork_server))


@pytest.mark.long
@pytest.mark.parametrize("records", IN_TURN)
def test_a_roll_forward_without_a_log_of_the_engine_is_reached_in_each_kind_of_store(records: str) -> None:
    """A kill loses what a new store has noted of itself, and the commit on top of it: so it is closed once before."""
    [trial, *_] = [
        trial
        for trial in crash_matrix(["rocksdb-dual-store"], ["CHANGELOG"], profile="night")
        if trial.fault.place == RECOVER_COPIED
    ]
    assert_valid(examine(replace(trial, records=records)))


def test_every_mutant_of_crash_trials_is_tried_here_and_every_checker_has_one() -> None:
    assert set(MUTATED) == set(CRASH_TRIALS)
    assert {mutant.checker for mutant in CRASH_TRIALS.values()} == set(CHECKERS)


@pytest.mark.parametrize("name", MUTATED)
def test_the_checker_of_each_mutant_detects_it(name: str, fork_server: ForkServer | None) -> None:
    outcome = examine(replace(MUTATED[name], mutant=name), fork_server=fork_server)
    assert result_of(outcome, "course") is Result.VALID, failures(outcome)
    assert result_of(outcome, CRASH_TRIALS[name].checker) is Result.ANOMALY


@pytest.mark.parametrize("backend", [*TRANSACTIONAL, "memory-indexed-batch"])
def test_without_its_wipe_every_backend_but_the_direct_one_passes(backend: str, fork_server: ForkServer | None) -> None:
    """Source: KAFKA-20685, a background flush before an abort."""
    assert_valid(
        examine(
            CrashTrial(backend, ABORT_UNDER_PRESSURE, mutant="skipped-wipe", **UNDER_PRESSURE), fork_server=fork_server
        )
    )


def test_with_its_wipe_the_direct_backend_passes(fork_server: ForkServer | None) -> None:
    assert_valid(examine(CrashTrial(DIRECT, ABORT_UNDER_PRESSURE, **UNDER_PRESSURE), fork_server=fork_server))


def test_a_failpoint_that_is_never_reached_makes_the_trial_unknown(fork_server: ForkServer | None) -> None:
    outcome = examine(CrashTrial(SOUND, Kill("task.restore.before_write"), mix=SMALL), fork_server=fork_server)
    assert outcome.result is Result.UNKNOWN
    assert result_of(outcome, "course") is Result.UNKNOWN


@pytest.mark.parametrize("fault", [Stop(49), Abort(49), Timeout(9)], ids=str)
def test_a_fault_that_never_strikes_makes_the_trial_unknown(fault: Fault, fork_server: ForkServer | None) -> None:
    assert result_of(examine(CrashTrial(SOUND, Stop(48), mix=SMALL), fork_server=fork_server), "course") is Result.VALID
    assert examine(CrashTrial(SOUND, fault, mix=SMALL), fork_server=fork_server).result is Result.UNKNOWN


def test_a_process_that_does_not_end_is_killed_at_its_deadline_and_unknown() -> None:
    outcome = examine(CrashTrial(SOUND, KillAfter(10), mix=SMALL), deadline_s=0.02)
    assert outcome.result is Result.UNKNOWN


@pytest.mark.parametrize(
    "trial",
    [
        CrashTrial("no-such-backend", Stop(1)),
        CrashTrial(SOUND, Kill("no.such_failpoint"), mix=SMALL),
        CrashTrial(SOUND, Stop(1), mutant="no-such-mutant"),
        CrashTrial(SOUND, Stop(1), options=(("no_such_option", 1),)),
    ],
    ids=str,
)
def test_a_trial_that_cannot_be_run_is_unknown_and_does_not_raise(
    trial: CrashTrial, fork_server: ForkServer | None
) -> None:
    assert examine(trial, fork_server=fork_server).result is Result.UNKNOWN


def test_the_same_trials_give_the_same_verdicts_byte_for_byte(fork_server: ForkServer | None) -> None:
    trials = [
        CrashTrial(SOUND, AFTER_LOG, mix=SMALL, commit_every=6),
        replace(MUTATED["torn-commit"], mutant="torn-commit"),
    ]
    assert comparable(row(examine(trial, fork_server=fork_server)) for trial in trials) == comparable(
        row(examine(trial, fork_server=fork_server)) for trial in trials[::-1]
    )


def test_a_trial_leaves_nothing_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert_valid(examine(CrashTrial(SOUND, Stop(10), mix=SMALL)))
    assert list(tmp_path.iterdir()) == []


def test_a_process_of_a_trial_ends_with_its_parent(tmp_path: Path) -> None:
    trial = CrashTrial(SOUND, Stop(200_000), mix=Mix(records=200_000))
    (tmp_path / TRIAL_FILE).write_text(trial.text)
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.experiments.crash.writer", "0"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        deadline = time.monotonic() + 600
        while not read_history(tmp_path / history_file(0)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(600) == ORPHANED
    finally:
        process.kill()
        process.wait()


def test_a_process_that_fails_says_why(tmp_path: Path) -> None:
    ending = run_child("harness.experiments.crash.writer", ["0"], tmp_path, 30)
    assert ending.status == 1
    assert ending.complaint.startswith("FileNotFoundError")


def test_a_process_at_its_deadline_is_killed_and_waited_for(tmp_path: Path) -> None:
    assert run_child("http.server", ["0"], tmp_path, 0.5).status is None


def test_the_command_runs_a_trial_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["repeat", "crash", CrashTrial(SOUND, Stop(10), mix=SMALL).text, "--keep", str(tmp_path / "kept")]) == 0
    assert (tmp_path / "kept" / TRIAL_FILE).exists()
    assert capsys.readouterr().err == ""


def test_the_command_passes_its_deadline_on(tmp_path: Path) -> None:
    trial = CrashTrial(SOUND, Stop(10), mix=SMALL).text
    assert main(["repeat", "crash", trial, "--deadline", "0.01", "--keep", str(tmp_path / "kept")]) == 1


def test_the_command_fails_with_a_failed_trial_and_prints_how_to_repeat_it(capsys: pytest.CaptureFixture[str]) -> None:
    trial = replace(MUTATED["torn-commit"], mutant="torn-commit")
    assert main(["repeat", "crash", trial.text]) == 1
    assert replay.command("crash", trial) in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        '{"backend": "rocksdb-direkt", "fault": {"fault": "stop", "records": 1}}',
        '{"backend": "sqlite", "fault": {"fault": "kill", "failpoint": "dual_store.copied"}}',
        '{"backend": "sqlite", "fault": {"fault": "stop", "records": 1}, "mutant": "torn-comit"}',
        '{"backend": "sqlite", "fault": {"fault": "stop", "records": 1}, "options": {"page": 1}}',
    ],
)
def test_the_command_refuses_what_is_no_trial(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repeat", "crash", text]) == 2
    assert capsys.readouterr().out == ""


def test_the_command_refuses_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    assert main(["repeat", "crash", CrashTrial(SOUND, Stop(1)).text, "--keep", str(tmp_path)]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_kill_is_a_kill(tmp_path: Path) -> None:
    (tmp_path / TRIAL_FILE).write_text(CrashTrial(SOUND, KillAfter(10), mix=SMALL).text)
    assert run_child("harness.experiments.crash.writer", ["0"], tmp_path, 30).status == -signal.SIGKILL
    assert read_history(tmp_path / history_file(0))[-1]["event"] == "killed"


@pytest.mark.skipif(sys.platform != "linux", reason="a fork server forks with what only Linux has")
@pytest.mark.parametrize("mutant", [None, "torn-commit", "skipped-wipe"])
def test_forked_or_started_a_trial_has_the_same_verdicts(fork_server: ForkServer, mutant: str | None) -> None:
    trial = replace(MUTATED[mutant or "torn-commit"], mutant=mutant)
    if mutant is None:
        trial = CrashTrial(DIRECT, KillInRecovery(AFTER_LOG, (Kill("task.restore.before_write"),)))
    forked, started = examine(trial, fork_server=fork_server), examine(trial)
    assert forked.verdicts_text == started.verdicts_text
    assert started.result is (Result.VALID if mutant is None else Result.ANOMALY)


@pytest.mark.skipif(sys.platform != "linux", reason="a fork server forks with what only Linux has")
def test_a_forked_process_that_fails_says_why_and_one_at_its_deadline_is_killed(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    failed = run_forked(fork_server, "harness.experiments.crash.writer", 0, tmp_path, 30)
    assert failed.status == 1
    assert failed.complaint.startswith("FileNotFoundError")
    (tmp_path / TRIAL_FILE).write_text(CrashTrial(SOUND, KillAfter(100_000), mix=Mix(records=100_000)).text)
    assert run_forked(fork_server, "harness.experiments.crash.writer", 0, tmp_path, 0.01).status is None
    again = tmp_path / "again"
    again.mkdir()
    (again / TRIAL_FILE).write_text(CrashTrial(SOUND, KillAfter(10), mix=SMALL).text)
    assert run_forked(fork_server, "harness.experiments.crash.writer", 0, again / ".", 30).status == -signal.SIGKILL
