"""Each program of ``docs/examples`` runs, and shows what it is there to show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs/examples"
WORD_COUNT = """\
starts at word 0, 0 counts restored
ended by SIGKILL
starts at word 700, 56 counts restored
ended by itself
1000 outputs for 1000 words; to: 200, question: 100
"""
WEB_READERS = """\
the last answer: 20000
every answer was a whole commit
no answer was older than the one before
"""
METRICS = """\
txstores_store_commit_total{backend="sqlite-indexed-batch",shop="north",store="counts"} 3.0
txstores_store_rollback_total{backend="sqlite-indexed-batch",shop="north",store="counts"} 0.0
txstores_store_uncommitted_bytes{backend="sqlite-indexed-batch",shop="north",store="counts"} 10.0
"""
OWN_ENGINE = "[(b'apples', b'3')] {b'offset': b'41'}\n"


def run(folder: Path, *command: str, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join({str(path): None, str(ROOT): None})}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("word_count.py", WORD_COUNT),
        ("web_readers.py", WEB_READERS),
        ("prometheus_metrics.py", METRICS),
        ("own_engine.py", OWN_ENGINE),
    ],
)
def test_an_example_runs_and_prints_what_it_promises(tmp_path: Path, program: str, printed: str) -> None:
    ended = run(tmp_path, str(EXAMPLES / program))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, printed, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_the_example_of_a_report_measures_its_events_on_two_backends(tmp_path: Path) -> None:
    ended = run(tmp_path, str(EXAMPLES / "event_log_report.py"))
    assert ended.returncode == 0, ended.stderr
    title, _, *rows = [line.split("|")[1].strip() for line in ended.stdout.splitlines()]
    assert title == "backend"
    assert sorted(rows) == ["lmdb-indexed-batch", "sqlite-indexed-batch"]


@pytest.mark.long
def test_the_example_of_an_engine_keeps_the_promises_of_every_backend(tmp_path: Path) -> None:
    (tmp_path / "own_engine.py").write_text((EXAMPLES / "own_engine.py").read_text())
    info = tmp_path / "own_engine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own_engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[stores.backends]\nlog-indexed-batch = own_engine:BACKEND\n")
    # Not the bound on memory, which its documentation excludes.
    chosen = "test_transactions or test_scans or test_full_disk or test_verification or test_upgrades or test_model"
    ended = run(
        tmp_path,
        *("-m", "stores.tests.conformance", "--backend", "log-indexed-batch", "-q", "-x", "-k", chosen),
        path=tmp_path,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    programs = sorted(file.name for file in EXAMPLES.glob("*.py"))
    assert programs
    for program in programs:
        assert f"({program})" in listed
