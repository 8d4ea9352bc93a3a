"""The experiment about restarts over Kafka: its plan and its ratios, and one small trial on a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.answer.results import all_figures
from harness.experiment import Claim, Request, TrialWorker
from harness.experiments.kafka.experiment import Kafka
from harness.experiments.kafka.restart import KIND, LOST_RECORDS, PROMISED, PROMISED_LOST, KafkaRestart, RestartGrid
from harness.experiments.kafka.trial import KEPT, LOST, RECORDS, STREAMS, RestartTrial
from harness.experiments.registry import grid_of
from harness.processes.child import MeasurementFailedError
from harness.replay import text_of
from harness.report.figures import Figures
from harness.scenario import read_scenario, scenario_file
from stores.config import StoreConfig
from stores.errors import ConfigError
from stores.tests.kafka.shared_broker import skip_without_kafka

DEFAULT = StoreConfig().backend


def row(
    subject: str, ready_s: float, repeat: int = 0, records: int = RECORDS, *, is_lost: bool = False
) -> dict[str, Any]:
    return {
        "kind": KIND,
        "subject": subject,
        "records": records,
        "state": LOST if is_lost else KEPT,
        "repeat": repeat,
        "seed": 1,
        "trial": "command",
        "ready_s": ready_s,
        "start_s": ready_s + 6.0,
        "replayed": None if subject == STREAMS else 1_234,
        "load_average": 1.0,
        "others_share": 0.0,
        "steal_share": 0.0,
    }


def test_only_a_night_has_it_with_the_promised_records_and_the_default_backend() -> None:
    experiment = KafkaRestart()
    assert experiment.plan(Request("default")) == experiment.plan(Request("smoke")) == []
    assert experiment.plan(Request("night", backends=("lmdb-native",))) == []
    [trial] = experiment.plan(Request("night"))
    assert (trial.records, trial.subjects) == (RECORDS, (DEFAULT, STREAMS))
    assert experiment.read(text_of(trial)) == trial


@pytest.mark.parametrize("wrong", [{"records": 0}, {"repeats": 0}, {"backend": "none"}])
def test_a_trial_that_cannot_be_run_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RestartTrial(**{"records": 1, "seed": 1, **wrong})


def test_ratios_compare_a_backend_with_the_promised_time_and_with_kafka_streams_in_its_round() -> None:
    rows = [row(DEFAULT, 0.5, repeat) for repeat in range(3)] + [row(STREAMS, 20.0, 1)]
    found = {ratio["yardstick"]: ratio for ratio in KafkaRestart().finish([], rows, Claim(""))[len(rows) :]}
    assert found.keys() == {PROMISED, STREAMS}
    assert (found[PROMISED]["ratio"], found[PROMISED]["at_least"], found[PROMISED]["repeats"]) == (2.0, 1.0, 3)
    assert (found[STREAMS]["ratio"], found[STREAMS]["at_least"], found[STREAMS]["repeats"]) == (40.0, None, 1)


def test_without_local_files_a_worker_has_its_own_ratios_and_a_minute() -> None:
    rows = [row(DEFAULT, 0.5, records=LOST_RECORDS), row(STREAMS, 20.0, records=LOST_RECORDS)]
    rows += [row(name, 30.0, records=LOST_RECORDS, is_lost=True) for name in (DEFAULT, STREAMS)]
    found = KafkaRestart().finish([], rows, Claim(""))[len(rows) :]
    assert {(each["yardstick"], each["ratio"], each["at_least"], each["repeats"]) for each in found} == {
        (PROMISED, 2.0, 1.0, 1),
        (STREAMS, 40.0, None, 1),
        (PROMISED_LOST, 2.0, 1.0, 1),
        (STREAMS, 1.0, None, 1),
    }
    assert len({each["claim"] for each in found}) == 2


def figures_of(ready_s: list[float], records: int, *, is_lost: bool = False) -> Figures:
    """Return the figures of a scenario whose worker is ready after these times, one in each round."""
    rows = [row(DEFAULT, seconds, repeat, records, is_lost=is_lost) for repeat, seconds in enumerate(ready_s)]
    return all_figures({KIND: rows, "ratio": KafkaRestart().finish([], rows, Claim(""))[len(rows) :]})


def judged(ready_s: float, records: int) -> list[str]:
    """Return what a scenario misses whose worker is ready after this time, in five rounds."""
    return RestartGrid().missed(figures_of([ready_s] * 5, records))


def test_more_than_a_second_fails_the_scenario_with_the_promised_records_alone() -> None:
    assert judged(0.9, RECORDS) == []
    assert len(judged(1.1, RECORDS)) == 1
    assert judged(1.1, RECORDS - 1) == []


@pytest.mark.parametrize(
    ("ready_s", "records", "missed"), [(59.0, LOST_RECORDS, 0), (61.0, LOST_RECORDS, 1), (61.0, LOST_RECORDS - 1, 0)]
)
def test_without_local_files_more_than_a_minute_fails_the_scenario(ready_s: float, records: int, missed: int) -> None:
    grid, figures = RestartGrid(records=records, loses_state=True), figures_of([ready_s] * 5, records, is_lost=True)
    sentences = grid.missed(figures)
    assert len(sentences) == missed
    assert all("needs 61.00 s, not 60" in each for each in sentences)
    assert (grid.undecided(figures) == "") is (records == LOST_RECORDS)
    assert [(trial.loses_state, trial.streams) for trial in grid.plan(1)] == [(True, True)]


def test_the_scenario_of_lost_files_has_the_records_of_the_promise_and_the_worker_alone() -> None:
    [trial] = grid_of(read_scenario(scenario_file("lost_files_over_kafka")).scenario).plan(1)
    assert (trial.records, trial.loses_state, trial.subjects) == (LOST_RECORDS, True, (DEFAULT,))


def test_restarts_with_and_without_local_files_are_told_apart() -> None:
    rows = {KIND: [row(DEFAULT, 0.5), row(DEFAULT, 30.0, is_lost=True)]}
    (table,) = KafkaRestart().tables(all_figures(rows), rows)[:1]
    assert [each[1] for each in table.rows] == [KEPT, LOST]


@pytest.mark.parametrize(
    ("records", "repeats", "is_decided"), [(RECORDS, 5, True), (RECORDS, 1, False), (1_000, 5, False)]
)
def test_fewer_records_or_rounds_do_not_decide_the_promise(records: int, repeats: int, is_decided: bool) -> None:
    figures = figures_of([0.5] * repeats, records)
    assert (RestartGrid(records=records).undecided(figures) == "") is is_decided


def test_the_page_about_kafka_has_the_times_of_restarts() -> None:
    rows = {KIND: [row(DEFAULT, 0.5), row(STREAMS, 20.0)]}
    page = Kafka().page(all_figures(rows), rows, {})
    assert page is not None
    assert any("500 ms" in part and "6.5 s" in part and "20 s" in part and "1,230" in part for part in page.body)


@pytest.mark.kafka
def test_a_worker_that_has_lost_its_files_begins_with_a_snapshot(tmp_path: Path) -> None:
    skip_without_kafka()
    trial = RestartTrial(2_000, seed=1, repeats=2, loses_state=True, streams=False)
    rows = list(KafkaRestart().run(trial, TrialWorker(tmp_path / "work")))
    assert [(each["subject"], each["state"]) for each in rows] == [(DEFAULT, LOST)] * 2
    assert all(each["replayed"] < 2_000 for each in rows)


@pytest.mark.kafka
def test_a_worker_that_begins_without_the_snapshot_of_its_trial_is_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without_kafka()
    monkeypatch.setattr("harness.experiments.kafka.rounds.shutil.rmtree", lambda *_: None)
    trial = RestartTrial(2_000, seed=1, repeats=1, loses_state=True, streams=False)
    with pytest.raises(MeasurementFailedError, match="did not begin with the files"):
        list(KafkaRestart().run(trial, TrialWorker(tmp_path / "work")))


@pytest.mark.kafka
def test_a_killed_worker_and_a_killed_instance_of_kafka_streams_process_records_again(tmp_path: Path) -> None:
    skip_without_kafka()
    experiment = KafkaRestart()
    if reason := experiment.missing():
        pytest.skip(reason)
    trial = RestartTrial(2_000, seed=1, repeats=2)
    rows = list(experiment.run(trial, TrialWorker(tmp_path / "work")))
    assert sorted((each["subject"], each["repeat"]) for each in rows) == [
        (subject, repeat) for subject in sorted(trial.subjects) for repeat in range(2)
    ]
    assert all(0 < each["ready_s"] < each["start_s"] for each in rows)
    assert all((each["replayed"] is None) == (each["subject"] == STREAMS) for each in rows)
    kinds = [each["kind"] for each in experiment.finish([trial], rows, Claim("kafka-restart"))]
    assert kinds.count("ratio") == 2
    assert experiment.tables(all_figures({KIND: rows}), {KIND: rows})
