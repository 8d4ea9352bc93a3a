"""Dot plots are sorted, have a scale per panel, and show which medians have intervals."""

from __future__ import annotations

from typing import Any

from harness.answer.results import all_figures
from harness.experiments.crash.plot import crash_chart
from harness.experiments.microbench.report import store_chart
from harness.experiments.opening.report import opening_chart
from harness.experiments.throughput.plot import commit_latency_chart, throughput_chart
from harness.report.dots import Dot, DotChart, Panel
from harness.report.drawing import Looks
from harness.tests.made_up_rows import SPEEDS, made_up_rows
from stores.registry import backends

LOOKS = Looks(SPEEDS)


def lines_of(axes: Any) -> list[str]:
    """The labels of a panel from its top to its bottom."""
    return [label.get_text() for label in axes.get_yticklabels()][::-1]


def panels_of(canvas: Any) -> dict[str, Any]:
    return {axes.get_title(loc="left"): axes for axes in canvas.axes if axes.get_title(loc="left")}


def test_every_panel_is_sorted_with_the_best_at_the_top_and_has_its_own_scale() -> None:
    panels = [
        Panel("fast", [Dot("a", "a", 100.0, 90.0, 110.0), Dot("b", "b", 300.0, 290.0, 310.0)]),
        Panel("slow", [Dot("a", "a", 3.0), Dot("b", "b", 2.0)]),
    ]
    for more_is_better, fast, slow in ((True, ["b", "a"], ["a", "b"]), (False, ["a", "b"], ["b", "a"])):
        drawn = panels_of(DotChart(panels, "x", "s", more_is_better=more_is_better).canvas(LOOKS))
        assert (lines_of(drawn["fast"]), lines_of(drawn["slow"])) == (fast, slow)
        assert drawn["fast"].get_xlim()[1] > 300 > 10 > drawn["slow"].get_xlim()[1]
    assert DotChart([Panel("empty", [])], "x", "s", more_is_better=True).canvas(LOOKS) is None


def test_a_median_without_an_interval_is_hollow_and_one_with_it_has_a_line() -> None:
    dots = [Dot("a", "a", 1.0, 0.5, 1.5), Dot("b", "b", 2.0)]
    (axes,) = panels_of(DotChart([Panel("one", dots)], "x", "s", more_is_better=True).canvas(LOOKS)).values()
    faces = {float(line.get_xdata()[0]): line.get_markerfacecolor() for line in axes.get_lines()}
    assert faces[2.0] == "white" != faces[1.0]
    (spread,) = axes.collections
    assert [point[0] for point in spread.get_segments()[0]] == [0.5, 1.5]


def test_a_level_with_one_size_of_a_commit_has_a_panel_as_every_other() -> None:
    figures = all_figures(made_up_rows())["throughput"]
    some = [each for each in figures if each["durability"] == "CHANGELOG" or each["records_per_commit"] == 1_000]
    drawn = panels_of(throughput_chart(some).canvas(LOOKS))
    assert [title.partition(" records")[0] for title in drawn] == [
        "CHANGELOG, 100",
        "CHANGELOG, 1,000",
        "CHANGELOG, 10,000",
        "DISK, 1,000",
    ]
    assert all(lines_of(axes)[0] == "memory-indexed-batch" for axes in drawn.values())


def test_the_median_and_the_99th_percentile_have_different_shapes() -> None:
    canvas: Any = commit_latency_chart(all_figures(made_up_rows())["throughput"]).canvas(LOOKS)
    first = next(iter(panels_of(canvas).values()))
    assert {line.get_marker() for line in first.get_lines()} == {"o", "D"}
    assert {"median", "99th percentile"} <= {text.get_text() for text in canvas.legends[0].get_texts()}


def test_a_store_without_checksums_has_a_line_of_its_own() -> None:
    row = next(row for row in made_up_rows()["benchmark"] if row["subject"] == "lmdb-indexed-batch")
    rows = [{**row, "name": "commit-lmdb"}, {**row, "name": "commit-lmdb-unchecked", "records_per_s": 1.0}]
    (axes,) = panels_of(store_chart(all_figures({"benchmark": rows})["benchmark"]).canvas(LOOKS)).values()
    assert lines_of(axes) == ["lmdb-indexed-batch", "lmdb-indexed-batch, no checksums"]


def test_openings_have_a_panel_for_each_number_of_records() -> None:
    drawn = panels_of(opening_chart(all_figures(made_up_rows())["opening"]).canvas(LOOKS))
    assert [title.split()[1] for title in drawn] == ["50,000", "500,000"]


def test_a_step_that_was_not_tried_differs_from_one_that_the_backend_does_not_have() -> None:
    rows = [row for row in made_up_rows()["crash"] if row["expected"] == "valid"]
    left_out = ("lmdb-indexed-batch", "indexed_batch.after_write")
    assert left_out[1] in backends()[left_out[0]].failpoints
    rows = [row for row in rows if (row["backend"], row["failpoint"]) != left_out]
    canvas: Any = crash_chart(all_figures({"crash": rows})["crash"]).canvas(LOOKS)
    (axes,) = canvas.axes
    names = [label.get_text() for label in axes.get_xticklabels() if label.get_text()]
    places = [label.get_text() for label in axes.get_yticklabels() if label.get_text()]
    cells = axes.get_images()[0].get_array()
    untried = cells[places.index(left_out[1])][names.index(left_out[0])]
    no_step = cells[places.index("direct.commit")][names.index("lmdb-indexed-batch")]
    assert untried != no_step
    assert canvas.legends[0].get_texts()[int(no_step)].get_text() == "the backend has no such step"
