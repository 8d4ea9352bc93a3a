"""The parts of the page for browsers, without a browser: HTML of Markdown, and one file of all parts."""

from __future__ import annotations

import json
import re

import pytest

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
