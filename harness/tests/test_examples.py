"""Each program of ``docs/examples`` runs, and shows what it is there to show."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from random import Random

import pytest

from harness.tests.example_runs import EXAMPLES as APPLICATIONS
from harness.tests.example_runs import PARTITIONS, Example, Outcome, Sent
from stores.changelog import SqliteChangelog
from stores.changelog.partitioners import of_murmur2
from stores.interface import TopicPartition
from stores.tasks.stores.store_group import AFTER_LOG_COMMIT
from stores.testing import AppDriver
from stores.tests.worker.worker_process import DEADLINE_S, WorkerProcess

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs/examples"
KILLED_TASK = """\
starts at word 0, 0 counts restored
ended by SIGKILL
starts at word 700, 56 counts restored
ended by itself
1000 outputs for 1000 words; to: 200, question: 100
"""
WEB_READERS = """\
the last answer: 20000
each answer was a whole commit: True
none was older than the one before: True
"""
DASHBOARD = """\
the last look: 20000 clicks
each look was at a whole commit: True
none was older than the one before: True
"""
METRICS = """\
txstores_store_commit_total{backend="sqlite-indexed-batch",shop="north",store="counts"} 3.0
txstores_store_rollback_total{backend="sqlite-indexed-batch",shop="north",store="counts"} 0.0
txstores_store_uncommitted_bytes{backend="sqlite-indexed-batch",shop="north",store="counts"} 10.0
"""
FRAUD = """\
ann has spent 110000 cents by minute 9
bob has spent 110000 cents by minute 7
state is left of ['ann', 'eve']
"""
SESSIONS = """\
ann Visit(start_ms=0, end_ms=0, pages=1)
ann Visit(start_ms=1200000, end_ms=3000000, pages=4)
ann Visit(start_ms=6000000, end_ms=6000000, pages=1)
late: ['page at 47']
"""
ENRICHMENT = """\
[('o1', Priced(product='tea', cents=900)), ('o3', Priced(product='cup', cents=2700))]
failed: [b'o2']
"""
JOIN = """\
joined: ['o1', 'o2']
alone: [('o3', '1 in orders'), ('o3', 'late in payments')]
"""
CONVERSION = """\
converted: [(240, 14), (260, 17)]
unpriced: [(200, 9)]
"""
TOP_TEN = "[Rank(page='home', clicks=30), Rank(page='shop', clicks=20), Rank(page='help', clicks=10)]\n"
HOT_ITEMS = """\
2000 Hot(bids=1, auctions=['car', 'hat'])
4000 Hot(bids=2, auctions=['car'])
6000 Hot(bids=2, auctions=['car', 'hat', 'pen'])
8000 Hot(bids=3, auctions=['pen'])
10000 Hot(bids=3, auctions=['pen'])
12000 Hot(bids=3, auctions=['pen'])
14000 Hot(bids=2, auctions=['pen'])
16000 Hot(bids=1, auctions=['pen'])
"""
OWN_ENGINE = "[(b'apples', b'3')] {b'offset': b'41'}\n"
PRINTED_BY_EXAMPLES = {
    "killed_task.py": KILLED_TASK,
    "web_readers.py": WEB_READERS,
    "dashboard.py": DASHBOARD,
    "prometheus_metrics.py": METRICS,
    "own_engine.py": OWN_ENGINE,
    "fraud.py": FRAUD,
    "sessions.py": SESSIONS,
    "enrichment.py": ENRICHMENT,
    "join.py": JOIN,
    "conversion.py": CONVERSION,
    "top_ten.py": TOP_TEN,
    "hot_items.py": HOT_ITEMS,
    "new_sellers.py": "[('Ann', 1), ('Ann', 2)]\n",
    "service/word_count.py": "[('to', 1), ('be', 1), ('or', 1), ('not', 1), ('to', 2), ('be', 2)]\n",
}
"""The output of each example that runs by itself."""


def run(folder: Path, *command: str, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join({str(path): None, str(ROOT): None})}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize(("program", "printed"), PRINTED_BY_EXAMPLES.items())
def test_an_example_runs_and_prints_what_it_promises(tmp_path: Path, program: str, printed: str) -> None:
    ended = run(tmp_path, str(EXAMPLES / program))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, printed, "")
    assert list(tmp_path.iterdir()) == []


def write(log: SqliteChangelog, sent: list[Sent]) -> None:
    """Write records to the partitions of their keys; create the topics."""
    partitions = {each.topic: 1 if each.topic == "products" else PARTITIONS for each in sent}
    for topic, number in partitions.items():
        log.create_topic(topic, number)
    with log.producer() as producer:
        for topic, key, value, time_ms in sent:
            number = of_murmur2(key.encode(), partitions[topic])
            producer.send(TopicPartition(topic, number), key.encode(), value, time_ms)
        producer.flush()


def outcome(log: SqliteChangelog, example: Example) -> Outcome:
    numbers = log.topics()
    return {
        topic: read(
            [record for number in range(numbers.get(topic, 0)) for record in log.read(TopicPartition(topic, number))]
        )
        for topic, read in example.topics.items()
    }


@pytest.mark.parametrize("example", APPLICATIONS, ids=lambda example: example.program)
def test_an_application_whose_worker_is_killed_has_each_output_once(
    tmp_path: Path, example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    sent = example.draw(Random(27))
    expected = example.expected(sent)
    assert all(len(outputs) > 5 for outputs in expected.values())
    application, properties = f"{example.program}:app", {"changelog.file": "log.sqlite"}
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        write(log, sent)
        with WorkerProcess(tmp_path, "killed", properties, application=application, dies_at=AFTER_LOG_COMMIT) as killed:
            assert killed.ended() == -signal.SIGKILL, killed.report
        assert outcome(log, example) != expected
        with WorkerProcess(tmp_path, "whole", properties, application=application) as worker:
            deadline = time.monotonic() + DEADLINE_S
            while outcome(log, example) != expected and time.monotonic() < deadline and worker.runs:
                time.sleep(0.2)
            worker.await_line(rf"{example.tasks} tasks, .* lag 0")
            assert worker.terminate() == 0, worker.report
        assert outcome(log, example) == expected


def test_a_card_is_remembered_although_its_machine_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of an application, as a user writes it."""
    monkeypatch.syspath_prepend(EXAMPLES)
    fraud = import_module("fraud")
    with AppDriver(fraud.app) as driver:
        driver.pipe(fraud.PAYMENTS, "ann", 60_000, 0)
        driver.restart()
        driver.pipe(fraud.PAYMENTS, "ann", 50_000, 599_999)
        assert [(alarm.key, alarm.value) for alarm in driver.read(fraud.ALARMS)] == [("ann", 110_000)]
        driver.pipe(fraud.PAYMENTS, "ann", 50_001, 600_000)
        assert [alarm.value for alarm in driver.read(fraud.ALARMS)] == [100_001]
        driver.pipe("payments", b"ann", b"no number")
        assert [letter.value for letter in driver.read(fraud.FAILED.topic)] == [b"no number"]


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


def test_an_example_has_less_than_80_lines() -> None:
    """But for a whole engine."""
    lines = {file.name: len(file.read_text().splitlines()) for file in EXAMPLES.rglob("*.py")}
    assert {name for name, number in lines.items() if number >= 80} == {"own_engine.py"}


def test_every_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    programs = sorted(str(file.relative_to(EXAMPLES)) for file in EXAMPLES.rglob("*.py"))
    assert programs
    for program in programs:
        assert f"({program})" in listed
