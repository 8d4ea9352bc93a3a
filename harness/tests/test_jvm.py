"""The JVM beside a store: the same work and options on both sides, ratios with goals, and what a missing JDK does."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import run
from harness.experiment import Claim, Request, TrialWorker
from harness.experiments.jvm import experiment, ours
from harness.experiments.jvm.experiment import MANY, OURS, SHAPES, WORK, Jvm, JvmTrial, jvm_figures, missing_jdk
from harness.experiments.jvm.ours import JvmLoad
from harness.processes.apart import NoMemoryLimitError
from harness.processes.child import MeasurementFailedError
from harness.processes.spark_cluster import QUICK_JVM
from stores.errors import ConfigError
from stores.tests.rocksdb_options import RECORDS, TABLES, options_in_use
from stores.tests.test_java import fake_java

needs_jdk = pytest.mark.skipif(bool(missing_jdk()), reason=missing_jdk())
SMALL: dict[str, Any] = {"seed": 5, "records": 400, "warm_up_rounds": 1, "rounds": 1, "keys": 50}


def a_row(subject: str, seconds: float, *, size: int = 100, **given: Any) -> dict[str, Any]:
    row = {
        "kind": "jvm",
        "subject": subject,
        "durability": "CHANGELOG",
        "distribution": "fresh",
        "keys": 100_000,
        "memory_max_bytes": 0,
        "records_per_commit": size,
        "records": 1_000,
        "seconds": seconds,
        "cpu_s": seconds / 2,
        "missing": 0,
        "entries": 10,
        "checksum": "00000001",
        "repeat": "the command",
        "load_average": 1.0,
    }
    return {**row, **given}


@pytest.fixture(autouse=True)
def _quick_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM compiles the program before it runs it, which is most of its work here."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", QUICK_JVM)


@needs_jdk
@pytest.mark.long
def test_a_store_and_each_shape_of_the_jvm_end_with_the_same_data(tmp_path: Path) -> None:
    trial = JvmTrial("zipf", 30, **SMALL)
    rows = list(Jvm().run(trial, TrialWorker(tmp_path)))
    assert {row["subject"] for row in rows} == {OURS, MANY, *(f"jvm-{shape}" for shape in SHAPES)}
    assert len({row["checksum"] for row in rows}) == 1
    for row in rows:
        assert set(row) == {*Jvm.columns["jvm"], "kind"}
        assert row["seconds"] > 0
        assert (row["records"], row["entries"], row["missing"]) == (400, 50, 0)
    finished = Jvm().finish([trial], rows, Claim("jvm"))
    assert [row["kind"] for row in finished].count("ratio") == 2 * len(SHAPES)
    by_kind = {"jvm": rows}
    figures = Jvm().figures(by_kind)
    assert Jvm().failures(figures, by_kind) == []
    page = Jvm().page(figures, by_kind, {})
    assert page is not None
    assert "jvm-map-and-batch" in "".join(page.body)


@needs_jdk
@pytest.mark.parametrize(
    ("distribution", "shape", "limit"),
    [
        ("fresh", "indexed-batch", 0),
        ("uniform", "map-and-batch", 0),
        pytest.param("uniform", "map-and-batch", 200 << 20, marks=pytest.mark.long),
    ],
)
def test_both_sides_do_the_same_work_with_the_same_options(
    tmp_path: Path, distribution: str, shape: str, limit: int
) -> None:
    trial = JvmTrial(distribution, 30, memory_max_bytes=limit, **SMALL)
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    own = ours.measured(OURS, **trial.work, options=trial.options, folder=tmp_path / "ours")
    other = jvm_figures(tmp_path / "theirs", {**trial.work, **trial.options, "shape": shape})
    assert own["entries"] == (800 if distribution == "fresh" else 50)
    assert (own["entries"], own["checksum"]) == (other["entries"], other["checksum"])
    options = options_of(tmp_path / "ours")
    assert (options[RECORDS]["write_buffer_size"] == str(16 << 20)) is not bool(limit)
    assert options[TABLES]["partition_filters"] == str(bool(limit)).lower()
    assert options == options_of(tmp_path / "theirs")


def test_a_limit_on_memory_is_that_of_each_process_and_sets_the_options_of_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []
    options: list[dict[str, Any]] = []
    groups: list[Path | None] = []
    figures = {"seconds": 1.0, "cpu_s": 1.0, "missing": 0, "entries": 1, "checksum": "0"}

    @contextlib.contextmanager
    def limited(num_bytes: int) -> Iterator[Path]:
        limits.append(num_bytes)
        yield tmp_path

    def ours_in(folder: Path, work: Any, given: dict[str, Any], *_: object, group: Path) -> dict[str, Any]:
        options.append(given["options"])
        groups.append(group)
        return figures

    def theirs_in(folder: Path, given: dict[str, Any], deadline_s: float, group: Path) -> dict[str, Any]:
        options.append({name: given[name] for name in trial.options})
        groups.append(group)
        return figures

    monkeypatch.setattr(experiment, "memory_limit", limited)
    monkeypatch.setattr(experiment, "figures_in", ours_in)
    monkeypatch.setattr(experiment, "jvm_figures", theirs_in)
    trial = JvmTrial("uniform", 30, memory_max_bytes=1 << 30, **SMALL)
    rows = list(Jvm().run(trial, TrialWorker(tmp_path)))
    assert limits == [1 << 30] * len(rows)
    assert groups == [tmp_path] * len(rows)
    assert options == [trial.options] * len(rows)
    assert trial.options["cache_index_and_filter_blocks"] is True


@needs_jdk
@pytest.mark.long
def test_the_program_enters_the_group_of_its_limit(tmp_path: Path) -> None:
    """Without cgroups: the group is a folder, whose file names the process that entered."""
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "work").mkdir()
    given = {**JvmTrial("uniform", 30, **SMALL).work, "shape": "plain-puts"}
    assert jvm_figures(tmp_path / "work", given, 60.0, tmp_path)["entries"] == 50
    assert int((tmp_path / "cgroup.procs").read_text()) != os.getpid()


def test_work_with_other_keys_or_another_limit_has_ratios_of_its_own() -> None:
    ways = [{}, {"keys": 50}, {"memory_max_bytes": 1 << 30}]
    rows = [
        {**a_row(subject, seconds * times), **way, "distribution": "uniform", "repeat": f"{way}"}
        for times, way in enumerate(ways, 1)
        for subject, seconds in ((OURS, 1.0), ("jvm-plain-puts", times))
    ]
    ratios = {row["claim"]: row["ratio"] for row in Jvm().finish([], rows, Claim("jvm")) if row["kind"] == "ratio"}
    assert sorted(ratios.values()) == [1.0, 2.0, 3.0]
    assert "50 uniform keys" in " ".join(ratios)
    assert "with 1 GiB of memory" in " ".join(ratios)
    figures = Jvm().figures({"jvm": rows})["jvm"]
    assert sorted(each["median_ratio"] for each in figures if each["subject"] != OURS) == [1.0, 2.0, 3.0]


def test_where_no_memory_can_be_limited_the_trial_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(num_bytes: int) -> None:
        raise NoMemoryLimitError("no cgroup can be made")

    monkeypatch.setattr(experiment, "memory_limit", refuse)
    with pytest.raises(MeasurementFailedError, match="no cgroup can be made"):
        list(Jvm().run(JvmTrial("uniform", 30, memory_max_bytes=1 << 30, **SMALL), TrialWorker(tmp_path)))


def options_of(folder: Path) -> dict[str, dict[str, str]]:
    """Return the options in use. The C interface, which rocksdict uses, names no parameters of a filter."""
    sections = options_in_use(folder)
    for options in sections.values():
        if "filter_policy" in options:
            options["filter_policy"] = options["filter_policy"].partition(":")[0]
    return sections


def test_words_are_those_of_splitmix64() -> None:
    # The first output for seed 0, as published with the algorithm.
    assert JvmLoad(0).keys(0, 1)[0][:8].hex() == "e220a8397b1dcdaf"


def test_any_part_of_the_load_can_be_generated_by_itself() -> None:
    load = JvmLoad(3)
    assert load.keys(0, 10)[4:] == load.keys(4, 6)
    assert load.values(0, 10)[4:] == load.values(4, 6)
    assert load.drawn(0, 10, 7, "zipf")[4:].tolist() == load.drawn(4, 6, 7, "zipf").tolist()
    numbers = load.drawn(0, 10, 7, "uniform")
    assert load.keys_at(numbers) == [load.keys(0, 7)[number] for number in numbers]
    assert [len(load.keys(0, 1)[0]), len(load.values(0, 1)[0])] == [16, 100]


def test_zipf_draws_the_first_key_twice_as_often_as_the_second() -> None:
    drawn = Counter(JvmLoad(1).drawn(0, 100_000, 1_000, "zipf").tolist())
    assert 1.9 < drawn[0] / drawn[1] < 2.1
    assert max(drawn) < 1_000


def test_data_that_differ_fail_the_run_with_the_command_of_the_trial() -> None:
    rows = {"jvm": [a_row(OURS, 1.0), a_row("jvm-plain-puts", 1.0, checksum="00000002")]}
    [failure] = Jvm().failures(Jvm().figures(rows), rows)
    assert failure.repeat == "the command"


def test_a_key_without_a_value_fails_the_run() -> None:
    rows = {"jvm": [a_row(OURS, 1.0, missing=1), a_row("jvm-plain-puts", 1.0, missing=1)]}
    assert len(Jvm().failures(Jvm().figures(rows), rows)) == 1


def test_a_ratio_is_the_time_of_the_jvm_over_that_of_the_store_in_the_same_repeat() -> None:
    rows = [
        {**a_row(subject, seconds, size=size), "repeat": f"{size} {repeat}"}
        for subject, times in ((OURS, (1.0, 2.0, 9.0)), ("jvm-plain-puts", (1.0, 3.0, 27.0)))
        for size in (100, 1_000)
        for repeat, seconds in enumerate(times)
    ]
    ratios = [row for row in Jvm().finish([], rows, Claim("jvm")) if row["kind"] == "ratio"]
    assert {(row["records_per_commit"], row["ratio"], row["at_least"]) for row in ratios} == {
        (100, 1.5, 1.0),
        (1_000, 1.5, 1.3),
    }
    [figure, *_] = [each for each in Jvm().figures({"jvm": rows})["jvm"] if each["subject"] != OURS]
    assert (figure["best_ratio"], figure["cpu_ratio"], figure["repeats"]) == (1.0, 1.5, 3)


def test_by_many_the_store_is_compared_by_itself_and_is_to_be_faster_at_any_size() -> None:
    rows = [
        {**a_row(subject, seconds), "repeat": f"{repeat}"}
        for subject, seconds in ((OURS, 2.0), (MANY, 1.0), ("jvm-plain-puts", 3.0))
        for repeat in range(3)
    ]
    ratios = [row for row in Jvm().finish([], rows, Claim("jvm")) if row["kind"] == "ratio"]
    assert {(row["subject"], row["ratio"], row["at_least"], row["repeats"]) for row in ratios} == {
        (OURS, 1.5, 1.0, 3),
        (MANY, 3.0, 1.3, 3),
    }
    figures = {figure["subject"]: figure for figure in Jvm().figures({"jvm": rows})["jvm"]}
    assert (figures["jvm-plain-puts"]["median_ratio"], figures["jvm-plain-puts"]["many_median_ratio"]) == (1.5, 3.0)
    assert figures[MANY]["median_ratio"] is figures[MANY]["many_median_ratio"] is None


@pytest.mark.parametrize("distribution", ["fresh", "uniform", "zipf"])
def test_both_forms_of_the_store_do_the_same_work(tmp_path: Path, distribution: str) -> None:
    arguments = {**JvmTrial(distribution, 1_500, **SMALL).work, "records": 3_000}
    figures = []
    for many in (False, True):
        (tmp_path / f"{many}").mkdir()
        figures.append(ours.measured(OURS, **arguments, folder=tmp_path / f"{many}", many=many))
    one, other = ({name: each[name] for name in ("entries", "checksum", "missing")} for each in figures)
    assert one == other
    assert one["entries"] == (6_000 if distribution == "fresh" else 50)


def test_work_whose_ratios_are_all_clear_is_not_repeated() -> None:
    def rows(theirs: tuple[float, ...]) -> list[dict[str, Any]]:
        seconds = {OURS: (1.0,) * len(theirs), MANY: (1.0,) * len(theirs), "jvm-plain-puts": theirs}
        return [
            {**a_row(subject, each), "repeat": f"{repeat}"}
            for subject, times in seconds.items()
            for repeat, each in enumerate(times)
        ]

    trial = JvmTrial("fresh", 100, 1_004)
    assert Jvm().still_needed(trial, []) == trial
    assert Jvm().still_needed(trial, rows((2.0, 2.1))) == trial
    assert Jvm().still_needed(trial, rows((2.0, 2.1, 1.9))) is None
    # Clear for the store record by record, whose goal is 1, and not by many, whose goal is 1.3.
    assert Jvm().still_needed(trial, rows((1.5, 1.4, 1.6))) == trial
    for other in (
        replace(trial, records_per_commit=1_000),
        replace(trial, distribution="zipf"),
        replace(trial, memory_max_bytes=1 << 30),
    ):
        assert Jvm().still_needed(other, rows((2.0, 2.1, 1.9))) == other


def test_the_repeats_of_all_work_take_turns() -> None:
    planned = [(trial.distribution, trial.records_per_commit) for trial in Jvm().plan(Request("default"))]
    assert planned == list(WORK) * 5
    assert len({trial.seed for trial in Jvm().plan(Request("default"))}) == 5
    assert Jvm().plan(Request("smoke")) == []
    assert Jvm().plan(Request("default", backends=("lmdb-native",))) == []


@pytest.mark.parametrize("wrong", [{"distribution": "zipfian"}, {"records": 0}, {"warm_up_rounds": -1}])
def test_a_trial_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        JvmTrial(**{"distribution": "fresh", "records_per_commit": 10, "seed": 1, **wrong})


def test_without_a_compiler_the_stage_is_skipped_and_the_page_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = """case $1 in -version) echo 'openjdk version "17.0.1"' >&2;; *) echo java.base@17.0.1;; esac"""
    fake_java(tmp_path / "bin", program)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    missing_jdk.cache_clear()
    try:
        skipped = run.BenchRequest(only=("jvm",)).skipped()
        assert skipped["jvm"].startswith("needs a JDK")
        with pytest.raises(ConfigError):
            Jvm().repeat(JvmTrial("fresh", 10, 1), TrialWorker(tmp_path))
    finally:
        missing_jdk.cache_clear()
    page = Jvm().page(Jvm().figures({}), {}, {"jvm_skipped": skipped["jvm"]})
    assert page is not None
    assert page.absent == f"not measured: {skipped['jvm']}"
