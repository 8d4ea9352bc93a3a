"""A report is made from rows alone: the same rows give the same bytes, and missing ones are named."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from harness.answer import write
from harness.answer.browser_page import browser_page
from harness.answer.choice import busy_notice, choices
from harness.answer.results import all_figures, all_pages, first_page, proven, summary_table, unproven
from harness.answer.write import TABLE_BEGIN, TABLE_END, publish, with_table, write_report
from harness.experiments.crash.experiment import Crash
from harness.experiments.crash.report import crash_tables
from harness.experiments.microbench.experiment import BENCHMARKS, ycsb_tables
from harness.experiments.opening.report import OPENED, largest_state
from harness.experiments.throughput.report import THROUGHPUT
from harness.report.database import lines_of
from harness.report.figures import Figure
from harness.report.page import HOW, anchor
from harness.report.ratios import ratio_table
from harness.report.rows import (
    new_run,
    write_facts,
)
from harness.run import shortened
from harness.tests.made_up_rows import ENVIRONMENT, FACTS, SPEEDS, Rows, made_up_rows, run_of, scaled
from stores.errors import ConfigError

PLOTS = {"throughput.svg", "store-throughput.svg", "commit-latency.svg", "opening.svg", "crash-matrix.svg"}
PLOTS |= {"put-and-commit-latency.svg", "scale.svg"}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first page of a report of all rows, for tests that only read it: most of its time is for the plots."""
    folder = tmp_path_factory.mktemp("report")
    return write_report(run_of(folder), folder / "results")


@pytest.fixture
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plot is drawn: for tests of what is written beside them."""
    monkeypatch.setattr(write, "draw", lambda *given: [])


PAGES = {"crashes", "throughput", "stores", "latency", "opening", "memory", "readers", "amplification", "machine"}
PAGES |= {"scale"}


def test_the_same_rows_give_the_same_files_byte_for_byte(tmp_path: Path, report: Path) -> None:
    again = write_report(run_of(tmp_path), tmp_path / "results")
    one, two = ({file.name: file.read_bytes() for file in each.parent.iterdir()} for each in (report, again))
    assert one == two
    pages = {f"{name}.md" for name in PAGES}
    assert set(one) == PLOTS | pages | {"report.md", "index.html", "figures.jsonl", "environment.json"}


def test_an_experiment_that_was_not_measured_is_listed_as_missing_without_page_and_plot(
    tmp_path: Path, report: Path
) -> None:
    results = tmp_path / "results"
    shutil.copytree(report.parent, results)
    (results / "notes.md").write_text("mine")
    first = write_report(run_of(tmp_path, {"crash"}), results).read_text()
    assert {file.name for file in results.glob("*.svg")} == {"crash-matrix.svg"}
    assert {file.name for file in results.glob("*.md")} == {"report.md", "crashes.md", "machine.md", "notes.md"}
    assert "| Time to open after a kill | not measured in this run |" in first
    figures = [json.loads(line) for line in (results / "figures.jsonl").read_text().splitlines()]
    assert {figure["kind"] for figure in figures} == {"crash"}


def test_every_table_of_every_page_names_its_durability_level(report: Path) -> None:
    seen = 0
    for file in report.parent.glob("*.md"):
        for before, block in pairwise(file.read_text().split("\n\n")):
            if block.startswith("| ") and "records" in block and not block.startswith("| page |"):
                assert "level" in before.lower() or "| level |" in block.splitlines()[0]
                seen += 1
    assert seen > 8


def test_every_link_leads_to_a_page_a_plot_or_a_section_and_the_first_page_to_all_of_them(report: Path) -> None:
    titles = {
        file.name: re.findall(r"^##+ (.*)$", file.read_text(), re.MULTILINE) for file in report.parent.glob("*.md")
    }
    for file in titles:
        for link in re.findall(r"\]\(([^)\s]+)\)", (report.parent / file).read_text()):
            target, _, section = link.partition("#")
            assert (report.parent / target).exists(), link
            assert not section or section in {anchor(title) for title in titles[target or file]}, link
    contents = report.read_text().partition("Contents: ")[2].partition("\n")[0]
    assert contents.count("](#") == len(titles["report.md"])
    assert {f"{name}.md" for name in PAGES} == set(re.findall(r"\]\((\w+\.md)\)", contents))


def test_the_page_about_crashes_has_a_table_of_the_mutants(report: Path) -> None:
    assert any(row["expected"] == "anomaly" for row in made_up_rows()["crash"])
    page = (report.parent / "crashes.md").read_text()
    section = page.split("## Mutants in crash trials\n")[1].split("\n## ")[0]
    assert len([line for line in section.splitlines() if line.startswith("| ")]) >= 2


def test_a_page_opens_with_three_sentences_and_ends_with_how_it_was_measured(report: Path) -> None:
    for name in PAGES - {"machine"}:
        text = (report.parent / f"{name}.md").read_text()
        title, opening, *_ = text.split("\n\n")
        assert title.startswith("# ")
        assert len(re.findall(r"\.(?=\*\* |\*\*$| |$)", opening)) == 3, opening
        assert text.count(f"\n## {HOW}\n") == 1
        assert f"\n## {HOW}\n" in text[-2500:]


def test_a_backend_that_fails_is_named_on_the_page_with_the_command_that_repeats_it(report: Path) -> None:
    page = (report.parent / "crashes.md").read_text()
    assert "**46 of 47 crash trials ended as expected.**" in page
    assert "**Trials that did not end as expected: 1.**" in page
    assert (
        "* sqlite-indexed-batch at CHANGELOG, create.built, seed 1: anomaly, not valid (atomicity: store left" in page
    )
    assert "repeat it with: python -m harness repeat crash '{}'" in page


def proven_by(rows: Rows) -> list[str]:
    figures = all_figures(rows)
    return proven(figures, all_pages(figures, rows, {}))


def test_the_proven_checks_are_counted_and_bold_where_one_failed() -> None:
    found = proven_by(made_up_rows())
    crashes, states, limits, steps, large, ratios = found
    assert large == "5 of 5 [stores of many records](scale.md) showed every record, in the memory that they may use."
    assert crashes == "**46 of 47 [crash trials](crashes.md) ended as expected.**"
    assert states.startswith("36 of 36 [measured configurations](throughput.md)")
    assert limits.startswith("1 of 1 [limits on the memory of uncommitted writes](memory.md#")
    assert steps.startswith("6 of 6 [steps larger than the limit](memory.md#")
    assert ratios.startswith("**3 of 5 [ratios with a threshold](#ratios)")


def test_a_limit_that_was_passed_is_reported() -> None:
    rows = made_up_rows()
    rows["early_commit"][0]["uncommitted_max_bytes"] = rows["early_commit"][0]["limit_bytes"] + 1
    assert any(line.startswith("**0 of 1 [limits") for line in proven_by(rows))


def test_rows_of_failures_are_notable() -> None:
    rows = made_up_rows()
    for row in rows["throughput"]:
        if (row["backend"], row["records_per_commit"]) == ("rocksdb-direct", 100):
            row["end_state"] = "different"
    figures = all_figures(rows)
    for table in THROUGHPUT.tables(figures):
        assert [list(table.rows[place][:2]) for place in table.notable] == [["rocksdb-direct", "100"]]
    (crashes,) = crash_tables(figures, expected="valid")
    assert [crashes.rows[place][0] for place in crashes.notable] == ["`create.built`"]
    ratios = ratio_table(figures)
    assert [ratios.rows[place][0] for place in ratios.notable] == [
        "and with long transactions",
        "fast by the clock alone",
    ]
    assert all(ratios.rows[place][-1].startswith("**no**: the same work takes") for place in ratios.notable)


def test_a_pick_is_the_best_of_those_that_kept_every_promise() -> None:
    found = {
        (choice.need.split(",")[0], choice.durability): choice
        for choice in choices(all_figures(made_up_rows()), ENVIRONMENT["backends"])
    }
    assert found["Most records per second", "DISK"].backend == "rocksdb-indexed-batch"
    assert found["Most records per second", "PROCESS"].backend == ""
    assert found["Least disk", "CHANGELOG"].backend == "lmdb-indexed-batch"


def answers(rows: Rows) -> dict[str, str]:
    found = choices(all_figures(rows), ENVIRONMENT["backends"])
    return {f"{choice.need.partition(' (')[0]} {choice.durability}": choice.answer for choice in found}


RATE = "Most records per second, commits kept by the changelog alone CHANGELOG"


def test_what_a_run_left_out_is_one_line_with_the_rest_folded_below_it() -> None:
    rows = made_up_rows()
    figures = all_figures(rows)
    pages = all_pages(figures, rows, {})
    absent = unproven(pages, {})
    assert "No trials over a broker in this run." in absent
    assert all(sentence.startswith("No ") for sentence in absent)
    page = first_page(figures, pages, FACTS, ENVIRONMENT, [])
    before, _, folded = page.partition("<details>\n<summary>Left out of this run")
    assert not any(sentence in before for sentence in absent)
    assert all(f"* {sentence}\n" in folded.partition("</details>")[0] for sentence in absent)


def test_a_backend_within_a_tenth_of_the_pick_is_named_beside_it() -> None:
    rows = made_up_rows()
    assert answers(rows)[RATE] == "**rocksdb-indexed-batch**"
    scaled(rows, "lmdb-indexed-batch", 1.3 / 0.9 * 0.98)
    assert answers(rows)[RATE] == "**rocksdb-indexed-batch**; no difference: lmdb-indexed-batch"
    page = first_page(all_figures(rows), [], FACTS, ENVIRONMENT, [])
    assert f"| {answers(rows)[RATE]} |" in page
    (choice, *_) = choices(all_figures(rows), ENVIRONMENT["backends"])
    assert (choice.decided, choice.ties, choice.open_rivals, choice.rounds) == (True, ("lmdb-indexed-batch",), (), 5)
    assert choice.next_best.startswith("rocksdb-dual-store, ")


def test_rivals_of_which_one_may_be_a_tenth_better_are_named_and_none_is_picked() -> None:
    rows = scaled(made_up_rows(), "lmdb-indexed-batch", *(1.3 / 0.9 * factor for factor in (0.6, 1.7, 0.9, 1.3, 0.95)))
    (choice, *_) = choices(all_figures(rows), ENVIRONMENT["backends"])
    assert (choice.decided, choice.backend) == (False, "")
    assert choice.open_rivals == ("rocksdb-indexed-batch", "lmdb-indexed-batch")
    assert choice.answer == "no pick yet: rocksdb-indexed-batch or lmdb-indexed-batch"


@pytest.mark.parametrize("rounds", [2, 3])
def test_a_few_rounds_decide_what_differs_much(rounds: int) -> None:
    rows = made_up_rows()
    for kind in ("throughput", "opening"):
        rows[kind] = [row for row in rows[kind] if row["repeat"] < rounds]
    assert answers(rows)[RATE] == "**rocksdb-indexed-batch**"


def test_one_round_picks_nothing() -> None:
    rows = made_up_rows()
    for kind in ("throughput", "opening"):
        rows[kind] = [row for row in rows[kind] if row["repeat"] < 1]
    found = choices(all_figures(rows), ENVIRONMENT["backends"])
    assert answers(rows)[RATE] == "no pick: measured once"
    assert not any(choice.decided for choice in found)
    assert found[0].open_rivals == ("rocksdb-indexed-batch", "lmdb-indexed-batch", "rocksdb-dual-store")


def test_a_size_that_decides_is_shown_rather_than_a_larger_one_that_was_opened_once() -> None:
    def opened(records: int, repeats: int) -> list[Figure]:
        return [
            {"durability": "CHANGELOG", "backend": name, "records": records, "repeats": repeats}
            for name in ("lmdb-native", "rocksdb-indexed-batch")
        ]

    assert largest_state(opened(500, 5) + opened(5_000, 1), "CHANGELOG") == opened(500, 5)
    assert largest_state(opened(500, 5) + opened(5_000, 5), "CHANGELOG") == opened(5_000, 5)
    assert largest_state(opened(500, 1) + opened(5_000, 1), "CHANGELOG") == opened(5_000, 1)
    assert largest_state(opened(500, 1) + opened(5_000, 5)[:1], "CHANGELOG") == opened(500, 1)
    assert largest_state([], "CHANGELOG") == []


def test_measurements_that_failed_are_on_the_first_page_and_on_that_for_a_browser() -> None:
    rows = made_up_rows()
    figures = all_figures(rows)
    facts = {**FACTS, "problems": [shortened("a trial of openings failed:\n<E> assert"), shortened("x" * 1_000)]}
    pages = all_pages(figures, rows, facts)
    for page in (
        first_page(figures, pages, facts, ENVIRONMENT, []),
        browser_page(figures, pages, facts, ENVIRONMENT, []),
    ):
        assert "2 of its measurements failed:" in page
        assert "a trial of openings failed;" in page
        assert "<E> assert" not in page
        assert "x" * 300 in page
        assert "x" * 301 not in page
    assert "measurements failed" not in first_page(figures, pages, {**FACTS, "problems": []}, ENVIRONMENT, [])


def test_own_events_are_named_with_their_rows_on_both_first_pages() -> None:
    rows = made_up_rows()
    figures = all_figures(rows)
    note = "left out 3 of 90 rows of a.csv: 2 have no 'k', 1 can't be read as CSV"
    for facts, there in (({**FACTS, "events": [note]}, True), (FACTS, False)):
        pages = all_pages(figures, rows, facts)
        page, browser = (
            first_page(figures, pages, facts, ENVIRONMENT, []),
            browser_page(figures, pages, facts, ENVIRONMENT, []),
        )
        assert (f"Your own events: {note}." in page) is there
        assert ("left out 3 of 90 rows of a.csv" in browser) is there


def test_a_report_from_a_busy_machine_says_so_first_and_has_the_same_picks() -> None:
    rows = made_up_rows()
    quiet = answers(rows)
    assert "The machine was busy" not in first_page(all_figures(rows), [], FACTS, ENVIRONMENT, [])
    for row in [*rows["throughput"], *rows["opening"]]:
        row.update(others_share=0.06, steal_share=0.05)
    figures = all_figures(rows)
    assert answers(rows) == quiet
    title, notice, *_ = first_page(figures, [], FACTS, ENVIRONMENT, []).split("\n\n")
    assert title.startswith("# ")
    assert notice.startswith("**The machine was busy")
    assert notice.strip("*") == busy_notice(figures)


def test_a_report_names_busy_microbenchmarks_too() -> None:
    rows = made_up_rows()
    for kind in ("throughput", "opening"):
        rows[kind] = []
    assert busy_notice(all_figures(rows)) == ""
    for kind in ("benchmark", "latency", "early_commit", "large_step"):
        for row in rows[kind]:
            row["others_share"] = 0.5
    count = sum(len(rows[kind]) for kind in ("benchmark", "latency", "early_commit", "large_step"))
    assert f"during {count} of {count} measurements" in busy_notice(all_figures(rows))


def test_ready_after_a_kill_is_the_same_figure_in_every_table() -> None:
    figures = all_figures(made_up_rows())
    table = summary_table(figures, ENVIRONMENT["backends"])
    column = list(table.head).index("ready after a kill, 500,000 records")
    shown = {row[0]: row[column] for row in table.rows}
    opening = {row[0]: row[6] for each in OPENED.tables(figures) for row in each.rows if row[1] == "500,000"}
    assert opening.items() <= shown.items()
    assert not any("ready after a kill" in head for each in THROUGHPUT.tables(figures) for head in each.head)


def test_a_backend_that_was_only_opened_has_a_line() -> None:
    openings = made_up_rows()["opening"]
    table = summary_table(all_figures({"opening": openings}), ENVIRONMENT["backends"])
    assert {row[0] for row in table.rows} == {row["backend"] for row in openings}


def test_a_backend_that_broke_a_promise_is_never_picked_at_that_level() -> None:
    rows = made_up_rows()
    for row in rows["throughput"]:
        if row["backend"] == "rocksdb-indexed-batch" and row["durability"] == "DISK" and row["repeat"] == 0:
            row["end_state"] = "different"
    for choice in choices(all_figures(rows), ENVIRONMENT["backends"]):
        assert choice.backend != "sqlite-indexed-batch" or choice.durability != "CHANGELOG"
        assert choice.backend != "rocksdb-indexed-batch" or choice.durability != "DISK"


def test_a_backend_without_isolation_is_never_picked_however_good_its_figures_are() -> None:
    rows = made_up_rows()
    for row in rows["throughput"]:
        if row["backend"] == "rocksdb-direct":
            row.update(records_per_s=1e9, commit_p99_us=0.1, peak_memory_bytes=1, bytes_on_disk=1)
    chosen = choices(all_figures(rows), ENVIRONMENT["backends"])
    assert {choice.backend for choice in chosen} - {""}
    assert "rocksdb-direct" not in {choice.backend for choice in chosen}
    assert not any(choice.next_best.startswith("rocksdb-direct") for choice in chosen)


def test_picks_follow_the_rows_and_no_opinion() -> None:
    rows = made_up_rows()
    for row in rows["throughput"]:
        row["records_per_s"] = 1e6 / row["records_per_s"]
    (first, *_) = choices(all_figures(rows), ENVIRONMENT["backends"])
    assert first.backend == "rocksdb-dual-store"


def crash_trials(rows: list[dict[str, Any]]) -> list[Figure]:
    return lines_of(Crash.columns, {"crash": rows}, "select * from crash_trial")


def test_a_trial_is_as_bad_as_its_worst_verdict_and_unknown_is_no_success() -> None:
    rows = made_up_rows()["crash"][:2]
    rows[1]["result"] = "unknown"
    (trial,) = crash_trials(rows)
    assert (trial["result"], trial["as_expected"]) == ("unknown", False)
    rows[0]["result"] = "anomaly"
    (trial,) = crash_trials(rows)
    assert trial["result"] == "anomaly"


def test_a_defect_that_no_trial_shows_is_not_as_expected() -> None:
    rows = [row for row in made_up_rows()["crash"] if row["expected"] == "anomaly"]
    assert [trial["as_expected"] for trial in crash_trials(rows)] == [True]
    for row in rows:
        row["result"] = "valid"
    assert [trial["as_expected"] for trial in crash_trials(rows)] == [False]


@pytest.mark.usefixtures("without_plots")
def test_the_readme_gets_its_table_between_the_markers_and_nothing_else(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{TABLE_BEGIN}\nold\n{TABLE_END}\nafter\n")
    write_report(run_of(tmp_path), tmp_path / "results", readme)
    head, table, tail = readme.read_text().partition(TABLE_BEGIN)[0], readme.read_text(), readme.read_text()[-6:]
    assert (head, tail) == ("before\n", "after\n")
    assert "old" not in table
    assert all(f"| {backend} |" in table for backend in SPEEDS)
    assert with_table("no markers", "table") == "no markers"


def test_what_is_written_has_the_time_of_one_fsync_and_names_neither_this_machine_nor_a_path(tmp_path: Path) -> None:
    import platform

    from harness.report.environment import environment

    run = new_run(tmp_path / "runs", "smoke", FACTS)
    write_facts(run, {**FACTS, "environment": environment(tmp_path)})
    write_report(run, tmp_path / "results")
    assert re.search(r"\| one fsync .*\| [\d.,]+ (us|ms|s) \|", (tmp_path / "results/machine.md").read_text())
    for file in (tmp_path / "results").iterdir():
        content = file.read_text()
        assert str(tmp_path) not in content
        assert f'"{platform.node()}"' not in content


def test_amplification_is_counted_per_get_and_per_byte_put(report: Path) -> None:
    page = (report.parent / "amplification.md").read_text()
    assert "| rocksdb-direct | CHANGELOG | 1,000 | 1.00 | 1.00 | 1.00 | 1.50 | 2.00 |" in page


def test_ycsb_has_a_line_per_backend_and_a_column_per_workload_and_is_in_no_other_table() -> None:
    plain = made_up_rows()["benchmark"][0]
    rows = [
        {**plain, "suite": f"ycsb-{letter}", "name": f"{letter} {backend}", "subject": backend, "records_per_s": speed}
        for letter, backend, speed in (("a", "first", 1000.0), ("f", "first", 2000.0), ("f", "second", 3000.0))
    ]
    figures = all_figures({"benchmark": [plain, *rows]})
    (table,) = ycsb_tables(figures)
    assert list(table.head) == ["backend", "A", "F"]
    assert [list(row) for row in table.rows] == [["first", "1,000", "2,000"], ["second", "-", "3,000"]]
    assert sum(len(table.rows) for table in BENCHMARKS.tables(figures)) == 1


@pytest.mark.usefixtures("without_plots")
def test_a_run_that_left_something_out_is_reported_beside_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(write, "README", tmp_path / "README.md")
    (tmp_path / "README.md").write_text(f"{TABLE_BEGIN}\n{TABLE_END}\n")
    run = run_of(tmp_path)
    assert publish(run).parent == run / "report"
    assert not (tmp_path / "results").exists()
    write_facts(run, {**FACTS, "whole": True})
    assert publish(run).parent == tmp_path / "results"
    assert "rocksdb-direct" in (tmp_path / "README.md").read_text()


def test_a_report_that_cannot_be_written_takes_no_page_of_the_earlier_one(tmp_path: Path, report: Path) -> None:
    results = tmp_path / "results"
    shutil.copytree(report.parent, results)
    before = {file.name for file in results.iterdir()}
    (results / "report.md").unlink()
    (results / "report.md").mkdir()
    with pytest.raises(ConfigError):
        write_report(run_of(tmp_path, {"crash"}), results)
    assert {file.name for file in results.iterdir()} == before


def test_a_table_says_from_how_few_to_how_many_repeats_its_lines_have() -> None:
    def caption(*repeats: int, intervals: bool = True) -> str:
        rows = [row for row in made_up_rows()["throughput"] if row["durability"] == "CHANGELOG"]
        names = sorted({str(row["backend"]) for row in rows})[: len(repeats)]
        chosen = [
            {**row, "repeat": repeat}
            for row in rows
            if row["backend"] in names and row["repeat"] == 0
            for repeat in range(repeats[names.index(row["backend"])])
        ]
        return summary_table(all_figures({"throughput": chosen}), ENVIRONMENT["backends"], intervals=intervals).caption

    assert caption(1, 1).endswith(", n = 1")
    assert caption(1, 4).endswith(", n = 1 to 4")
    assert caption(3, 5).endswith(", n = 3 to 5, with intervals of medians from 5 on")
    assert caption(5, 9).endswith(", n = 5 to 9, with intervals of medians")
    assert caption(5, 9, intervals=False).endswith(", n = 5 to 9, medians")
