"""The parts of the page for browsers, without a browser: HTML of Markdown, and one file of all parts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import pytest

from harness.answer.browser_page import Section, _place, assemble, inline, to_html
from harness.report.charts import Chart, Mark, Panel, draw, specifications


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
    assert data["charts"] == specifications()
    assert page.count("<script") == page.count("</script>") == 3
    assert "<title>a &lt; b</title>" in page
    assert "One &amp; only" in page


def test_the_page_names_no_address_that_it_would_ask() -> None:
    page = assemble("t", "", [], {})
    own = page.replace(max(re.findall(r"<script>.*?</script>", page, re.DOTALL), key=len), "")
    assert re.findall(r"(?:src|href)=[\"'](?!#|data:)[^\"']*", own) == []
    assert "default-src 'none'" in own


def test_the_title_of_a_plot_is_text() -> None:
    assert "<h4>a &lt;b&gt;</h4>" in _place(Chart("name", "a <b>", "dots", [], "label", "unit"))


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize("kind", ["dots", "lines", "history"])
@pytest.mark.parametrize("odd", [{"value": NAN}, {"value": INFINITY}, {"low": -INFINITY, "high": 2.0}])
def test_a_number_that_has_no_place_on_a_scale_is_left_out_of_a_plot(
    tmp_path: Path, odd: dict[str, Any], kind: str
) -> None:
    marks = [Mark("a", 1.0, step="1|x"), replace(Mark("b", 2.0, step="1|x"), **odd)]
    chart = Chart("name", "title", kind, [Panel("one", marks), Panel("odd", marks[1:])], "label", "unit")
    data = chart.data(["a", "b"])
    assert data is not None
    json.dumps(data, allow_nan=False)
    [panel] = data["panels"]
    [drawn] = panel["values"]
    assert drawn["backend"] == "a"
    assert draw([chart], ["a", "b"], tmp_path) == ["name.svg"]
    only_odd = replace(chart, panels=[Panel("odd", marks[1:])])
    assert only_odd.data(["b"]) is None
    assert draw([only_odd], ["b"], tmp_path) == []
