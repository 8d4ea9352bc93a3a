"""The first screen, what is lost and what has changed: sentences and pictures that come from figures alone."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest

from harness.answer.browser_page import browser_page
from harness.answer.choice import Choice, choices
from harness.answer.first_screen import compared, default_advice, picker_data, picture, proven, to_take
from harness.answer.frontier import HEAD, Value, frontier_svg, landscapes
from harness.answer.history import HistoryEntry, Line, updates
from harness.answer.lost_cells import loss_table, lost_cells
from harness.answer.results import all_figures, all_pages, first_page, level_sentence
from harness.experiments.crash.report import crash_finding
from harness.experiments.needs import MEASURES, NEEDS, failed
from harness.experiments.throughput.report import reference
from harness.report import environment
from harness.report.environment import machine_page, sync_seconds
from harness.report.page import Page, PageFinding
from harness.tests.made_up_rows import ENVIRONMENT, FACTS, LEVELS, SPEEDS, Rows, made_up_rows, scaled
from stores.registry import backends

BACKENDS = ENVIRONMENT["backends"]


def test_the_frontier_has_the_backends_that_none_beats_in_both_speed_and_recovery() -> None:
    rows = made_up_rows()
    ready = {"rocksdb-indexed-batch": 0.9, "lmdb-indexed-batch": 0.01, "sqlite-indexed-batch": 0.02}
    for row in rows["opening"]:
        row.update(open_s=ready.get(row["backend"], 1.0), restore_s=0.0)
    low, disk = landscapes(all_figures(rows), BACKENDS)
    assert [point.backend for point in low.frontier] == ["lmdb-indexed-batch", "rocksdb-indexed-batch"]
    assert low.opened == "ready after a kill, 500,000 records"
    assert disk.opened == "opened again after a kill"
    assert {point.backend for point in low.points if not point.fit} == {
        "rocksdb-direct",
        "memory-indexed-batch",
        "sqlite-indexed-batch",
    }


def test_a_backend_that_broke_a_promise_is_not_on_the_frontier() -> None:
    rows = made_up_rows()
    before = landscapes(all_figures(rows), BACKENDS)[1].frontier
    for row in rows["throughput"]:
        if row["backend"] == before[-1].backend:
            row["end_state"] = "different"
    assert before[-1].backend not in {point.backend for point in landscapes(all_figures(rows), BACKENDS)[1].frontier}


def test_a_point_has_its_numbers_and_one_without_recovery_is_at_the_side_as_not_measured() -> None:
    low = landscapes(all_figures(made_up_rows()), BACKENDS)[0]
    svg = frontier_svg(low)
    assert svg.count('class="m memory') == svg.count('class="m disk') == len(SPEEDS)
    assert ">not measured<" in svg
    numbers = [facts.split() for facts in re.findall(r'data-v="([^"]*)"', svg)]
    assert {len(each) for each in numbers} == {len(HEAD)}
    assert ["-", "-", "-"] in [each[3:6] for each in numbers]
    assert "records/s, log scale" in svg
    left_out = replace(low, points=[point for point in low.points if point.ready])
    assert ">not measured<" not in frontier_svg(left_out)


@pytest.mark.parametrize("longest_s", [0.4, 0.5, 0.55, 0.9, 1.5, 2.0, 3.0, 5.0, 20.0])
def test_no_name_of_a_time_is_below_not_measured_or_beside_the_next_one(longest_s: float) -> None:
    low = landscapes(all_figures(made_up_rows()), BACKENDS)[0]
    [slowest] = [point for point in low.points if point.backend == "rocksdb-direct"]
    others = [point for point in low.points if point is not slowest]
    svg = frontier_svg(replace(low, points=[*others, replace(slowest, ready=Value(longest_s))]))
    names = re.findall(r'<text class="s c" x="(\d+)" y="266">([^<]+)<', svg)
    assert "not measured" in dict(map(reversed, names))
    ends = sorted((int(x) - 2.9 * len(name), int(x) + 2.9 * len(name)) for x, name in names)
    assert len(ends) > 2
    assert all(end + 6 < start for (_, end), (start, _) in pairwise(ends))


SIDE_BY_SIDE = {
    "lmdb-indexed-batch": (126_900, 0.0263),
    "lmdb-native": (123_300, 0.0273),
    "memory-indexed-batch": (147_800, None),
    "rocksdb-direct": (128_600, 0.2231),
    "rocksdb-dual-store": (120_700, 0.1049),
    "rocksdb-indexed-batch": (129_100, 0.1013),
    "rocksdb-sst-ingest": (103_500, 0.0257),
    "sqlite-indexed-batch": (93_770, 0.0338),
    "sqlite-native": (92_600, 0.0379),
}
"""The points of a run in which the fastest recoveries are at the left edge, close to each other."""


PAIRS = {
    "lmdb-indexed-batch": (181_000, 0.0274),
    "lmdb-native": (178_000, 0.0298),
    "memory-indexed-batch": (230_000, None),
    "rocksdb-direct": (182_000, None),
    "rocksdb-dual-store": (171_000, 0.215),
    "rocksdb-indexed-batch": (179_000, 0.203),
    "rocksdb-sst-ingest": (136_000, 0.0287),
    "sqlite-indexed-batch": (115_000, 0.0389),
    "sqlite-native": (117_000, 0.0408),
}
"""The points of a run in which a name takes the last room of another one, and two are at the lower edge."""


@pytest.mark.parametrize("places", [SIDE_BY_SIDE, PAIRS], ids=["side by side", "pairs"])
def test_each_point_has_its_name_also_at_the_edge_and_beside_others(
    places: Mapping[str, tuple[int, float | None]],
) -> None:
    low = landscapes(all_figures(made_up_rows()), BACKENDS)[0]
    points = [
        replace(low.points[0], backend=backend, speed=Value(speed), ready=Value(ready_s) if ready_s else None)
        for backend, (speed, ready_s) in places.items()
    ]
    svg = frontier_svg(replace(low, points=points))
    assert {name for name in places if f">{name}</text>" in svg} == set(places)


def test_a_few_openings_are_no_time_until_ready_for_all() -> None:
    rows = made_up_rows()
    rows["opening"] = [row for row in rows["opening"] if row["backend"].startswith("sqlite")]
    low = landscapes(all_figures(rows), BACKENDS)[0]
    assert low.opened == "opened again after a kill"
    assert all(point.ready for point in low.points)


@pytest.mark.parametrize("ready", [True, False])
def test_a_level_of_one_backend_has_a_picture(ready: bool) -> None:
    low = landscapes(all_figures(made_up_rows()), BACKENDS)[0]
    (point,) = [point for point in low.points if point.backend == "lmdb-indexed-batch"]
    alone = replace(low, points=[point if ready else replace(point, ready=None)])
    assert frontier_svg(alone).count("<use") == 2
    assert [each.backend for each in alone.frontier] == ["lmdb-indexed-batch"] * ready


def test_nothing_measured_has_no_picture_and_says_so() -> None:
    figures = all_figures({})
    assert landscapes(figures, BACKENDS) == []
    assert "Not measured in this run." in picture([])
    assert to_take(choices(figures, BACKENDS)) == "**Take:** this run decides none of the needs yet."


def test_the_sentence_of_what_was_compared_counts_the_measurements() -> None:
    rows = made_up_rows()
    figures = all_figures(rows)
    words = compared(figures, landscapes(figures, BACKENDS), ENVIRONMENT)
    assert f"{len(SPEEDS)} backends" in words
    assert ", ".join(LEVELS) in words
    assert f"{len(rows['throughput'])} measurements" in words
    assert f"{len(rows['opening'])} openings" in words


def checked(name: str, number: int, good: int) -> Page:
    finding = PageFinding(f"{name} trials", number, good, "ended as expected")
    return Page(name, name, (), ("a table",), "", (finding,))


def test_the_sentence_of_what_was_proven_says_if_a_promise_was_broken() -> None:
    good = [checked("crash", 5, 5), checked("none", 0, 0), checked("fault", 7, 7)]
    assert proven({}, good) == (
        "**Proven:** 5 of 5 [crash trials](crash.md) ended as expected; "
        "7 of 7 [fault trials](fault.md) ended as expected; no promise was broken."
    )
    lost = [{"expected": "valid", "isolates": True, "acknowledged": 5, "lost": number} for number in (0, 1)]
    control = {"expected": "valid", "isolates": False, "acknowledged": 7, "lost": 7}
    assert proven({"crash": [lost[0], control]}, good).startswith(
        "**Proven:** 0 of 5 acknowledged commits were lost; 5 of 5 [crash"
    )
    assert "**1 of 10 acknowledged commits were lost**" in proven({"crash": [*lost, control]}, good)
    assert "**2 checks found a broken promise**" in proven({}, [*good, checked("late", 9, 7)])
    assert "**1 check found a broken promise**" in proven({}, [*good, checked("late", 9, 8)])


def test_a_check_without_a_verdict_is_no_broken_promise() -> None:
    finding = PageFinding("crash trials", 9, 7, "ended as expected", unknown=2)
    page = Page("crash", "crash", (), ("a table",), "", (finding,))
    assert proven({}, [page]) == (
        "**Proven:** 7 of 9 [crash trials](crash.md) ended as expected (2 without a verdict); no promise was broken."
    )
    worse = replace(page, findings=(finding._replace(good=6),))
    assert proven({}, [worse]).endswith("(2 without a verdict); **1 check found a broken promise**.")


@pytest.mark.parametrize(("result", "broke"), [("anomaly", True), ("unknown", False)])
def test_a_backend_is_left_out_of_picks_for_an_anomaly_alone(result: str, broke: bool) -> None:
    rows = made_up_rows()
    row = next(row for row in rows["crash"] if (row["backend"], row["expected"]) == ("lmdb-indexed-batch", "valid"))
    row["result"] = result
    figures = all_figures(rows)
    left_out = {level for level in LEVELS if "lmdb-indexed-batch" in failed(figures, level)}
    assert left_out == ({row["durability"]} if broke else set())


def test_the_findings_of_crash_trials_count_those_without_a_verdict() -> None:
    rows = made_up_rows()["crash"][:2]
    rows[1]["result"] = "unknown"
    finding = crash_finding(all_figures({"crash": rows}))
    assert (finding.number, finding.good, finding.unknown) == (1, 0, 1)


def test_no_two_needs_are_the_same_words_in_the_sentence_of_what_to_take() -> None:
    sentences = [to_take([Choice(need.words, need.durability, "x")]) for need in NEEDS]
    assert len(set(sentences)) == len(NEEDS)


def test_the_sentence_of_what_to_take_joins_levels_and_names_those_that_are_as_good() -> None:
    picks = [
        Choice("Most records per second, a", "CHANGELOG", "x"),
        Choice("Most records per second, b", "DISK", "x"),
        Choice("Least disk", "CHANGELOG", "x", ties=("y", "z")),
        Choice("Long transactions (10 records)", "CHANGELOG", "y", ties=("z",)),
        Choice("Shortest commits", "CHANGELOG", undecided="no pick yet: x or y", open_rivals=("x", "y")),
    ]
    assert to_take(picks) == (
        "**Take:** **x** for the most records per second (CHANGELOG, DISK) and the least disk "
        "(CHANGELOG; y and z are as good); **y** for long transactions (CHANGELOG; z is as good). "
        "1 of 5 needs are not decided."
    )


def test_the_picker_has_fit_backends_only_and_the_picks_of_needs_with_one_measure() -> None:
    figures = all_figures(made_up_rows())
    picks = choices(figures, BACKENDS)
    low, disk = picker_data(landscapes(figures, BACKENDS), picks)["levels"]
    assert set(low["backends"]) == {"rocksdb-indexed-batch", "rocksdb-dual-store", "lmdb-indexed-batch"}
    assert set(low["picks"]) == {"speed", "recovery", "disk"}
    assert set(disk["picks"]) == {"speed"}
    assert low["picks"]["disk"]["backend"] == next(pick.backend for pick in picks if pick.need == "Least disk")
    assert low["backends"]["lmdb-indexed-batch"]["speed"][1].endswith(" records/s")


def test_a_cell_is_lost_if_the_best_is_more_than_twice_as_good_and_a_restore_is_its_reason() -> None:
    figures = all_figures(made_up_rows())
    found = {(loss.backend, loss.level, loss.measure.name): loss for loss in lost_cells(figures, BACKENDS)}
    slow = found["rocksdb-dual-store", "DISK", "records_per_s"]
    assert (slow.lost, slow.cells) == (3, 3)
    assert slow.times == pytest.approx(1.3 / 0.5)
    assert slow.best["backend"] == "rocksdb-indexed-batch"
    assert slow.reason == ""
    late = found["rocksdb-direct", "CHANGELOG", "ready_s"]
    assert re.fullmatch(r"\d+% of it is the restore of 1,000 records from the changelog", late.reason)
    assert not any("memory" in name for name, _, _ in found)
    table = loss_table(lost_cells(figures, BACKENDS))
    assert [float(row[3].split()[0]) for row in table.rows] == sorted(
        (float(row[3].split()[0]) for row in table.rows), reverse=True
    )


def entry(value: float, share: float, **differing: Any) -> HistoryEntry:
    facts = {"measure": "records_per_s", "level": "DISK", "cell": "a cell", "backend": "lmdb-native"}
    return HistoryEntry(**{**facts, **differing}, value=value, low=value / (1 + share), high=value * (1 + share))


def line(day: int, commit: str, *entries: HistoryEntry, machine: str = "2 cores") -> Line:
    return Line(f"2026-01-{day:02} 00:00 UTC", commit, machine, "night", 1, entries)


def test_an_update_names_figures_whose_intervals_have_nothing_in_common_and_the_commits() -> None:
    first = line(1, "a" * 40, entry(100, 0.1), entry(50, 0.1, level="PROCESS"))
    elsewhere = line(2, "b" * 40, entry(900, 0.1), machine="64 cores")
    second = line(3, "b" * 40, entry(150, 0.1), entry(52, 0.1, level="PROCESS"), entry(7, 0.1, backend="new"))
    latest, other, oldest = updates([first, elsewhere, second])
    assert (latest.compared, len(latest.changes)) == (2, 1)
    assert "1 of 2 figures differ from the run of 2026-01-01" in latest.words
    assert "lmdb-native at DISK, records/s: 100 records/s, now 150 records/s." in latest.words
    assert "from commit aaaaaaa to commit bbbbbbb" in latest.words
    assert "first whole run on 64 cores" in other.words
    assert oldest.before is None


def test_an_update_of_the_same_code_says_so() -> None:
    latest, _ = updates([line(1, "a" * 40, entry(100, 0.01)), line(2, "a" * 40, entry(150, 0.01))])
    assert "The code is the same" in latest.words


def everything() -> Rows:
    """Rows as of a run that leaves nothing out: all backends, levels, sizes and workloads, and many ratios."""
    rows = made_up_rows()
    names = [*backends()]
    sample = {
        kind: next(row for row in rows[kind] if row.get("backend")) for kind in ("throughput", "opening", "crash")
    }
    points = [f"{place}.{number}" for place in ("task", "create", "restore", "dual_store") for number in range(14)]
    cells = [(name, level) for name in names for level in ("CHANGELOG", "PROCESS", "DISK")]
    rows["throughput"] = [
        {**sample["throughput"], "backend": name, "durability": level, "workload": work, "repeat": repeat,
         "records_per_commit": size, "records_per_s": 1000.0 * (7 + hash_of(name, level, work, size) + repeat)}
        for name, level in cells for work in ("count", "flights", "flights_by_hour", "aircraft_sessions")
        for size in (100, 1_000, 10_000) for repeat in range(5)
    ]  # fmt: skip
    rows["opening"] = [
        {**sample["opening"], "backend": name, "durability": level, "records": records, "repeat": repeat,
         "open_s": 0.001 * (7 + hash_of(name, level, records) + repeat)}
        for name, level in cells for records in (50_000, 500_000, 5_000_000) for repeat in range(5)
    ]  # fmt: skip
    rows["crash"] = [
        {**sample["crash"], "backend": name, "durability": level, "failpoint": point,
         "trial_id": f"{name}{level}{point}"}
        for name, level in cells for point in points
    ]  # fmt: skip
    rows["ratio"] = [{**rows["ratio"][0], "claim": f"claim {number * 7919}"} for number in range(400)]
    return rows


def hash_of(*words: object) -> int:
    return sum(map(ord, str(words))) * 7919 % 97


def test_the_page_of_a_run_that_leaves_nothing_out_is_below_400_kb() -> None:
    rows = everything()
    facts = [{"transactional": each.transactional, "persistent": each.persistent} for each in backends().values()]
    environment = {**ENVIRONMENT, "backends": dict(zip(backends(), facts, strict=True))}
    figures = all_figures(rows)
    page = browser_page(figures, all_pages(figures, rows, FACTS), FACTS, environment, [])
    assert page.count('class="scape"') == 3
    assert len(page.encode()) < 400_000
    assert {measure.name for measure in MEASURES} >= {"records_per_s", "ready_s"}


def test_a_disk_whose_syncs_cost_nothing_is_named_with_the_levels_that_it_makes_alike() -> None:
    figures = all_figures(made_up_rows())
    at = reference(figures["throughput"], "CHANGELOG")
    assert at is not None
    low = [figure for figure in figures["throughput"] if at.holds(figure)]
    factors = {figure["backend"]: 0.95 if figure["backend"].startswith("lmdb") else 0.5 for figure in low}
    high = [
        {**figure, "durability": "DISK", "records_per_s": figure["records_per_s"] * factors[figure["backend"]]}
        for figure in low
    ]
    sentence = level_sentence({**figures, "throughput": [*low, *high]}, {"fsync_s": 0.000084})
    assert "84 us" in sentence
    named = {figure["backend"] for figure in low if figure["backend"] in sentence}
    assert named == {figure["backend"] for figure in low if figure["backend"].startswith("lmdb")} != set()
    assert level_sentence({**figures, "throughput": low}, {"fsync_s": 0.01}).count("levels") == 0
    assert level_sentence(figures, {}) == ""


def test_an_fsync_is_measured_in_the_folder_of_the_stores_and_leaves_nothing(tmp_path: Path) -> None:
    assert 0 < sync_seconds(tmp_path) < 60
    assert list(tmp_path.iterdir()) == []


def test_the_time_of_an_fsync_is_the_median_of_syncs_of_a_page_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []

    def sync(file: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{file}")).parent, os.fstat(file).st_size))

    monkeypatch.setattr(os, "fsync", sync)
    took = [*range(0, 25, 2), *range(1, 25, 2)]
    monkeypatch.setattr(environment, "perf_counter", chain.from_iterable((0, seconds) for seconds in took).__next__)
    assert sync_seconds(tmp_path) == 12
    assert synced == [(tmp_path, 4_096 * pages) for pages in range(1, 26)]


def test_one_fsync_is_on_both_first_pages_and_on_that_of_the_machine() -> None:
    figures = all_figures(made_up_rows())
    machine = {**ENVIRONMENT, "fsync_s": 0.000084}
    for page in (first_page(figures, [], FACTS, machine, []), browser_page(figures, [], FACTS, machine, [])):
        assert "One fsync takes 84 us" in page
    assert re.search(r"\| one fsync .*\| 84 us \|", machine_page(FACTS, machine))


def test_the_default_is_said_to_be_as_good_perhaps_where_it_is_not_distinguished_from_the_pick() -> None:
    name = "rocksdb-indexed-batch"
    picks = [Choice("a", "DISK", name), Choice("b", "DISK", "x", unclear=(name,)), Choice("c", "DISK", "x")]
    assert default_advice(picks).endswith("for 1 of 3 decided needs of this run, and may be as good for 1 more.")
    assert default_advice(picks[:1]).endswith("for 1 of 1 decided needs of this run.")
    assert default_advice([Choice("a", "DISK")]).endswith("the default of `StoreConfig`.")


def test_both_first_pages_begin_with_the_answer_and_the_default() -> None:
    rows = made_up_rows()
    figures = all_figures(rows)
    picks = choices(figures, ENVIRONMENT["backends"])
    _, take, default, *_ = first_page(figures, [], FACTS, ENVIRONMENT, []).split("\n\n")
    assert take == to_take(picks)
    good = sum("rocksdb-indexed-batch" in (pick.backend, *pick.ties) for pick in picks)
    assert 0 < good < sum(pick.decided for pick in picks)
    assert default.startswith("**If you do not care:** rocksdb-indexed-batch")
    assert f" {good} of {sum(pick.decided for pick in picks)} " in default
    page = browser_page(figures, [], FACTS, ENVIRONMENT, [])
    assert page.index("Take:") < page.index("If you do not care:") < page.index("Compared:")
    assert re.search(r'<section id="not-proven"[^>]*>\s*<details>', page)


def test_the_next_best_is_worse_than_all_that_the_answer_names() -> None:
    rows = scaled(
        made_up_rows(), "lmdb-indexed-batch", *(1.3 / 0.9 * factor for factor in (1.02, 0.99, 0.99, 0.99, 0.9))
    )
    (choice, *_) = choices(all_figures(scaled(rows, "rocksdb-dual-store", 1.3 / 0.5 * 0.96)), ENVIRONMENT["backends"])
    assert choice.answer == "**rocksdb-indexed-batch**; no difference: rocksdb-dual-store"
    # Its median is above that of the last one named, but it may be worse by more than a tenth.
    assert choice.unclear == ("lmdb-indexed-batch",)
    assert choice.next_best == ""
