"""Readers beside a writer: every backend is read without an anomaly, every mutant is detected."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from harness.checkers.isolation import ReadQuery, Versions, VersionWindow, explained, refusal, shown
from harness.cli import main
from harness.experiments.readers.run import OPERATIONS_AT_LEAST, ROUNDS_OF_A_MUTANT, ReadersTrial, run
from harness.experiments.registry import grid_of
from harness.mutants import READER_TRIALS, fitting, patch
from harness.scenario import Scenario
from harness.typed_maps import KINDS
from stores import failpoints
from stores.batch.buffer import IndexedBatch
from stores.errors import ConfigError
from stores.interface import IsolationLevel
from stores.records.segment_scans import SegmentScans
from stores.records.session import SessionReads
from stores.registry import backend_named, backends, open_store

ALL = ReadQuery("range")
SUBJECTS = ("memory-indexed-batch", "rocksdb-dual-store", "rocksdb-sst-ingest", "sqlite-native")
"""The backends that mutants are built into."""
MISTAKES = ("AttributeError", "NameError", "RecursionError", "TypeError")


def versions_of(*states: dict[bytes, bytes]) -> Versions:
    """Versions with positions 10, 20, ... after the empty one, all of them there."""
    versions = Versions()
    for number, state in enumerate(states, 1):
        versions.begin(state, 10 * number)
    versions.end()
    return versions


@pytest.mark.parametrize("backend", backends())
def test_readers_see_nothing_that_was_not_there(backend: str, tmp_path: Path) -> None:
    """For minutes, and at every level of durability: make soak."""
    outcome = run(ReadersTrial(backend, seconds=0.4, kinds=[""]), tmp_path)
    assert outcome.anomalies == []
    assert outcome.operations >= OPERATIONS_AT_LEAST
    assert min(outcome.answers.values()) > 20


@pytest.mark.parametrize("kind", KINDS)
def test_readers_of_typed_stores_see_nothing_that_was_not_there(kind: str, tmp_path: Path) -> None:
    """Source: KIP-258; views of windows and sessions at both levels."""
    for backend in ("lmdb-native", "rocksdb-indexed-batch"):
        outcome = run(ReadersTrial(backend, seconds=0.3, kinds=[kind]), tmp_path)
        assert outcome.anomalies == []
        assert min(outcome.answers.values()) > 20


def test_a_bound_of_windows_or_sessions_that_is_off_by_one_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, decoded = SegmentScans._made, SessionReads._decoded

    def early_end(self: Any, source: Any, ranges: Any, spans: Any, *, reverse: bool) -> Any:
        ends = [each.first is not None and each.first == each.last for each in ranges]
        early = [(low, high - sooner) for (low, high), sooner in zip(spans, ends, strict=True)]
        return made(self, source, ranges, early, reverse=reverse)

    def late_start(self: Any, pairs: Any, values: Any, latest_start_ms: int | None) -> Any:
        return decoded(self, pairs, values, latest_start_ms and latest_start_ms + 1)

    for kind, owner, name, broken in (
        ("window", SegmentScans, "_made", early_end),
        ("session", SessionReads, "_decoded", late_start),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, broken)
            assert run(ReadersTrial("memory-indexed-batch", seconds=30, kinds=[kind]), tmp_path).anomalies


def test_rounds_of_readers_take_turns_over_the_kinds_of_stores() -> None:
    assert set(ReadersTrial("lmdb").kinds) == {"", *KINDS} - {"key-value"}


@pytest.mark.parametrize("mutant", READER_TRIALS)
def test_readers_detect_each_mutant(mutant: str, tmp_path: Path) -> None:
    backend = fitting(mutant, [backend_named(name) for name in SUBJECTS])[0].name
    freeze = IndexedBatch.freeze
    anomalies = run(ReadersTrial(backend, seconds=30, mutant=mutant), tmp_path).anomalies
    assert anomalies
    # Not a mistake in the mutant itself.
    assert not any(error in anomaly for anomaly in anomalies for error in MISTAKES)
    # Nothing of the mutant stays behind.
    assert IndexedBatch.freeze is freeze
    assert failpoints.declared()


def test_a_lookup_key_by_key_is_held_until_commits_have_ended(tmp_path: Path) -> None:
    """So readers detect it by its answers, and not by a switch of threads at the right moment."""
    with patch("keys-one-by-one", "memory-indexed-batch"), open_store("memory", tmp_path / "store") as store:
        with ThreadPoolExecutor(1) as pool:
            lookup = pool.submit(store.read_only(IsolationLevel.READ_COMMITTED).get_many, [b"a", b"b"])
            for number in count():
                # Time in which a lookup that is not held answers between two commits.
                if wait([lookup], 0.02).done:
                    break
                store.put_all([(key, b"%d" % number) for key in (b"a", b"b")])
                store.commit()
        first, second = lookup.result()
    assert first != second


def test_a_trial_of_a_mutant_reads_some_rounds_in_full_however_short_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.experiments.readers.run.patch", lambda *given: nullcontext())
    monkeypatch.setattr("harness.experiments.readers.run.OPERATIONS_PER_ROUND", OPERATIONS_AT_LEAST + 1)
    outcome = run(ReadersTrial("memory", seconds=1e-6, mutant="dirty-read"), tmp_path)
    assert (outcome.rounds, outcome.operations) == (ROUNDS_OF_A_MUTANT, ROUNDS_OF_A_MUTANT * (OPERATIONS_AT_LEAST + 1))


def test_an_answer_is_right_if_some_version_of_its_window_gives_it() -> None:
    versions = versions_of({b"a": b"1"}, {b"a": b"2", b"b": b"2"}, {b"b": b"2"})
    assert shown(versions, ALL, [(b"a", b"2"), (b"b", b"2")], VersionWindow(1, 3)) == 2
    assert shown(versions, ALL, [(b"a", b"1")], VersionWindow(2, 3)) is None
    assert shown(versions, ALL, [(b"a", b"1"), (b"b", b"2")], VersionWindow(0, 3)) is None
    assert shown(versions, ReadQuery("get", (b"b",)), b"2", VersionWindow(0, 3)) == 2
    assert shown(versions, ReadQuery("get_many", (b"a", b"b", b"a")), [None, b"2", None], VersionWindow(0, 3)) == 3
    assert shown(versions, ReadQuery("range", (), None, b"a", True), [], VersionWindow(1, 3)) == 3
    assert shown(versions, ReadQuery("prefix", (b"b",)), [(b"b", b"2")], VersionWindow(0, 1)) is None
    assert shown(versions, ReadQuery("range", reverse=True), [(b"b", b"2"), (b"a", b"2")], VersionWindow(2, 2)) == 2
    assert shown(versions, ALL, [(b"a", b"1")], VersionWindow(0, 3, bound=11)) is None


def test_the_error_of_a_wrong_answer_says_what_is_wrong() -> None:
    versions = versions_of({b"a": b"1"}, {b"a": b"2"})
    told = {
        explained(versions, ALL, [(b"a", b"3")], VersionWindow(0, 2)),
        explained(versions, ALL, [(b"a", b"1")], VersionWindow(2, 2)),
        explained(versions, ALL, [(b"a", b"2")], VersionWindow(1, 1)),
        explained(versions, ALL, [(b"a", b"1")], VersionWindow(0, 2, bound=20)),
    }
    assert len(told) == 4


def test_a_refusal_is_right_only_where_the_store_may_be_that_far_behind() -> None:
    versions = versions_of({b"a": b"1"}, {b"a": b"2"})
    assert refusal(versions, VersionWindow(1, 2, bound=25), 5) == ""
    assert refusal(versions, VersionWindow(1, 2, bound=25), 15) == ""
    assert refusal(versions, VersionWindow(2, 2, bound=25), 15)
    assert refusal(versions, VersionWindow(1, 2, bound=20), 0)


def test_the_command_shares_the_time_out_and_fails_where_something_is_wrong(tmp_path: Path) -> None:
    chosen = ["readers", "--backends", "memory-indexed-batch"]
    assert main([*chosen, "--seconds", "0.2"]) == 0
    assert main([*chosen, "--seconds", "20", "--mutant", "dirty-read"]) == 1
    for wrong in (["--mutant", "no-such"], ["--seconds", "0"], ["--durability", "DISK"]):
        assert main([*chosen, *wrong]) == 2


def test_a_mutant_is_tried_where_it_fits_and_the_other_backends_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["readers", "--seconds", "20", "--mutant", "nothing-noted", "--durability", "PROCESS", "--backends"]
    assert main([*chosen, "sqlite-native,lmdb"]) == 1
    said = capsys.readouterr()
    assert "lmdb-indexed-batch" in said.out.partition("Seed")[0]
    assert "lmdb-indexed-batch at" not in said.out
    assert main([*chosen, "lmdb,sqlite"]) == 2


def test_each_strategy_that_keeps_writes_apart_has_a_mutant_that_readers_find_out() -> None:
    assert {mutant.strategy for mutant in READER_TRIALS.values()} == {
        backend.strategy for backend in backends().values() if backend.strategy != "direct"
    }


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario("readers", backends=("lmbd",)),
        Scenario("readers", durabilities=("DISC",)),
        Scenario("readers", mutants=("half-a-comit",)),
        Scenario("readers", backends=("lmdb",), mutants=("nothing-noted",)),
        Scenario("readers", seconds=0),
        Scenario("readers", backends="lmdb"),
        Scenario("readers", backends=("memory-indexed-batch",), durabilities=("DISK",)),
    ],
    ids=range(7),
)
def test_a_mistake_in_a_scenario_is_a_config_error_when_planned(scenario: Scenario) -> None:
    with pytest.raises(ConfigError):
        grid_of(scenario).plan(1)
