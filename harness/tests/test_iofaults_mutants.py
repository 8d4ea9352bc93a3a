"""Each mutant is detected by the I/O fault that it names, and not by a fault that cannot see it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness import cli
from harness.checkers.prefix import Found, Remains
from harness.experiments.iofaults import detection
from harness.experiments.iofaults.case import is_wrong, read_asked
from harness.experiments.iofaults.detection import DetectionResult, detect, detect_fully, in_parts, trials_of
from harness.experiments.iofaults.experiment import explore
from harness.experiments.iofaults.fault import IO_FAULTS as FAULTS
from harness.experiments.iofaults.fault import commits
from harness.experiments.iofaults.plan import PlannedCase, PlannedMutant, case_of, in_turn, subjects_with
from harness.experiments.iofaults.subjects import CHECKPOINT
from harness.experiments.iofaults.subsets import Subset
from harness.experiments.iofaults.workshop import Workshop
from harness.mutants import IO_MUTANTS, patch
from harness.processes.fork_server import ForkServer
from harness.report.rows import Row
from stores.errors import ConfigError

SEED = 3
SEEDS = {"marker-removed-early": 1}
"""The seeds of mutants that show at another point in each run with ``SEED``, because the engine has threads."""


def test_every_mutant_has_a_subject_and_a_fault_that_exists() -> None:
    for name, mutant in IO_MUTANTS.items():
        assert subjects_with(name), name
        assert mutant.fault in FAULTS
        assert not mutant.variant or mutant.variant in FAULTS[mutant.fault].variants


def test_cases_share_a_recording_if_they_have_the_same_kind_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of one kind: with another one, no state would have a verdict."""
    mutant, subject = "unsynced-spill-folders", "rocksdb-indexed-batch"
    used: dict[str, set[str]] = {}

    def noted(item: PlannedCase, *_: object) -> Iterator[Row]:
        used.setdefault(item.case.recording, set()).add(item.case.records)
        return iter(())

    monkeypatch.setattr(detection, "_rows", noted)
    detect(mutant, subject, 5, "night")
    kinds = {item.case.records for item in trials_of("night", mutant, subject, 5)}
    assert len(kinds) > 1
    assert sorted(used.values(), key=str) == sorted(({kind} for kind in kinds), key=str)


RESULTS: dict[str, set[Found]] = {
    "no-sync": {Found.LOST},
    "early-acknowledgement": {Found.LOST},
    "offsets-before": {Found.TORN},
    "offsets-after": {Found.TORN},
    "write-per-key": {Found.TORN},
    "segments-one-by-one": {Found.TORN},
    "unsynced-marker": {Found.TORN, Found.DETECTED},
    "unsynced-marker-folder": {Found.TORN},
    "marker-removed-early": {Found.LOST, Found.TORN},
    "decided-before-record": {Found.DETECTED},
    "offsets-before-copy": {Found.TORN},
    "unsynced-spill": {Found.DETECTED},
    "unsynced-spill-folders": {Found.DETECTED},
    "ingested-one-by-one": {Found.TORN},
    "offsets-ingested-first": {Found.TORN},
    "swallowed-error": {Found.LOST, Found.TORN, Found.PHANTOM},
    "unsynced-rename": {Found.LOST},
    "checkpoint-in-place": {Found.DETECTED},
    "unmarked-creation": {Found.DETECTED},
    "unsynced-store-name": {Found.LOST},
    "trusted-log": {Found.LOST, Found.DETECTED},
    "unchecked-record": {Found.PHANTOM},
    "unchecked-checkpoint": {Found.PHANTOM},
    "trusted-meta-pages": {Found.LOST, Found.DETECTED},
    "upgraded-outside": {Found.TORN, Found.PHANTOM},
    "swapped-without-note": {Found.LOST},
    "stepped-offset-first": {Found.TORN, Found.UNUSABLE},
    "import-noted-first": {Found.TORN, Found.DETECTED},
    "one-offset-for-all": {Found.LOST, Found.TORN, Found.PHANTOM},
    "stream-time-forgotten": {Found.TORN, Found.PHANTOM},
    "punctuated-outside": {Found.TORN, Found.PHANTOM},
    "removed-in-place": {Found.PHANTOM, Found.TORN},
    "checkpoint-before-folder": {Found.DETECTED, Found.TORN, Found.PHANTOM},
    "layout-noted-last": {Found.DETECTED},
    "unsynced-layout": {Found.DETECTED},
    "unsynced-process-id": {Found.PHANTOM},
    "unsynced-version": {Found.DETECTED},
    "unsynced-version-name": {Found.DETECTED, Found.LOST},
    "changes-without-deletions": {Found.TORN, Found.PHANTOM, Found.UNUSABLE},
    "unchecked-version": {Found.PHANTOM, Found.TORN, Found.LEAKED_EXCEPTION, Found.DEADLY, Found.REFUSED},
}
"""The results that may detect each mutant."""
QUICKEST = {
    **dict.fromkeys(("unsynced-spill", "unsynced-spill-folders", "offsets-before-copy"), "lmdb-indexed-batch"),
    "import-noted-first": "offset-import",
}
"""The subject in which it takes the fewest states, where that is not the last one."""


SHOWN_BY = dict.fromkeys(("unsynced-marker", "unsynced-marker-folder"), 10)
"""The commit that shows a mutant which shows in few: the default profile takes seconds to come by it."""


def detected_in(commit: int, mutant: str, subject: str, fork_server: ForkServer) -> DetectionResult:
    """Make those of the default profile's own trials that cut the power within ``commit``, until one fails."""
    (item, *_) = trials_of("default", mutant, subject, SEED)
    with Workshop(item.case, SEED, fork_server) as shop:
        recording = shop.recording()
        within = commits(recording)[commit - 1]
        drawn = in_turn(item, shop.points(), FAULTS[item.case.fault].guides(recording))
        parts = in_parts([point for _, point in drawn if point in within], item.case.fault)
        rows = (row for part in parts for row in shop.explore(part))
        for number, row in enumerate(rows, 1):
            if not row["expected"]:
                return DetectionResult(number, row)
    return DetectionResult()


LONG = {
    *("swapped-without-note", "layout-noted-last", "punctuated-outside", "stepped-offset-first"),
    *("decided-before-record", "one-offset-for-all", "unsynced-spill", "unsynced-spill-folders"),
}
"""The mutants that take the most trials."""


def test_every_mutant_is_tried_here() -> None:
    assert set(RESULTS) == set(IO_MUTANTS)


@pytest.mark.parametrize(
    "mutant", [pytest.param(name, marks=pytest.mark.long if name in LONG else []) for name in IO_MUTANTS]
)
def test_every_mutant_is_found_by_trials_that_the_default_profile_makes(mutant: str, fork_server: ForkServer) -> None:
    subject = QUICKEST.get(mutant, subjects_with(mutant)[-1])
    if mutant in SHOWN_BY:
        detection = detected_in(SHOWN_BY[mutant], mutant, subject, fork_server)
    else:
        detection = detect(mutant, subject, SEEDS.get(mutant, SEED), fork_server=fork_server)
    assert detection.row is not None
    assert detection.row["result"] in RESULTS[mutant]
    assert detection.states >= 1
    asked = read_asked(detection.row["repeat"].removeprefix("python -m harness repeat iofaults ").strip("'"))
    assert (asked.case.mutant, asked.point, asked.seed) == (mutant, detection.row["point"], SEEDS.get(mutant, SEED))


@pytest.mark.parametrize("mutant", ["offsets-before", "offsets-after", "write-per-key", "segments-one-by-one"])
def test_a_mutant_of_an_engine_s_write_can_be_built_into_each_engine(mutant: str, fork_server: ForkServer) -> None:
    for subject in subjects_with(mutant):
        case = case_of(mutant, subject)
        with Workshop(case, SEED, fork_server) as shop:
            assert commits(shop.recording()), subject


def test_kills_can_not_see_that_nothing_is_synced() -> None:
    subject = subjects_with("no-sync")[-1]
    result = detect_fully("no-sync", subject, SEED, fault="kill", points_max=12)
    assert result.row is None
    assert result.states == 12


@pytest.mark.parametrize("fault", ["power", "kill"])
def test_without_a_verdict_nothing_is_shown_about_a_mutant(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Workshop, "look", lambda *given, **named: Remains(trouble="died"))
    wanted = PlannedMutant("unsynced-rename", CHECKPOINT, fault, SEED, found=fault == "power", points_max=4)
    (row,) = explore(Subset(0, "", SEED, case_of(wanted.mutant, CHECKPOINT, fault), planned_mutant=wanted))
    assert (row["result"], row["expected"], row["states"]) == (Found.HARNESS_ERROR, False, 0)
    assert is_wrong(row)


def test_a_mutant_is_tried_at_the_level_that_promises_most() -> None:
    assert {case_of(name, subjects_with(name)[0]).level for name, mutant in IO_MUTANTS.items()} == {"DISK"}


def test_an_unknown_mutant_is_refused() -> None:
    with pytest.raises(ConfigError):
        patch("no-such", "lmdb-indexed-batch")


def test_the_rate_of_detection_is_measured_by_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["mutants", "--mutants", "unsynced-rename,checkpoint-in-place", "--seeds", "2", "--seed", "7"]
    assert cli.main(asked) == 0
    assert f"unsynced-rename in {CHECKPOINT}: 2 of 2 seeds" in capsys.readouterr().out.splitlines()


def test_a_mutant_that_is_found_too_rarely_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    unseen = DetectionResult(9)
    monkeypatch.setattr(detection, "detect", lambda *given: unseen)
    assert cli.main(["mutants", "--mutants", "unsynced-rename", "--seeds", "3"]) == 1


@pytest.mark.parametrize("given", [["--mutants", "no-such"], ["--backends", "no-such"], ["--seeds", "0"]])
def test_a_measurement_of_nothing_is_refused(given: list[str]) -> None:
    assert cli.main(["mutants", *given]) == cli.USERS_MISTAKE
