"""Charts on paper: dots are sorted, each panel has its own scale, and intervals and shapes can be distinguished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.answer.results import all_figures
from harness.experiments.crash.report import crash_chart
from harness.experiments.microbench.experiment import REPORT as STORES
from harness.experiments.opening.report import REPORT as OPENINGS
from harness.experiments.throughput.report import charts
from harness.report.charts import CellResult, Chart, Mark, Panel, printed_chart
from harness.tests.made_up_rows import SPEEDS, made_up_rows
from stores.registry import backends


def panels_of(chart: Chart) -> dict[str, Any]:
    """The panels of a printed chart, by title."""
    specification = printed_chart(chart, SPEEDS)
    assert specification is not None
    return {panel["title"]: panel for panel in specification["vconcat"][0]["concat"]}


def lines_of(panel: Mapping[str, Any]) -> list[str]:
    """The subjects of a panel from its top to its bottom."""
    return list(dict.fromkeys(value["subject"] for value in panel["data"]["values"]))


def chart_of(panels: Sequence[Panel], *, more_is_better: bool = True) -> Chart:
    return Chart("name", "title", "dots", panels, "label", "s", more_is_better=more_is_better)


def test_every_panel_is_sorted_with_the_best_at_the_top_and_has_its_own_scale() -> None:
    panels = [
        Panel("fast", [Mark("a", 100.0, 90.0, 110.0), Mark("b", 3000.0, 2900.0, 3100.0)]),
        Panel("slow", [Mark("a", 3.0), Mark("b", 2.0)]),
    ]
    for more_is_better, fast, slow in ((True, ["b", "a"], ["a", "b"]), (False, ["a", "b"], ["b", "a"])):
        drawn = panels_of(chart_of(panels, more_is_better=more_is_better))
        assert (lines_of(drawn["fast"]), lines_of(drawn["slow"])) == (fast, slow)
        scales = {title: panel["layer"][0]["encoding"]["x"]["scale"]["type"] for title, panel in drawn.items()}
        assert scales == {"fast": "log", "slow": "linear"}
    assert printed_chart(chart_of([Panel("empty", [])]), SPEEDS) is None


def test_a_panel_that_is_not_printed_is_on_the_page_alone() -> None:
    chart = chart_of([Panel("one", [Mark("a", 1.0)], printed=False)])
    assert printed_chart(chart, SPEEDS) is None
    data = chart.data(SPEEDS)
    assert data is not None
    assert [panel["title"] for panel in data["panels"]] == ["one"]


def test_a_median_without_an_interval_is_hollow_and_one_with_it_has_a_line() -> None:
    (panel,) = panels_of(chart_of([Panel("one", [Mark("a", 1.0, 0.5, 1.5), Mark("b", 2.0, hollow=True)])])).values()
    measured, hollow = sorted(panel["data"]["values"], key=lambda value: str(value["subject"]))
    assert (measured["low"], measured["high"]) == (0.5, 1.5)
    assert hollow["low"] == hollow["high"] == 2.0
    assert hollow["fill"] == "#ffffff" != measured["fill"] == measured["colour"]


def test_backends_have_colours_and_shapes_of_their_own() -> None:
    panel = Panel("one", [Mark(backend, 1.0, step="50") for backend in SPEEDS])
    data = Chart("name", "title", "lines", [panel], "label", "s").data(SPEEDS)
    assert data is not None
    assert len({item["shape"] for item in data["key"]}) == len(SPEEDS)
    (drawn,) = panels_of(chart_of([panel])).values()
    assert len({value["colour"] for value in drawn["data"]["values"]}) == len(SPEEDS)


def test_a_level_with_one_size_of_a_commit_has_a_panel_as_every_other() -> None:
    figures = all_figures(made_up_rows())["throughput"]
    some = [each for each in figures if each["durability"] == "CHANGELOG" or each["records_per_commit"] == 1_000]
    drawn = panels_of(charts({"throughput": some})[0])
    assert [title.partition(" records")[0] for title in drawn] == [
        "CHANGELOG, 100",
        "CHANGELOG, 1,000",
        "CHANGELOG, 10,000",
        "DISK, 1,000",
    ]
    assert all(lines_of(panel)[0] == "memory-indexed-batch" for panel in drawn.values())


def test_the_median_and_the_99th_percentile_have_different_shapes() -> None:
    data = charts(all_figures(made_up_rows()))[1].data(SPEEDS)
    assert data is not None
    assert {value["shape"] for value in data["panels"][0]["values"]} == {"circle", "diamond"}
    assert {"circle": "median", "diamond": "99th percentile"}.items() <= {
        item["shape"]: item["text"] for item in data["key"]
    }.items()


def test_a_store_without_checksums_has_a_line_of_its_own() -> None:
    row = next(row for row in made_up_rows()["benchmark"] if row["subject"] == "lmdb-indexed-batch")
    rows = [{**row, "name": "commit-lmdb"}, {**row, "name": "commit-lmdb-unchecked", "records_per_s": 1.0}]
    (panel,) = panels_of(STORES.plots[0].drawn(all_figures({"benchmark": rows}))).values()
    assert lines_of(panel) == ["lmdb-indexed-batch", "lmdb-indexed-batch, no checksums"]


def test_openings_have_a_panel_for_each_number_of_records() -> None:
    drawn = panels_of(OPENINGS.plots[0].drawn(all_figures(made_up_rows())))
    assert [title.split()[1] for title in drawn] == ["50,000", "500,000"]


def test_a_step_that_was_not_tried_differs_from_one_that_the_backend_does_not_have() -> None:
    rows = [row for row in made_up_rows()["crash"] if row["expected"] == "valid"]
    left_out = ("lmdb-indexed-batch", "indexed_batch.after_write")
    assert left_out[1] in backends()[left_out[0]].failpoints
    rows = [row for row in rows if (row["backend"], row["failpoint"]) != left_out]
    (panel,) = panels_of(crash_chart(all_figures({"crash": rows})["crash"])).values()
    results = {
        (value["backend"], value["subject"]): list(CellResult)[value["rank"]] for value in panel["data"]["values"]
    }
    assert results[left_out] == CellResult.NOT_TRIED
    assert results["lmdb-indexed-batch", "direct.commit"] == CellResult.NO_STEP
