"""A mistake is answered with a sentence and status 2, an interruption with 130, and nothing is left behind."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import stores
from harness.cli import main
from harness.spark.expected import expected_state
from harness.tests.shared_jvm import SharedJvm

ROOT = Path(__file__).parents[2]
BAD_SCENARIO = """
from harness.scenario import Scenario
SCENARIO = {made}
if __name__ == "__main__":
    from harness.cli import run_scenario
    raise SystemExit(run_scenario(__file__))
"""


CONFIGURATION: dict[str, Any] = {
    "backend": "memory-indexed-batch",
    "durability": "CHANGELOG",
    "workload": "count",
    "records_per_commit": 100,
    "partitions": 1,
    "repeat": 0,
    "seed": 1,
}


WRONG_THROUGHPUT: list[dict[str, Any]] = [
    {"workload": "event_log"},
    {"workload": "cuont"},
    {"events": None},
    {"events": 0},
    {"partitions": 0},
    {"configurations": []},
    {"configurations": [{"backend": "sqlite"}]},
    {"configurations": [CONFIGURATION | {"backend": "slqite"}]},
    {"configurations": [CONFIGURATION | {"durability": "DISC"}]},
    {"configurations": [CONFIGURATION | {"options": {"page": 1}}]},
    {"configurations": [CONFIGURATION | {"records_per_commit": 0}]},
    {"configurations": [CONFIGURATION | {"workload": "flights"}]},
    {"configurations": [CONFIGURATION, CONFIGURATION | {"seed": 2}]},
]


def throughput(**settings: Any) -> str:
    """The JSON of a trial of throughput with these settings."""
    trial = {"workload": "count", "events": 1_000, "partitions": 1, "configurations": [CONFIGURATION], **settings}
    if "workload" in settings or "partitions" in settings:
        trial["configurations"] = [CONFIGURATION | {name: trial[name] for name in ("workload", "partitions")}]
    return json.dumps(trial)


def environment(**more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    return kept | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **more}


def harness(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "--profile", "smokes"],
        ["bench", "--only", "crashes"],
        ["bench", "--backends", "rocksdb-direkt"],
        ["bench", "--events", "no-such-file.csv", "--key", "id"],
        ["bench", "--events", "no-such-file.csv"],
        ["bench", "--key", "id"],
        ["scenario", "kill_during_comit"],
        ["scenario", "no-such-file.py"],
        ["scenario", "your_event_log"],
        ["report", "--run", "no-such-run"],
        ["repeat", "crash", "{}"],
        ["repeat", "crahs", "{}"],
        ["repeat", "cold_cache", '{"backend":"rokcsdb","seed":1}'],
        ["repeat", "cold_cache", '{"backend":"sqlite","seed":1,"records":0}'],
        ["repeat", "latencies", '{"backend":"sqlite","seed":1,"commits":0}'],
        ["repeat", "visibility", '{"backend":"sqlite","intervals_s":[-1],"commits":1}'],
        ["repeat", "visibility", '{"backend":"sqlite","intervals_s":[],"commits":1}'],
        ["repeat", "large_steps", '{"backend":"sqlite","step_bytes":-1,"seed":1}'],
        ["repeat", "microbench", '{"case":"x","profile":"smoke","seed":1}'],
        ["repeat", "microbench", '{"case":"x","profile":"smke","seed":1}'],
        ["repeat", "readers", '{"backend":"sqlite","durability":"DISC"}'],
        ["repeat", "readers", '{"backend":"sqlite","kinds":["x"]}'],
        ["repeat", "readers", '{"backend":"sqlite","mutant":"x"}'],
        ["repeat", "readers", '{"backend":"sqlite","readers":0}'],
        ["repeat", "crash", '{"backend":"sqlite","fault":{"fault":"stop","records":1}}', "--deadline", "-1"],
        ["repeat", "crash", '{"backend":"sqlite","fault":{"fault":"stop","records":1}}', "--deadline", "nan"],
        ["repeat", "throughput", '{"workload":"count","events":10,"partitions":1,"measurements":[]}'],
        *(["repeat", "throughput", throughput(**wrong)] for wrong in WRONG_THROUGHPUT),
        ["repeat", "readers", '{"backend":"sqlite","seconds":1' + "0" * 400 + "}"],
        ["repeat", "readers", '{"backend":"sqlite","seconds":Infinity}'],
        ["bench", "--backends", ","],
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVENTS", raising=False)
    monkeypatch.delenv("KEY", raising=False)
    assert main([*arguments, *(["--runs", "runs"] if arguments[0] in ("bench", "scenario") else [])]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", ["-1", "1" + "0" * 18, "x"])
@pytest.mark.parametrize("command", [["bench"], ["scenario", "kill_during_commit"], ["readers"], ["mutants"]])
def test_a_seed_that_rows_cannot_hold_is_refused_before_anything_is_measured(
    command: list[str], seed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in ("_bench", "_named_scenario", "_readers", "_mutants"):
        monkeypatch.setattr(f"harness.cli.{run}", lambda given: pytest.fail("it went on"))
    with pytest.raises(SystemExit) as ended:
        main([*command, "--seed", seed])
    assert ended.value.code == 2
    assert "--seed" in capsys.readouterr().err


def test_a_trial_whose_process_fails_is_one_sentence_and_status_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.experiments.cold_cache_measured.DEADLINE_S", 0.01)
    assert main(["repeat", "cold_cache", '{"backend":"sqlite","seed":1}']) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 1


def test_a_trial_from_standard_input_that_is_no_text_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff{}"), encoding="utf-8"))
    assert main(["repeat", "crash", "-"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_version_is_that_of_the_installed_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"txstores-harness {stores.__version__}\n"
    assert version("txstores") == stores.__version__


def test_the_list_names_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    told = capsys.readouterr().out.split()
    assert {"rocksdb-dual-store", "flights", "kill_in_recovery", "task.after_log_commit", "kill_during_commit"} <= set(
        told
    )


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ("Scenario('crash', faults=(), backends=('rocksbd',))", "rocksbd"),
        ("Scenario('throughput', workload='cuont')", "cuont"),
        ("Scenario('crash', falts=())", "falts"),
        ("exit(0)", "SystemExit"),
    ],
)
def test_a_scenario_file_with_a_mistake_says_so_without_a_traceback(
    tmp_path: Path, made: str, named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(BAD_SCENARIO.format(made=made))
    monkeypatch.chdir(tmp_path)
    assert main(["scenario", "mine.py", "--runs", "runs"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 1
    assert named in told.err


def test_a_process_of_the_command_ends_with_that_sentence_and_status(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(BAD_SCENARIO.format(made="Scenario('crash', falts=())"))
    run = harness(tmp_path, "-m", "harness", "scenario", "mine.py", "--runs", "runs")
    assert (run.returncode, run.stdout) == (2, "")
    assert len(run.stderr.splitlines()) == 1
    assert "falts" in run.stderr


@pytest.mark.parametrize("arguments", [["bench", "--profile", "smoke"], ["scenario", "kill_during_commit"]])
def test_without_java_the_harness_says_so_before_it_does_anything(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "")
    assert main([*arguments, "--runs", "runs"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "made",
    [
        "Scenario('scale', backends=('lmdb',), records=(300,))",
        pytest.param(
            "Scenario('crash', faults=(KillAfter(13),), backends=('lmdb', 'rocksdb-direct'), seeds=1)",
            marks=pytest.mark.long,
        ),
    ],
    ids=["alone", "on Spark"],
)
def test_a_scenario_runs_from_any_folder_and_says_whether_its_claim_holds(tmp_path: Path, made: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        '"""A store keeps what was committed."""\nfrom harness.faults import KillAfter\n'
        + BAD_SCENARIO.format(made=made)
    )
    run = harness(tmp_path, str(file), "--runs", "runs", "--seed", "3")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "A store keeps what was committed." in run.stdout
    assert run.stdout.splitlines()[-1] == "mine holds (seed 3)."
    assert "WARN" not in run.stderr


def test_a_claim_that_does_not_hold_is_status_1_and_tells_how_to_repeat_the_trial(
    tmp_path: Path, shared_jvm: SharedJvm
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from harness.faults import Kill\n"
        + BAD_SCENARIO.format(
            made="Scenario('crash', faults=(Kill('mutant.between', 3),), backends=('lmdb',), seeds=1, "
            "mutants=('inputs-before-outputs',))",
        )
    )
    run = harness(tmp_path, "-m", "harness", "scenario", str(file), "--runs", "runs", **shared_jvm.variables)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "python -m harness repeat crash" in run.stdout
    assert run.stdout.splitlines()[-1] == "mine does not hold (seed 1)."


@pytest.mark.parametrize(
    ("key", "said"), [("custmer", "customer, amount"), ("customer", "1 of 3 rows of log.csv have no 'customer'")]
)
def test_a_users_log_that_is_refused_is_named_with_the_reason_and_leaves_no_run(
    tmp_path: Path, shared_jvm: SharedJvm, key: str, said: str
) -> None:
    (tmp_path / "log.csv").write_text("customer,amount\na,1\n,3\nb,2\n")
    bench = ("bench", "--profile", "smoke", "--events", "log.csv", "--key", key, "--runs", "runs")
    run = harness(tmp_path, "-m", "harness", *bench, **shared_jvm.variables)
    assert run.returncode == 2, run.stdout + run.stderr
    assert said in run.stderr.splitlines()[-1]
    assert list(tmp_path.glob("runs/*")) == []


@pytest.mark.parametrize("mutated", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_trial_of_throughput_is_repeated_by_a_command(
    shared_jvm: SharedJvm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, mutated: bool
) -> None:
    if mutated:
        # As if Spark SQL computed another state.
        monkeypatch.setattr(
            "harness.spark.gang.expected_state", lambda workload, source: expected_state(workload, source.limit(10))
        )
    with shared_jvm.joined():
        status = main(["repeat", "throughput", throughput()])
    told = capsys.readouterr()
    assert "backend memory-indexed-batch" in told.out
    if mutated:
        assert (status, "end_state different" in told.out) == (1, True)
        [command] = [line for line in told.err.splitlines() if "repeat it with" in line]
        name, text = shlex.split(command)[-2:]
        assert (name, json.loads(text)) == ("throughput", json.loads(throughput()))
    else:
        assert (status, "end_state equal" in told.out) == (0, True), told.err
