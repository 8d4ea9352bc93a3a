"""The parts of the page for browsers, without a browser: HTML of Markdown, and one file of all parts."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from html import escape
from typing import Any

import pytest

from harness.answer.browser_page import _place
from harness.report.dots import Dot, DotChart, Panel
from harness.report.drawing import Looks, Plot
from harness.report.lines import Line, LineChart, LinePanel
from harness.report.timeline import Point, Timeline, TimelinePanel
from harness.report.web.assemble import Section, assemble
from harness.report.web.library import charts
from harness.report.web.markdown import inline, to_html


@pytest.mark.parametrize(
    ("link", "leads_to"),
    [
        ("crashes.md", "#crashes"),
        ("io-faults.md#mutants", "#io-faults-mutants"),
        ("report.md#ratios", "#ratios"),
        ("report.md", "#top"),
        ("#here", "#crashes-here"),
        ("../docs/harness.md", "../docs/harness.md"),
        ("https://example.org/crashes.md", "https://example.org/crashes.md"),
    ],
)
def test_links_to_pages_of_the_report_stay_within_the_page(link: str, leads_to: str) -> None:
    html = to_html(f"[text]({link})", ["crashes", "io-faults"], "crashes")
    assert html == f'<p><a href="{leads_to}">text</a></p>\n'


def test_titles_are_deeper_and_can_be_linked_to() -> None:
    assert to_html("## The limit, and `put`", (), "memory", deeper=2) == (
        '<h4 id="memory-the-limit-and-put">The limit, and <code>put</code></h4>\n'
    )


def test_numbers_are_at_the_right_and_intervals_stand_apart() -> None:
    table = to_html("| a | b |\n| --- | ---: |\n| x (y) | 5 ms (4 ms to 6 ms) |\n", ())
    assert '<td>x (y)</td>\n<td class="r">5 ms <span class="interval">(4 ms to 6 ms)</span></td>' in table
    assert table.startswith('<div class="scroll">')


def test_a_line_of_markdown_has_no_paragraph() -> None:
    assert inline("**a** < `b`") == "<strong>a</strong> &lt; <code>b</code>"


@pytest.mark.parametrize(
    "hostile",
    [
        "<script>stop()</script>",
        "<img src=x onerror=stop()>",
        "<function serve at 0x7f>",
        "<br onclick=stop()>",
        "<details ontoggle=stop()>",
        "<!-- gone -->",
        "<BR/onclick=stop()>",
    ],
)
@pytest.mark.parametrize("place", ["{}", "a {} b", "| a |\n| --- |\n| {} |\n", "* {}", "<details>\n{}\n", "<br>{}<br>"])
def test_html_that_a_report_does_not_write_is_shown_as_text(hostile: str, place: str) -> None:
    html = to_html(place.format(hostile), ())
    assert escape(hostile, quote=False) in html.replace("&quot;", '"')
    assert hostile not in html


def test_html_that_a_report_writes_is_kept() -> None:
    fold = "<details>\n<summary>a &lt; <code>b</code></summary>\n\n| c |\n| --- |\n| d<br>e |\n\n</details>\n"
    html = to_html(fold, ())
    assert "<details>\n<summary>a &lt; <code>b</code></summary>" in html
    assert "<td>d<br>e</td>" in html
    assert "</details>" in html


def test_data_and_scripts_cannot_end_their_elements() -> None:
    page = assemble("a < b", "", [Section("one", "One & only", "<p>x</p>")], {"said": "</script><!-- $title"})
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert data["said"] == "</script><!-- $title"
    assert data["charts"] == charts()
    assert page.count("<script") == page.count("</script>") == 3
    assert "<title>a &lt; b</title>" in page
    assert "One &amp; only" in page


def test_the_page_names_no_address_that_it_would_ask() -> None:
    page = assemble("t", "", [], {})
    own = page.replace(max(re.findall(r"<script>.*?</script>", page, re.DOTALL), key=len), "")
    assert re.findall(r"(?:src|href)=[\"'](?!#|data:)[^\"']*", own) == []
    assert "default-src 'none'" in own


def test_the_title_of_a_plot_is_text() -> None:
    chart = DotChart([], "label", "unit", more_is_better=True)
    assert "<h4>a &lt;b&gt;</h4>" in _place(Plot("name", "a <b>", chart))


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize("odd", [{"value": NAN}, {"value": INFINITY}, {"low": -INFINITY, "high": 2.0}])
def test_a_number_that_has_no_place_on_a_scale_is_left_out_of_a_plot(odd: dict[str, Any]) -> None:
    dots = [Dot("a", "a", 1.0), replace(Dot("b", "b", 2.0), **odd)]
    points = [Point("1|x", "a", 1.0, None, None), replace(Point("1|x", "b", 2.0, None, None), **odd)]
    lines = [Line("a", [1.0, 2.0]), Line("b", [1.0, odd.get("value", NAN)])]
    charts = (
        DotChart([Panel("one", dots), Panel("odd", dots[1:])], "label", "unit", more_is_better=True),
        Timeline([TimelinePanel("one", points), TimelinePanel("odd", points[1:])], "label", "unit"),
        LineChart([LinePanel("one", lines), LinePanel("odd", lines[1:])], ["p50", "p99"], "l", "u", "units"),
    )
    for chart in charts:
        data = chart.data()
        assert data is not None
        json.dumps(data, allow_nan=False)
        [panel] = data["panels"]
        [drawn] = panel.get("dots") or panel.get("points") or panel["lines"]
        assert drawn["backend"] == "a"
        canvas = chart.canvas(Looks(["a", "b"]))
        if canvas is not None:
            canvas.savefig(io.BytesIO(), format="svg")
    assert DotChart([Panel("odd", dots[1:])], "label", "unit", more_is_better=True).data() is None
    assert Timeline([TimelinePanel("odd", points[1:])], "label", "unit").data() is None
    assert LineChart([LinePanel("odd", lines[1:])], ["p50", "p99"], "l", "u", "units").canvas(Looks(["b"])) is None
