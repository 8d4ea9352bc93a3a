"""A profile's cases, drawn points and subsets are the same for the same seed, and nothing is tried twice."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest

from harness.budget import Deadline, TimeOverError
from harness.checkers.prefix import Found
from harness.experiment import Claim, Outcome, Request
from harness.experiments.iofaults import detection
from harness.experiments.iofaults.case import Asked, IoFaultCase, is_wrong, read_asked
from harness.experiments.iofaults.detection import trials_of
from harness.experiments.iofaults.experiment import KINDS, RECORDING_PART, IoFaults, IoTrial, explore
from harness.experiments.iofaults.fault import IO_FAULTS as FAULTS
from harness.experiments.iofaults.plan import (
    FIRST,
    LEVEL,
    PlannedCase,
    PlannedMutant,
    group_of,
    in_rounds,
    in_turn,
    measured_seeds,
    planned_cases,
    planned_mutants,
    subjects_with,
)
from harness.experiments.iofaults.report import PROMISES, fault_findings, in_words, mutants
from harness.experiments.iofaults.subjects import CHECKPOINT, OFFSET_IMPORTS, TASKS, subjects
from harness.experiments.iofaults.subsets import (
    Recorded,
    RecordedWriter,
    Subset,
    Unrecorded,
    make_recording,
    subsets_of,
)
from harness.experiments.iofaults.workshop import Workshop
from harness.mutants import IO_MUTANTS
from harness.report.coverage import Coverage, CoveredRun
from harness.typed_maps import IN_TURN
from stores.registry import backends


def recorded_points(number: int) -> Recorded:
    """Return the summary of a recording in which each point is a class of its own."""
    names = [f"{fault} {each}".rstrip() for fault, kind in FAULTS.items() for each in kind.variants]
    classes = {f"class {point}": [point] for point in range(number)}
    return Recorded(dict.fromkeys(names, number), classes=dict.fromkeys(names, classes))


PROFILES = ("smoke", "default", "night")
EVERYWHERE = set(subjects())
BASES = {(TASKS[0], "DISK"), (OFFSET_IMPORTS[0], "DISK")}
VARIATIONS = {each for each in EVERYWHERE if each[0] in (*TASKS, *OFFSET_IMPORTS)} - BASES
"""Other pairs of engines and other levels of the same protocol: of these no profile tries every point."""


def covered(name: str, fault: str, variant: str) -> set[tuple[str, str]]:
    """The subjects and levels of which a profile tries every point."""
    return {
        (item.case.subject, item.case.level)
        for item in planned_cases(name, 1)
        if (item.case.fault, item.case.variant) == (fault, variant) and item.points_max is None
    }


def test_the_default_kills_at_every_operation_at_disk_and_cuts_the_power_at_every_level() -> None:
    at_disk = {(name, level) for name, level in EVERYWHERE - VARIATIONS if level == "DISK" and name != TASKS[0]}
    assert covered("default", "kill", "") == at_disk
    power = {
        (item.case.subject, item.case.level)
        for item in planned_cases("default", 1)
        if (item.case.fault, item.case.variant) == ("power", "names")
    }
    assert power == EVERYWHERE
    assert all(item.case.commits == 20 for item in planned_cases("default", 1))


def test_the_default_has_the_fault_and_the_variant_of_each_mutant_wherever_it_fits() -> None:
    """A mutant stands for a defect that a change may bring: the run that accepts a change has to look for it."""
    tried = {
        (each.case.subject, each.case.level, each.case.fault, each.case.variant) for each in planned_cases("default", 1)
    }
    for mutant, by in IO_MUTANTS.items():
        for subject in subjects_with(mutant):
            assert (subject, LEVEL, by.fault, by.variant or FAULTS[by.fault].variants[0]) in tried, mutant


def test_a_night_leaves_out_no_fault_at_any_level_and_no_point() -> None:
    planned = planned_cases("night", 1)
    for fault in FAULTS.values():
        alike = {group_of(IoFaultCase(CHECKPOINT, "DISK", fault.name, variant)).fault for variant in fault.variants}
        groups = {group_of(item.case) for item in planned if item.case.fault == fault.name}
        there = {each for each in EVERYWHERE if each[1] == "DISK" or fault.name != "damage"}
        assert {(each.subject, each.level, each.fault) for each in groups} == {
            (subject, level, name) for subject, level in there for name in alike
        }
    assert {item.points_max for item in planned} == {None}


def test_errors_that_happen_alike_take_turns_over_subjects_and_nights() -> None:
    nights = [
        {item.case.variant for item in planned_cases("night", seed, ["lmdb-native"]) if item.case.fault == "error"}
        for seed in (1, 2, 3)
    ]
    assert all(len(variants) == 3 for variants in nights)
    assert set().union(*nights) >= {variant for variant in FAULTS["error"].variants if "lasting" not in variant}


@pytest.mark.parametrize("name", PROFILES)
def test_no_profile_tries_a_case_twice(name: str) -> None:
    planned = planned_cases(name, 1)
    assert len({(each.case.subject, each.case.level, each.case.fault, each.case.variant) for each in planned}) == len(
        planned
    )


@pytest.mark.parametrize("name", ["default", "night"])
def test_every_mutant_is_put_to_the_fault_it_belongs_to(name: str) -> None:
    found = {(each.mutant, each.fault) for each in planned_mutants(name, 1) if each.found}
    assert found == {(mutant, by.fault) for mutant, by in IO_MUTANTS.items()}


@pytest.mark.parametrize(("name", "seeds"), [("smoke", 0), ("default", 2), ("night", 20)])
def test_the_default_profiles_own_trials_are_measured_with_each_mutant_wherever_it_fits(name: str, seeds: int) -> None:
    by_pair: dict[tuple[str, str], set[int]] = {}
    for each in planned_mutants(name, 1):
        if each.profile:
            by_pair.setdefault((each.mutant, each.subject), set()).add(each.seed)
            assert each.found
            assert each.measured is (each.seed != 1)
    pairs = {(mutant, subject) for mutant, by in IO_MUTANTS.items() for subject in subjects_with(mutant)}
    assert set(by_pair) == (pairs if seeds else set())
    # Where the default profile kills at every operation another seed draws nothing else.
    everywhere = {subject for subject, _ in covered("default", "kill", "")}
    for (mutant, subject), drawn in by_pair.items():
        alike = name == "default" and IO_MUTANTS[mutant].fault == "kill" and subject in everywhere
        assert len(drawn) == (1 if alike else seeds)
    assert measured_seeds(1, 20)[:2] == measured_seeds(1, 2) != measured_seeds(2, 2)


def test_the_default_profile_is_measured_by_the_trials_that_it_makes_of_sound_code() -> None:
    planned = planned_cases("default", 7)
    for mutant, by in IO_MUTANTS.items():
        for subject in subjects_with(mutant):
            made = {
                (replace(item.case, mutant=""), item.points_max) for item in trials_of("default", mutant, subject, 7)
            }
            assert made == {
                (replace(item.case, records=by.records or item.case.records), item.points_max)
                for item in planned
                if (item.case.subject, item.case.fault, item.case.level) == (subject, by.fault, "DISK")
            }
            assert made


def test_typed_stores_and_plain_ones_take_turns_over_backends_levels_and_seeds_and_add_no_trial() -> None:
    for name in ("default", "night"):
        of_backends = [item.case for item in planned_cases(name, 1) if item.case.subject in backends()]
        kinds = Counter(case.records for case in of_backends)
        assert set(kinds) == set(IN_TURN)
        assert max(kinds.values()) < 2 * min(kinds.values())
        for subject, level in subjects():
            mine = {case.records for case in of_backends if (case.subject, case.level) == (subject, level)}
            assert len(mine) <= 2
    turns = {
        case.records
        for seed in range(1, len(IN_TURN) + 1)
        for case in (item.case for item in planned_cases("default", seed))
        if (case.subject, case.level, case.fault) == ("lmdb-indexed-batch", "DISK", "kill")
    }
    assert turns == set(IN_TURN)
    assert not any(item.case.records for item in planned_cases("night", 1) if item.case.subject not in backends())


def test_what_can_not_be_seen_is_shown_not_to_be_seen() -> None:
    unseen = {(each.mutant, each.fault) for each in planned_mutants("default", 1) if not each.found}
    assert ("no-sync", "kill") in unseen
    assert unseen == {(mutant, by.unseen_by) for mutant, by in IO_MUTANTS.items() if by.unseen_by}


def test_a_task_is_tried_everywhere_but_at_every_point_in_full_alone() -> None:
    for name, most, kills in (("smoke", 2, 2), ("default", 24, 80)):
        of_task = [item for item in planned_cases(name, 1) if item.case.subject == TASKS[0]]
        assert {item.case.fault for item in of_task} >= {"kill", "power", "error"}
        for item in of_task:
            assert 0 < (item.points_max or 0) <= (kills if item.case.fault == "kill" else most)
    assert [item for item in planned_cases("night", 1) if item.case.subject == TASKS[0] and item.points_max is None]


def test_pairs_of_engines_and_levels_of_a_task_are_killed_at_200_points_and_lose_power_at_100() -> None:
    for fault, fewest in (("kill", 200), ("power", 100)):
        item = [each for each in planned_cases("default", 1) if each.case.subject in TASKS and each.case.fault == fault]
        assert {(each.case.subject, each.case.level) for each in item} == {
            (name, level) for name in TASKS for level in ("CHANGELOG", "PROCESS", "DISK")
        }
        assert sum(each.points_max or 0 for each in item) >= fewest


def test_an_offset_import_is_tried_on_two_engines_and_at_every_level() -> None:
    for fault in ("kill", "power"):
        assert {
            (each.case.subject, each.case.level)
            for each in planned_cases("default", 1)
            if each.case.subject in OFFSET_IMPORTS and each.case.fault == fault
        } == {(name, level) for name in OFFSET_IMPORTS for level in ("CHANGELOG", "PROCESS", "DISK")}


def test_who_chooses_backends_gets_no_other() -> None:
    planned = [*planned_cases("default", 1, ["lmdb-indexed-batch"])]
    assert {each.case.subject for each in planned} == {"lmdb-indexed-batch"}
    assert {each.subject for each in planned_mutants("default", 1, ["lmdb-indexed-batch"])} == {"lmdb-indexed-batch"}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("most", [1, 3, 24, 100])
def test_no_more_points_are_drawn_than_asked_for_and_the_seed_draws_them(fault: str, most: int) -> None:
    points = range(101)
    case = IoFaultCase(CHECKPOINT, "DISK", fault)

    def drawn_at(seed: int, points_max: int | None) -> list[int]:
        return sorted(point for _, point in in_turn(PlannedCase(case, seed, points_max), points))

    drawn = drawn_at(1, most)
    assert 0 < len(drawn) <= most
    assert drawn == sorted(set(drawn) & set(points))
    assert drawn == drawn_at(1, most)
    assert any(drawn != drawn_at(seed, most) for seed in range(2, 9))
    assert drawn_at(1, None) == drawn_at(1, 101) == list(points)


def test_each_subset_names_the_recording_that_its_fault_needs(tmp_path: Path) -> None:
    wanted = [PlannedCase(IoFaultCase(CHECKPOINT, "DISK", fault, commits=2), 1) for fault in ("kill", "power")]
    recorded = {RecordedWriter.of(wanted[0]): recorded_points(10)}
    assert RecordedWriter.of(wanted[0]) == RecordedWriter.of(wanted[1])
    kill, power = subsets_of(wanted, recorded, tmp_path)
    assert list(kill.points) == list(power.points) == list(range(10))
    assert kill.case.recording == ""
    assert power.case.recording == power.recording == str(tmp_path / RecordedWriter.of(wanted[0]).name)


def test_a_writer_that_can_not_be_recorded_is_no_verdict_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(Workshop, "recording", refuse)
    item = PlannedCase(IoFaultCase(CHECKPOINT, "DISK", "power", commits=2), 1)
    writer = RecordedWriter.of(item)
    recorded = make_recording(writer, tmp_path / writer.name)
    (only,) = subsets_of([item], {writer: recorded}, tmp_path)
    operation, counts = explore(only)
    assert {"kind", *KINDS["operation"]} <= set(operation)
    assert {"kind", *KINDS["operation_slice"]} == set(counts)
    assert (operation["kind"], operation["result"], is_wrong(operation)) == ("operation", Found.HARNESS_ERROR, True)
    assert (counts["kind"], counts["points"]) == ("operation_slice", 0)
    assert read_asked(asked_by(operation)) == Asked(item.case, None, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_mutant_that_can_not_be_tried_is_no_verdict_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(detection, "detect_fully", refuse)
    monkeypatch.setattr(detection, "detect", refuse)
    for wanted in planned_mutants("default", 1, [CHECKPOINT]):
        (subset,) = subsets_of([wanted], {}, tmp_path)
        (mutant,) = explore(subset)
        assert (mutant["result"], is_wrong(mutant)) == (Found.HARNESS_ERROR, True)
        assert {"kind", *KINDS["mutant"]} == set(mutant)
        asked = read_asked(asked_by(mutant))
        assert (asked.case.mutant, asked.case.fault, asked.point) == (wanted.mutant, wanted.fault, None)


def asked_by(row: Mapping[str, Any]) -> str:
    """The JSON in the command that a row prints."""
    return str(row["repeat"]).removeprefix("python -m harness repeat iofaults ").strip("'")


def row(**settings: Any) -> dict[str, Any]:
    shared = {"kind": "operation", "fault": "power", "variant": "names", "durability": "DISK"}
    return shared | {"result": "lost", "expected": False} | settings


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({}, True),
        ({"expected": True}, False),
        ({"variant": "strict"}, True),
        ({"variant": "strict", "durability": "PROCESS"}, False),
        ({"variant": "strict", "fault": "failed_sync"}, False),
        ({"variant": "strict", "durability": "PROCESS", "result": "harness_error"}, True),
        ({"variant": "torn-sectors"}, True),
        ({"fault": "damage", "variant": "flipped"}, True),
        ({"fault": "damage", "variant": "flipped", "result": "phantom"}, True),
        ({"fault": "damage", "variant": "flipped", "result": "detected", "expected": True}, False),
        ({"fault": "damage", "variant": "flipped", "result": "hanging"}, True),
        ({"fault": "damage", "variant": "flipped", "result": "harness_error"}, True),
        ({"kind": "mutant", "result": ""}, True),
    ],
)
def test_a_broken_promise_fails_a_run_and_an_unpromised_anomaly_does_not(settings: dict[str, Any], wrong: bool) -> None:
    assert is_wrong(row(**settings)) is wrong


class Steps:
    """A clock that moves on by a second whenever it is asked."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def test_a_slice_whose_time_is_over_says_how_many_points_it_explored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def two_at_each(shop: Workshop, points: Sequence[int]) -> Iterator[dict[str, Any]]:
        for point in points:
            for state in "ab":
                yield {"kind": "operation", "point": point, "only": state, "expected": True, "states": 1, "seed": 1}

    monkeypatch.setattr(Workshop, "explore", two_at_each)
    item = PlannedCase(IoFaultCase(CHECKPOINT, "DISK", "kill", commits=2), 1)
    (subset,) = subsets_of([item], {RecordedWriter.of(item): recorded_points(10)}, tmp_path)
    *tried, counts = explore(subset, deadline=Deadline(3.5, Steps()))
    # The fourth row came when the time was over. Its point may have more, so it counts as left out.
    assert [row["point"] for row in tried] == [0, 0, 1, 1]
    assert (counts["points"], counts["trials"]) == (1, 4)
    assert {name: points for name, points in json.loads(counts["classes"]).items() if points} == {"class 0": [0]}
    assert counts["points_in_all"] == 10
    assert IoFaults().tried(subset, [*tried, counts]) == 1
    assert IoFaults().extent(subset) == ("points", 10)


def test_a_trial_that_the_end_of_the_time_has_killed_has_no_row_and_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed_at_the_third(shop: Workshop, points: Sequence[int]) -> Iterator[dict[str, Any]]:
        for point in points:
            if point == 2:
                raise TimeOverError
            yield {"kind": "operation", "point": point, "only": "", "expected": True, "states": 1, "seed": 1}

    monkeypatch.setattr(Workshop, "explore", killed_at_the_third)
    item = PlannedCase(IoFaultCase(CHECKPOINT, "DISK", "kill", commits=2), 1)
    (subset,) = subsets_of([item], {RecordedWriter.of(item): recorded_points(10)}, tmp_path)
    *tried, counts = explore(subset)
    assert ([row["point"] for row in tried], counts["points"]) == ([0, 1], 1)
    assert not any(map(is_wrong, tried))


def test_a_mutant_whose_time_is_over_is_not_tried_and_no_failure(tmp_path: Path) -> None:
    wanted = PlannedMutant("unsynced-rename", CHECKPOINT, "power", 1)
    (subset,) = subsets_of([wanted], {}, tmp_path)
    (left_out,) = IoFaults().untried(subset)
    (late,) = explore(subset, deadline=Deadline(0.0))
    for row in (left_out, late):
        assert (row["result"], is_wrong(row), IoFaults().tried(subset, [row])) == ("not tried", False, 0)
        assert {"kind", *KINDS["mutant"]} == set(row)
    assert fault_findings({"operation": [], "mutant": mutants([late])})[1].number == 0


def test_a_fault_of_which_nothing_was_tried_is_not_measured_and_never_held(tmp_path: Path) -> None:
    item = PlannedCase(IoFaultCase(CHECKPOINT, "DISK", "kill", commits=2), 1)
    planned = subsets_of([item], {RecordedWriter.of(item): recorded_points(501)}, tmp_path)
    rows = IoFaults().finish([], [row for subset in planned for row in IoFaults().untried(subset)], Claim(""))
    figures = IoFaults().figures({"operation_slice": rows})
    assert [(figure["points"], figure["points_in_all"]) for figure in figures["operation"]] == [(0, 501)]
    assert PROMISES.table(in_words(figures)).rows[0][-1] == "not measured in this run"
    assert not IoFaults().page(figures, {"operation_slice": rows}, {}).body


def test_the_first_slices_of_a_case_are_small_and_have_its_first_points() -> None:
    order = random.Random(3).sample(range(500), 500)
    parts = [points for _, points in in_rounds([(FIRST, point) for point in order], 96)]
    assert sorted(point for part in parts for point in part) == list(range(500))
    assert all(list(part) == sorted(part) for part in parts)
    assert [len(part) for part in parts[:5]] == [12, 24, 48, 96, 96]
    assert set(parts[0]) == set(order[:12])


def recorded_in_time(number: int, runs: int, folder: Path) -> tuple[list[IoTrial], set[RecordedWriter]]:
    """Prepare the default plan of a run after so many others, if so many writers can be recorded."""
    experiment = IoFaults()
    met: list[RecordedWriter] = []

    def recorded(function: object, writers: Sequence[RecordedWriter], part: float) -> list[Any]:
        assert part == RECORDING_PART
        met.extend(writers[:number])
        return [astuple(recorded_points(5)) if place < number else None for place in range(len(writers))]

    coverage = Coverage([CoveredRun("", "", "default", run) for run in range(runs)])
    planned = experiment.plan(Request("default", 1, coverage=coverage))
    prepared = experiment.prepare(planned, folder, recorded)
    outcome = Outcome()
    for trial in prepared:
        outcome.count(experiment.extent(trial)[0], 0, experiment.extent(trial)[1])
        outcome.rows.extend(experiment.untried(trial))
    for row in outcome.rows[:3]:
        row["points"] = 1
    cases = {trial for trial in planned if isinstance(trial, PlannedCase)}
    late = [trial.planned for trial in prepared if isinstance(trial, Unrecorded)]
    assert cases == {*late, *(case for case in cases if RecordedWriter.of(case) in met)}
    subsets = [trial for trial in prepared if isinstance(trial, Subset)]
    assert len({(subset.case, subset.seed) for subset in subsets if not subset.planned_mutant}) == len(cases) - len(
        late
    )
    assert {subset.planned_mutant for subset in subsets} - {None} == set(planned) - cases
    tried = {tuple(row[name] for name in ("backend", "durability", "fault", "variant")) for row in outcome.rows[:3]}
    assert experiment.extents(planned, outcome).get("cases") == ((len(tried), len(cases)) if late else None)
    return prepared, set(met)


def test_cases_without_a_recording_are_left_out_and_are_others_in_another_run(tmp_path: Path) -> None:
    experiment = IoFaults()
    prepared, writers = recorded_in_time(40, 0, tmp_path)
    late = [trial for trial in prepared if isinstance(trial, Unrecorded)]
    assert late == prepared[-len(late) :]
    assert not {RecordedWriter.of(trial.planned) for trial in late} & writers
    assert {experiment.cost_s(trial) for trial in prepared[: -len(late)]} == {0.0}
    assert {experiment.cost_s(trial) for trial in late} == {math.inf}
    assert not [row for trial in late for row in experiment.untried(trial)]
    assert {writer.case.level for writer in writers} == {"CHANGELOG", "PROCESS", "DISK"}
    assert len({writer.case.subject for writer in writers}) == len({name for name, _ in subjects()})
    assert recorded_in_time(40, 1, tmp_path)[1] != writers
    assert not [trial for trial in recorded_in_time(100, 0, tmp_path)[0] if isinstance(trial, Unrecorded)]


def test_a_run_tries_each_case_and_each_mutant_once_before_any_twice(tmp_path: Path) -> None:
    experiment = IoFaults()
    wanted = experiment.plan(Request("default", 1))

    def recorded(function: object, writers: Sequence[RecordedWriter], part: float) -> list[Any]:
        return [astuple(recorded_points(61)) for _ in writers]

    prepared = [each for each in experiment.prepare(wanted, tmp_path, recorded) if isinstance(each, Subset)]
    cases = len({subset.case for subset in prepared if subset.planned_mutant is None})
    known = len(
        {(subset.planned_mutant.mutant, subset.planned_mutant.found) for subset in prepared if subset.planned_mutant}
    )
    first = prepared[: cases + known]
    assert len({subset.case for subset in first if subset.planned_mutant is None}) == cases
    assert (
        len({(subset.planned_mutant.mutant, subset.planned_mutant.found) for subset in first if subset.planned_mutant})
        == known
    )
    assert len({subset.case.fault for subset in first[:60]}) >= 5
