"""The experiment about tasks over Kafka: its plan and its ratios, and one small trial on a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.answer.results import all_figures
from harness.experiment import Claim, Request, TrialWorker
from harness.experiments.kafka.experiment import BACKENDS, Kafka, KafkaGrid
from harness.experiments.kafka.trial import BARE, BATCHES, EMBEDDED, KAFKA, SHARED, STREAMS, KafkaTrial, checksum_of
from harness.processes import kafka_jars
from harness.replay import text_of
from stores.config import StoreConfig
from stores.errors import ConfigError
from stores.tests.kafka.shared_broker import skip_without_kafka

DEFAULT = StoreConfig().backend


def row(subject: str, seconds: float, repeat: int = 0, changelog: str = KAFKA, **others: Any) -> dict[str, Any]:
    return {
        "kind": "kafka",
        "subject": subject,
        "changelog": changelog,
        "workload": "count",
        "partitions": 1,
        "commit_interval_ms": 100,
        "repeat": repeat,
        "seed": 1,
        "trial": "command",
        "records": 100,
        "seconds": seconds,
        "cpu_s": seconds,
        "entries": 5,
        "checksum": "0000002a",
        "load_average": 1.0,
        "others_share": 0.0,
        "steal_share": 0.0,
        **others,
    }


def test_only_a_night_has_it_and_only_with_the_default_backend() -> None:
    experiment = Kafka()
    assert experiment.plan(Request("default")) == experiment.plan(Request("smoke")) == []
    assert experiment.plan(Request("night", backends=("lmdb-native",))) == []
    [chosen, *_] = experiment.plan(Request("night", backends=(DEFAULT, "lmdb-indexed-batch")))
    assert chosen.backends == (DEFAULT, "lmdb-indexed-batch")
    assert {(trial.workload, trial.partitions, trial.backends) for trial in experiment.plan(Request("night"))} == {
        ("count", 1, BACKENDS),
        ("count", 2, BACKENDS),
        ("flights", 1, BACKENDS),
    }
    assert BACKENDS[0] == DEFAULT


def test_each_round_has_every_subject_at_every_interval_and_an_interval_at_a_time() -> None:
    trial = KafkaTrial("count", 1, seed=3, commit_intervals_ms=(100, 1_000), repeats=2)
    cells = trial.cells()
    assert len(set(cells)) == len(cells) == 2 * 2 * len(trial.subjects)
    size = len(trial.subjects)
    for at in range(0, len(cells), size):
        assert len({cell[1:] for cell in cells[at : at + size]}) == 1
    assert SHARED not in [subject.changelog for subject in trial.subjects]
    assert SHARED in [subject.changelog for subject in KafkaTrial("count", 2, seed=3).subjects]
    assert STREAMS not in [subject.name for subject in KafkaTrial("flights", 1, seed=3).subjects]
    assert Kafka().read(text_of(trial)) == trial


@pytest.mark.parametrize("wrong", [{"workload": "event-log"}, {"partitions": 0}, {"backends": ("none",)}])
def test_a_trial_that_cannot_be_run_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        KafkaTrial(**{"workload": "count", "partitions": 1, "seed": 1, **wrong})


def test_ratios_are_those_of_the_same_round_and_the_embedded_changelog_has_none() -> None:
    rows = [
        *(row(DEFAULT, seconds, repeat) for repeat, seconds in enumerate((2.0, 4.0, 9.0))),
        *(row(BARE, seconds, repeat) for repeat, seconds in enumerate((1.0, 4.0, 3.0))),
        row(STREAMS, 8.0, 1),
        row(DEFAULT, 1.0, 0, EMBEDDED),
    ]
    found = {ratio["yardstick"]: ratio for ratio in Kafka().finish([], rows, Claim(""))[len(rows) :]}
    assert found.keys() == {BARE, STREAMS}
    assert (found[BARE]["ratio"], found[BARE]["at_least"], found[BARE]["repeats"]) == (0.5, 0.8, 3)
    assert (found[STREAMS]["ratio"], found[STREAMS]["at_least"], found[STREAMS]["repeats"]) == (2.0, 1.3, 1)


@pytest.mark.parametrize(("interval_ms", "at_least"), [(100, (0.8, 2.0)), (1_000, (1.0, 2.5)), (30_000, (None, None))])
def test_batches_have_ratios_and_goals_of_their_own(
    interval_ms: int, at_least: tuple[float | None, float | None]
) -> None:
    rows = [
        row(subject, seconds, changelog=changelog, commit_interval_ms=interval_ms)
        for subject, changelog, seconds in (
            (DEFAULT, KAFKA, 4.0),
            (DEFAULT, BATCHES, 2.0),
            (BARE, KAFKA, 1.0),
            (STREAMS, KAFKA, 8.0),
        )
    ]
    ratios = Kafka().finish([], rows, Claim(""))[len(rows) :]
    found = {(each["subject"], each["yardstick"]): (each["ratio"], each["at_least"]) for each in ratios}
    assert found == {
        (DEFAULT, BARE): (0.25, 0.8),
        (DEFAULT, STREAMS): (2.0, 1.3),
        (f"{DEFAULT} in batches", BARE): (0.5, at_least[0]),
        (f"{DEFAULT} in batches", STREAMS): (4.0, at_least[1]),
    }
    figures = Kafka().figures({"kafka": rows})["kafka"]
    assert {(each["subject"], each["changelog"]): each["bare_ratio"] for each in figures}[DEFAULT, BATCHES] == 0.5


def judged(*, speed: float) -> list[str]:
    """Return what a scenario misses whose task has this speed relative to the bare loop, in five rounds."""
    rows = [row(subject, seconds, at) for at in range(5) for subject, seconds in ((DEFAULT, 1 / speed), (BARE, 1.0))]
    return KafkaGrid().missed(all_figures({"kafka": rows, "ratio": Kafka().finish([], rows, Claim(""))[len(rows) :]}))


def test_a_scenario_holds_only_if_no_ratio_misses_its_threshold() -> None:
    assert judged(speed=0.9) == []
    assert len(judged(speed=0.5)) == 1


def test_the_table_compares_tasks_over_kafka_only() -> None:
    rows = [row(DEFAULT, 2.0), row(BARE, 1.0), row(DEFAULT, 1.0, changelog=EMBEDDED)]
    figures = Kafka().figures({"kafka": rows})["kafka"]
    found = {(figure["subject"], figure["changelog"]): figure["bare_ratio"] for figure in figures}
    assert found == {(DEFAULT, KAFKA): 0.5, (DEFAULT, EMBEDDED): None, (BARE, KAFKA): None}


def test_subjects_that_end_with_different_contents_fail_the_run() -> None:
    experiment, same = Kafka(), [row(DEFAULT, 1.0), row(BARE, 1.0)]
    assert experiment.failures({}, {"kafka": same}) == []
    for other in ({"checksum": "0000002b"}, {"entries": 6}):
        [failure] = experiment.failures({}, {"kafka": [*same, row(STREAMS, 1.0, **other)]})
        assert failure.repeat == "command"


def test_the_checksum_is_that_of_all_pairs_in_any_order() -> None:
    pairs = [(b"a", b"1"), (b"b", b"2"), (b"", b"3")]
    assert checksum_of(pairs) == checksum_of(reversed(pairs))
    assert checksum_of(pairs) != checksum_of([(b"a", b"1"), (b"b", b"3"), (b"", b"2")])
    assert checksum_of(pairs)["entries"] == 3


def test_without_anything_measured_the_page_says_why() -> None:
    page = Kafka().page({"kafka": []}, {}, {"kafka_skipped": "needs the jars"})
    assert page is not None
    assert (page.absent, list(page.body)) == ("not measured: needs the jars", [])


@pytest.mark.kafka
def test_a_task_a_bare_loop_and_kafka_streams_process_one_topic_and_end_alike(tmp_path: Path) -> None:
    skip_without_kafka()
    if reason := kafka_jars.missing(streams=True):
        pytest.skip(reason)
    experiment = Kafka()
    trial = KafkaTrial("count", 2, seed=1, events=3_000, commit_intervals_ms=(100,))
    rows = list(experiment.run(trial, TrialWorker(tmp_path / "work")))
    assert [(each["subject"], each["changelog"]) for each in rows] == [cell.subject for cell in trial.cells()]
    assert {each["records"] for each in rows} == {2_400}
    found = experiment.figures({"kafka": rows})
    assert experiment.failures(found, {"kafka": rows}) == []
    kinds = [each["kind"] for each in experiment.finish([trial], rows, Claim("kafka"))]
    assert kinds.count("ratio") == 4
    page = experiment.page(found, {"kafka": rows}, {})
    assert page is not None
    assert page.body
