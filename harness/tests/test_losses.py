"""Each acknowledged commit is kept, replayed or lost. No process runs here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.checkers.evidence import Acknowledged, Evidence, FoundStore, LaterProcess, Log, RestoredStore
from harness.checkers.losses import Commits, commits_of
from harness.experiments.crash.experiment import Crash
from harness.experiments.crash.report import LOSSES
from harness.experiments.iofaults.report import LOSSES as OF_FAULTS
from harness.experiments.iofaults.report import in_words, operations
from harness.tests.made_up_rows import made_up_rows
from harness.tests.test_checkers import FIRST, RECORDS, SECOND, evidence, found
from harness.tests.test_iofaults_report import operation

BOTH = (Acknowledged(1, {"left": 2}), Acknowledged(2, {"left": 5}))


def died(
    found_store: FoundStore, restored: RestoredStore | None = None, *, inputs: int = 2, exactly_once: bool = True
) -> Evidence:
    """Return the evidence of a process that died after two commits, whose log then had so many inputs."""
    log = Log({"left": RECORDS if inputs == 2 else RECORDS[:2]}, (), inputs)
    life = LaterProcess(log, BOTH, {"left": found_store}, {"left": restored or RestoredStore(SECOND, 2, False)})
    return replace(evidence(), lives=(life,), exactly_once=exactly_once)


@pytest.mark.parametrize(
    ("of_trial", "commits"),
    [
        (died(found(SECOND, 4)), Commits(2, 2, 0, 0)),
        (died(found(FIRST, 1)), Commits(2, 1, 1, 0)),
        (died(found({}, None)), Commits(2, 0, 2, 0)),
        (died(found(FIRST, 4)), Commits(2, 0, 2, 0)),
        (died(found(FIRST, 1), RestoredStore(FIRST, 0, False), inputs=1), Commits(2, 1, 0, 1)),
        (died(found(FIRST, 1), RestoredStore(FIRST, 0, False)), Commits(2, 0, 0, 2)),
        (died(found(FIRST, 1), RestoredStore(FIRST, 0, False), exactly_once=False), Commits(2, 1, 1, 0)),
    ],
)
def test_a_commit_is_kept_by_the_store_or_replayed_from_the_log_or_lost(of_trial: Evidence, commits: Commits) -> None:
    assert commits_of(of_trial) == commits
    assert commits.kept + commits.replayed + commits.lost == commits.acknowledged


def test_a_commit_counts_once_at_the_first_death_after_it() -> None:
    [life] = died(found(SECOND, 4)).lives
    again = replace(life, found={"left": found({}, None)})
    assert commits_of(replace(evidence(), lives=(life, again))) == Commits(2, 2, 0, 0)
    gone = replace(again, log=Log({"left": RECORDS[:2]}, (), 1), restored={})
    assert commits_of(replace(evidence(), lives=(life, gone))) == Commits(2, 1, 0, 1)


def test_the_table_shows_the_controls_beside_the_sound_stores() -> None:
    [table] = LOSSES.tables(Crash().figures(made_up_rows()))
    assert list(table.head[2:6]) == ["acknowledged", "kept", "replayed", "lost"]
    for row in table.rows:
        acknowledged, kept, replayed, lost = (0 if cell == "-" else int(cell) for cell in row[2:6])
        assert (lost, acknowledged) == (0, kept + replayed)
    assert any(row[-1] not in ("-", "0") for row in table.rows)


def test_acknowledged_commits_of_io_faults_are_kept_or_left_to_the_changelog_or_lost() -> None:
    trials = [
        operation(),
        operation(acknowledged=5, state=2, durability="CHANGELOG"),
        operation(acknowledged=5, state=None, result="detected"),
        operation(acknowledged=5, state=4, result="lost", expected=False),
        operation(acknowledged=5, state=1, backend="rocksdb-direct", durability="CHANGELOG"),
    ]
    subset = {"points": 1, "points_in_all": 1, "states": 1, "seconds": 1.0, "blind_spots": ""}
    figures = operations({"operation": trials, "operation_slice": [{**trial, **subset} for trial in trials]})
    [table] = OF_FAULTS.tables(in_words({"operation": figures, "mutant": [], "detection": []}))
    assert {(row[0], *row[2:]) for row in table.rows} == {
        ("DISK", "13", "7", "5", "1", "-", "-", "-", "-"),
        ("CHANGELOG", "5", "2", "3", "0", "5", "1", "4", "0"),
    }
