"""Charts: dots are sorted, each panel has its own scale, and backends, intervals and shapes can be distinguished."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from harness.answer.results import all_figures
from harness.experiments.crash.report import crash_chart
from harness.experiments.microbench.experiment import REPORT as STORES
from harness.experiments.opening.report import REPORT as OPENINGS
from harness.experiments.throughput.report import charts
from harness.report.charts import BAR, LOOKS, OTHER, CellResult, Chart, Mark, Panel
from harness.report.drawing import SHAPE_STYLE, draw, key_of, mark_id, panel_svg
from harness.report.scales import scale_of, tick_text
from harness.tests.contrast import contrast
from harness.tests.made_up_rows import SPEEDS, made_up_rows
from stores.registry import backends

PAPER = {"light": "#ffffff", "dark": "#14171a"}


def panels_of(chart: Chart) -> dict[str, Panel]:
    """The panels of a chart that are drawn, by title."""
    return {panel.title: panel for panel in chart.filled(printed=True)}


def chart_of(panels: Sequence[Panel], *, more_is_better: bool = True) -> Chart:
    return Chart("name", "title", "dots", panels, "label", "s", more_is_better=more_is_better)


def test_every_backend_of_the_registry_has_a_colour_and_a_shape_of_its_own() -> None:
    assert set(LOOKS) == {name for name, each in backends().items() if each.strategy}
    for one, other in combinations([*LOOKS.values(), OTHER], 2):
        assert (one.light, one.shape) != (other.light, other.shape)
        assert (one.dark, one.shape) != (other.dark, other.shape)
        assert one.light != other.light


@pytest.mark.parametrize("paper", ["light", "dark"])
def test_marks_of_every_backend_can_be_seen_on_their_paper(paper: str) -> None:
    colours = [getattr(each, paper) for each in (*LOOKS.values(), OTHER)]
    assert [colour for colour in colours if contrast(colour, PAPER[paper]) < 3] == []


MACHADO = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
"""G. M. Machado and others, "A Physiologically-based Model for Simulation of Color Vision Deficiency", severity 1."""


@pytest.mark.parametrize("kind", MACHADO)
@pytest.mark.parametrize("paper", ["light", "dark"])
def test_backends_of_one_shape_differ_for_the_colour_blind(kind: str, paper: str) -> None:
    def seen(colour: str) -> list[float]:
        parts = [(part / 255) ** 2.2 for part in bytes.fromhex(colour.lstrip("#"))]
        return [
            255 * max(0.0, sum(a * b for a, b in zip(row, parts, strict=True))) ** (1 / 2.2) for row in MACHADO[kind]
        ]

    for one, other in combinations(LOOKS.values(), 2):
        if one.shape == other.shape:
            pair = zip(seen(getattr(one, paper)), seen(getattr(other, paper)), strict=True)
            assert sum((a - b) ** 2 for a, b in pair) ** 0.5 > 35, (one, other)


def test_every_panel_is_sorted_with_the_best_at_the_top_and_has_its_own_scale() -> None:
    panels = [
        Panel("fast", [Mark("a", 100.0, 90.0, 110.0), Mark("b", 3000.0, 2900.0, 3100.0)]),
        Panel("slow", [Mark("a", 3.0), Mark("b", 2.0)]),
    ]
    for more_is_better, fast, slow in ((True, ["b", "a"], ["a", "b"]), (False, ["a", "b"], ["b", "a"])):
        chart = chart_of(panels, more_is_better=more_is_better)
        drawn = panels_of(chart)
        assert (drawn["fast"].subjects, drawn["slow"].subjects) == (fast, slow)
        assert {title: chart.is_log(panel) for title, panel in drawn.items()} == {"fast": True, "slow": False}
        assert ", log scale" in panel_svg(chart, drawn["fast"])
        assert ", log scale" not in panel_svg(chart, drawn["slow"])
    assert chart_of([Panel("empty", [])]).filled() == []


def test_a_panel_that_is_not_printed_is_on_the_page_alone(tmp_path: Path) -> None:
    chart = chart_of([Panel("one", [Mark("a", 1.0)], printed=False)])
    assert draw([chart], tmp_path) == []
    assert [panel.title for panel in chart.filled()] == ["one"]


def test_a_median_without_an_interval_is_hollow_and_one_with_it_has_a_line() -> None:
    chart = chart_of([Panel("one", [Mark("a", 1.0, 0.5, 1.5), Mark("b", 2.0, hollow=True)])])
    rows = dict(re.findall(r'<g class="row [^"]*" data-b="(\w)".*?>(.*?)</g>', panel_svg(chart, *chart.filled())))
    assert 'class="i"' in rows["a"]
    assert 'class="m"' in rows["a"]
    assert 'class="i"' not in rows["b"]
    assert 'class="m h"' in rows["b"]
    assert {entry.words for entry in key_of(chart)} == {chart.spread, chart.hollow}


def test_the_values_of_a_row_are_beside_its_marks_and_never_below_them() -> None:
    several = [Mark("a", 0.0769, measure="median"), Mark("a", 0.231, measure="p99", shape=BAR)]
    assert ".v{text-anchor:end;transform:translate(360px,4px)}" in SHAPE_STYLE
    for marks in (several, several[1:], [Mark("a", 123_456_000.0)]):
        chart = chart_of([Panel("one", marks)])
        svg = panel_svg(chart, *chart.filled())
        [values] = re.findall(r'<text class="v">([^<]*)<', svg)
        last = max(int(x) for x in re.findall(r'<use [^>]*x="(\d+)"', svg))
        assert last + 5 < 360 - 6.2 * len(values), values


def test_what_was_not_measured_in_a_panel_has_a_row_that_says_so() -> None:
    both = Panel("both", [Mark("a", 1.0), Mark("b", 2.0)], "DISK", "count")
    one = Panel("one", [Mark("a", 1.0)], "DISK", "count")
    elsewhere = [Panel("level", [Mark("a", 1.0)], "PROCESS", "count"), Panel("work", [Mark("a", 1.0)], "DISK", "other")]
    drawn = panels_of(chart_of([both, one, *elsewhere]))
    assert {title: panel.absent for title, panel in drawn.items()} == {
        "both": [], "one": ["b"], "level": [], "work": [],
    }  # fmt: skip
    svg = {title: panel_svg(chart_of([]), panel) for title, panel in drawn.items()}
    assert [title for title, each in svg.items() if "not measured" in each] == ["one"]


def test_no_two_numbers_of_an_axis_cover_each_other_also_beside_long_names() -> None:
    for value in (1.9, 554_000.0, 231_000.0):
        panel = Panel("title", [Mark("lmdb-indexed-batch, without checksums", value)])
        svg = panel_svg(chart_of([panel]), panel)
        numbers = [
            (int(x), len(words)) for x, words in re.findall(r'<text class="s c" x="(\d+)" y="[\d.]+">([^<]+)<', svg)
        ]
        assert len(numbers) >= 2
        for (x, length), (next_x, next_length) in pairwise(numbers):
            assert x + 3.1 * length < next_x - 3.1 * next_length


def test_a_file_is_xml_without_anything_that_it_would_fetch(tmp_path: Path) -> None:
    figures = all_figures(made_up_rows())
    drawn = [*charts(figures), crash_chart(figures["crash"]), OPENINGS.plots[0].drawn(figures)]
    names = draw(drawn, tmp_path)
    assert names == ["throughput.svg", "commit-latency.svg", "crash-matrix.svg", "opening.svg"]
    for name in names:
        root = ElementTree.parse(tmp_path / name).getroot()
        links = [link for each in root.iter() for link in (each.get("href"),) if link is not None]
        assert {link[0] for link in links} <= {"#"}
        assert "var(" not in (tmp_path / name).read_text()


@pytest.mark.parametrize(
    ("low", "high", "log", "ticks"),
    [
        (0.0, 100.0, False, [0, 50, 100]),
        (3.0, 61_000.0, False, [0, 20_000, 40_000, 60_000]),
        (1.0, 9.0, True, [1, 2, 5]),
        (20.0, 3_000.0, True, [30, 100, 300, 1_000, 3_000]),
        (1e-6, 1e6, True, [1e-6, 1e-3, 1.0, 1e3, 1e6]),
    ],
)
def test_ticks_are_few_and_round(low: float, high: float, log: bool, ticks: list[float]) -> None:
    scale = scale_of([low, high], 0, 100, log=log)
    assert scale.ticks() == pytest.approx(ticks)
    assert all(0 <= scale.at(each) <= 100 for each in (low, high, *ticks))


def test_a_scale_of_one_value_has_room_around_it() -> None:
    assert 0 < scale_of([5.0], 0, 100, log=True).at(5.0) < 100
    assert scale_of([0.0], 0, 100, log=False).at(0.0) == 0


def test_labels_of_ticks_are_short() -> None:
    assert [tick_text(each) for each in (0.05, 1_000, 20_000, 3e6)] == ["0.05", "1,000", "20 k", "3 M"]


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize("kind", ["dots", "lines", "history"])
@pytest.mark.parametrize("odd", [{"value": NAN}, {"value": INFINITY}, {"low": -INFINITY, "high": 2.0}])
def test_a_number_that_has_no_place_on_a_scale_is_left_out_of_a_plot(
    tmp_path: Path, odd: dict[str, Any], kind: str
) -> None:
    marks = [Mark("a", 1.0, step="1|x"), replace(Mark("b", 2.0, step="1|x"), **odd)]
    chart = Chart("name", "title", kind, [Panel("one", marks), Panel("odd", marks[1:])], "label", "unit")
    [panel] = chart.filled()
    assert [mark.backend for mark in panel.marks] == ["a"]
    assert draw([chart], tmp_path) == ["name.svg"]
    assert "nan" not in (tmp_path / "name.svg").read_text()
    only_odd = replace(chart, panels=[Panel("odd", marks[1:])])
    assert only_odd.filled() == []
    assert draw([only_odd], tmp_path) == []


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
    assert all(panel.subjects[0] == "memory-indexed-batch" for panel in drawn.values())


def test_the_median_has_the_shape_of_its_backend_and_the_99th_percentile_is_a_bar() -> None:
    chart = charts(all_figures(made_up_rows()))[1]
    svg = panel_svg(chart, chart.filled()[0])
    assert svg.count(f'href="#{mark_id(BAR)}"') == len(SPEEDS)
    for shape in {LOOKS[name].shape for name in SPEEDS}:
        assert f'href="#{mark_id(shape)}"' in svg
    assert [entry.words for entry in key_of(chart)][:2] == ["median", "99th percentile"]


def test_a_store_without_checksums_has_a_line_of_its_own() -> None:
    row = next(row for row in made_up_rows()["benchmark"] if row["subject"] == "lmdb-indexed-batch")
    rows = [{**row, "name": "commit-lmdb"}, {**row, "name": "commit-lmdb-unchecked", "records_per_s": 1.0}]
    (panel,) = panels_of(STORES.plots[0].drawn(all_figures({"benchmark": rows}))).values()
    assert panel.subjects == ["lmdb-indexed-batch", "lmdb-indexed-batch, no checksums"]


def test_openings_have_a_panel_for_each_number_of_records() -> None:
    drawn = panels_of(OPENINGS.plots[0].drawn(all_figures(made_up_rows())))
    assert [title.split()[1] for title in drawn] == ["50,000", "500,000"]


def test_a_step_that_was_not_tried_differs_from_one_that_the_backend_does_not_have() -> None:
    rows = [row for row in made_up_rows()["crash"] if row["expected"] == "valid"]
    left_out = ("lmdb-indexed-batch", "indexed_batch.after_write")
    assert left_out[1] in backends()[left_out[0]].failpoints
    rows = [row for row in rows if (row["backend"], row["failpoint"]) != left_out]
    chart = crash_chart(all_figures({"crash": rows})["crash"])
    (panel,) = chart.filled()
    results = {(mark.backend, mark.subject): list(CellResult)[mark.rank or 0] for mark in panel.marks}
    assert results[left_out] == CellResult.NOT_TRIED
    assert results["lmdb-indexed-batch", "direct.commit"] == CellResult.NO_STEP
    assert [entry.words for entry in key_of(chart)] == list(CellResult)[1:]


def test_steps_whose_names_begin_alike_are_beside_each_other_under_one_name() -> None:
    rows = made_up_rows()["crash"]
    rows += [{**rows[0], "failpoint": "", "fault": "closed cleanly"}, {**rows[0], "failpoint": "create.aaa"}]
    chart = crash_chart(all_figures({"crash": rows})["crash"])
    svg = panel_svg(chart, chart.filled()[0])
    names = re.findall(r"rotate\(-40\)\">([^<]*)<", svg)
    assert names == ["create", "direct", "indexed_batch", "task", "others"]


def test_the_crash_matrix_has_a_panel_for_each_level() -> None:
    rows = [{**row, "durability": level} for row in made_up_rows()["crash"] for level in ("DISK", "CHANGELOG")]
    chart = crash_chart(all_figures({"crash": rows})["crash"])
    assert [panel.level for panel in chart.filled()] == ["CHANGELOG", "DISK"]
    svg = panel_svg(chart, chart.filled()[1])
    assert "memory-indexed-batch" in svg
    assert json.dumps("1/2")[1:-1] in svg
