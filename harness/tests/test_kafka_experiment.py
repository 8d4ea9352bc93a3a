"""The experiment about tasks over Kafka: its plan and its ratios, and one small trial on a real broker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from harness.answer.results import all_figures
from harness.experiment import Claim, Request, TrialWorker
from harness.experiments.kafka import rounds, tasks
from harness.experiments.kafka.experiment import BACKENDS, NEXMARK_SPEEDS, SPEEDS, Kafka, KafkaGrid
from harness.experiments.kafka.trial import (
    BARE,
    BATCHES,
    EMBEDDED,
    KAFKA,
    NEXMARK,
    SHARED,
    STREAMS,
    KafkaTrial,
    checksum_of,
)
from harness.processes import kafka_jars
from harness.replay import text_of
from harness.report.figures import Figures
from harness.report.ratios import ratios, undecided_sentence
from harness.run import verdict
from harness.tests.fake_task import run
from harness.workloads.tasks import workload
from harness.workloads.workload import Event
from stores.changelog.sqlite import SqliteChangelog
from stores.config import StoreConfig
from stores.errors import ConfigError
from stores.interface import Durability
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
    chosen = experiment.plan(Request("night", backends=(DEFAULT, "lmdb-indexed-batch")))
    assert {trial.backends for trial in chosen} == {(DEFAULT,), (DEFAULT, "lmdb-indexed-batch")}
    assert {(trial.workload, trial.partitions) for trial in experiment.plan(Request("night"))} == {
        ("count", 1),
        ("count", 2),
        ("flights", 1),
        *((query, 1) for query in NEXMARK),
    }
    assert BACKENDS[0] == DEFAULT


def _cells(trials: Iterable[KafkaTrial]) -> list[tuple[str, int, tuple[int, ...]]]:
    return [(trial.workload, trial.partitions, trial.commit_intervals_ms) for trial in trials]


def test_nights_begin_with_what_has_goals_and_go_on_with_all_other_trials_in_turn() -> None:
    nights = [Kafka().plan(Request("night", seed=seed)) for seed in range(8)]
    goals = [("count", 1, (100,)), ("count", 1, (1_000,)), ("count", 2, (100,)), ("flights", 1, (1_000,))]
    rest = [
        *((query, 1, (1_000,)) for query in NEXMARK),
        ("flights", 1, (100,)),
        ("count", 2, (1_000,)),
        *((workload, partitions, (30_000,)) for workload, partitions in (("count", 1), ("count", 2), ("flights", 1))),
    ]
    assert sorted(_cells(nights[0][4:])) == sorted(rest)
    assert [_cells(night[4:5])[0] for night in nights] == _cells(nights[0][4:])
    for night in nights:
        assert _cells(night[:4]) == goals
        assert {trial.backends for trial in night[:4]} == {BACKENDS[:1]}
        assert {trial.backends for trial in night[4:]} == {BACKENDS}
        assert sorted(_cells(night)) == sorted(_cells(nights[0]))


def test_a_night_has_trials_of_one_interval_so_that_one_has_all_subjects_soon() -> None:
    trials = Kafka().plan(Request("night", seed=0))
    assert {DEFAULT, BARE, STREAMS} == {subject.name for subject in trials[0].subjects}
    assert max(map(Kafka().cost_s, trials)) < 150


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


def test_all_backends_do_nexmark_in_both_forms_beside_kafka_streams_and_no_bare_loop() -> None:
    backends = ("lmdb-indexed-batch", "sqlite-indexed-batch")
    for query in NEXMARK:
        assert set(KafkaTrial(query, 1, seed=3, backends=backends).subjects) == {
            *((backend, changelog) for backend in backends for changelog in (KAFKA, BATCHES)),
            (backends[0], EMBEDDED),
            (STREAMS, KAFKA),
        }


def test_a_workload_whose_records_take_long_gets_fewer_of_them() -> None:
    trials = KafkaGrid(work=(("nexmark_q7", 1), ("nexmark_q11", 1)), events=1_000).plan(1)
    assert [trial.events for trial in trials] == [1_000, 100]


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


def test_ratios_of_cpu_times_are_at_one_speed_of_the_processor_if_both_sides_know_theirs() -> None:
    rows = [row(DEFAULT, 4.0, 1, machine_speed=5e5), row(BARE, 1.0, 1, machine_speed=1e6), row(STREAMS, 8.0, 1)]
    found = {ratio["yardstick"]: ratio for ratio in Kafka().finish([], rows, Claim(""))[len(rows) :]}
    assert (found[BARE]["ratio"], found[BARE]["cpu_ratio"]) == (0.25, 0.5)
    assert (found[STREAMS]["ratio"], found[STREAMS]["cpu_ratio"]) == (2.0, 2.0)


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


def test_nexmark_is_shown_per_core_and_beside_kafka_streams_without_a_goal() -> None:
    rows = [
        row(subject, seconds, changelog=changelog, workload="nexmark_q11", cpu_s=cpu_s)
        for subject, changelog, seconds, cpu_s in (
            (DEFAULT, KAFKA, 4.0, 2.0),
            (DEFAULT, BATCHES, 2.0, 1.0),
            (STREAMS, KAFKA, 8.0, 8.0),
        )
    ]
    ratios = Kafka().finish([], rows, Claim(""))[len(rows) :]
    found = {each["subject"]: (each["ratio"], each["cpu_ratio"], each["at_least"]) for each in ratios}
    assert found == {DEFAULT: (2.0, 4.0, None), f"{DEFAULT} in batches": (4.0, 8.0, None)}
    figures = all_figures({"kafka": rows})
    (table,) = NEXMARK_SPEEDS.tables(figures)
    # 46 of 50 events are read: 100 in 2 CPU seconds are 54.3 of all.
    assert [[line[0], *line[3:11]] for line in table.rows] == [
        ["q11", STREAMS, KAFKA, "12.5", "-", "80 ms", "13.6", "-", "39,700"],
        ["q11", DEFAULT, KAFKA, "25", "2.00", "20 ms", "54.3", "4.00", "39,700"],
        ["q11", DEFAULT, BATCHES, "50", "4.00", "10 ms", "109", "8.00", "39,700"],
    ]
    assert SPEEDS.tables(figures) == []


def figures_of(*, speed: float, repeats: int = 5) -> Figures:
    """Return the figures of a scenario whose task has this speed relative to the bare loop."""
    of_subjects = ((DEFAULT, 1 / speed), (BARE, 1.0))
    rows = [row(subject, seconds, at) for at in range(repeats) for subject, seconds in of_subjects]
    return all_figures({"kafka": rows, "ratio": Kafka().finish([], rows, Claim(""))[len(rows) :]})


def judged(*, speed: float) -> list[str]:
    """Return what a scenario misses whose task has this speed relative to the bare loop, in five rounds."""
    return KafkaGrid().missed(figures_of(speed=speed))


def test_a_scenario_holds_only_if_no_ratio_misses_its_threshold() -> None:
    assert judged(speed=0.9) == []
    assert len(judged(speed=0.5)) == 1


@pytest.mark.parametrize(("repeats", "said"), [(1, "holds as far as it is decided"), (5, "holds")])
def test_a_scenario_whose_ratios_are_not_decided_says_so(repeats: int, said: str) -> None:
    assert verdict([], undecided_sentence(figures_of(speed=0.9, repeats=repeats))) == said


def test_ratios_are_shown_by_claim_and_then_by_subject() -> None:
    """Thresholds and intervals do not change the order, and numbers in claims do."""
    shown = [
        {"claim": claim, "subject": subject, "yardstick": "y", "durability": "CHANGELOG", "records_per_commit": None,
         "at_least": least, "ratio": 1.0, "cpu_ratio": None, "repeats": 1, "busy": 0}
        for claim, subject, least in (
            ("1,000 of b", "x", None), ("100 of a", "z", None), ("100 of a", "x", 2.0), ("1,000 of b", "a", 1.0)
        )
    ]  # fmt: skip
    assert [(each["claim"], each["subject"]) for each in ratios(shown)] == [
        *(("100 of a", subject) for subject in "xz"),
        *(("1,000 of b", subject) for subject in "ax"),
    ]


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


def by_hand(query: str, partitions: int, seed: int, events: int) -> dict[str, Any]:
    """The checksum of the stores of all partitions, which are processed in memory, without a changelog."""
    work: Any = workload(query)
    inputs: dict[int, list[Event]] = defaultdict(list)
    for event in work.events(seed, events):
        inputs[crc32(event.key) % partitions].append(event)
    states = [state for batch in inputs.values() for state in run(work, batch).states.values()]
    return checksum_of(pair for state in states for pair in state.items())


@pytest.mark.parametrize("query", NEXMARK)
def test_tasks_of_nexmark_end_with_the_pairs_of_their_typed_stores(query: str, tmp_path: Path) -> None:
    trial = KafkaTrial(query, 2, seed=1, events=1_500)
    with SqliteChangelog(tmp_path / tasks.LOG_FILE, Durability.PROCESS) as log:
        rounds.fill(trial, log)
    figures = tasks.measured("lmdb-indexed-batch", EMBEDDED, "", "measured", query, 2, 1_000, 1_500, tmp_path)
    expected = by_hand(query, 2, 1, 1_500)
    assert figures["records"] == 1_200
    assert {name: figures[name] for name in expected} == expected


@pytest.mark.kafka
@pytest.mark.parametrize("query", NEXMARK)
def test_a_query_of_nexmark_ends_alike_in_kafka_streams_by_record_and_in_batches(query: str, tmp_path: Path) -> None:
    skip_without_kafka()
    if reason := kafka_jars.missing(streams=True):
        pytest.skip(reason)
    # Twenty seconds of events: there are several windows, and some sessions end.
    trial = KafkaTrial(query, 2, seed=1, events=20_000, commit_intervals_ms=(100,))
    rows = list(Kafka().run(trial, TrialWorker(tmp_path / "work")))
    assert {(each["subject"], each["changelog"]) for each in rows} >= {(DEFAULT, BATCHES), (STREAMS, KAFKA)}
    expected = by_hand(query, 2, 1, 20_000)
    assert [{name: each[name] for name in expected} for each in rows] == [expected] * len(rows)


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
