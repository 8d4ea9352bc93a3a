"""The parts of the page for browsers, without a browser: HTML of Markdown, and one file of all parts."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode
from html import escape

import pytest

from harness.report.charts import Chart, Mark, Panel
from harness.report.markup import inline, to_html
from harness.report.web_page import PANELS_MAX, Section, assemble, chart_html


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
    table = to_html("| a | b |\n| --- | ---: |\n| x (y) | 5 ms (4 ms to 6 ms) |\n", (), "stores")
    assert '<td>x (y)<td>5 ms <span class="interval">(4 ms to 6 ms)</span>' in table
    assert table.startswith('<div class="scroll r2" id="stores-table-1">')


def test_a_long_table_is_lines_of_cells_in_which_equal_ones_are_said_once() -> None:
    lines = "".join(f"| <b>`x|` | {number} |\n".replace("x|", "x\\|") for number in range(25))
    table = to_html(f"| a | b |\n| --- | ---: |\n{lines}", (), "stores")
    head, first, second, *_ = table.splitlines()[1:]
    assert table.startswith('<pre class="scroll r2" id="stores-table-1">\n')
    assert (head, first, second) == ("a\tb", "&lt;b&gt;`x|`\t0", '"\t1')
    assert len(table.splitlines()) == 1 + 1 + 25


@pytest.mark.parametrize(
    ("cell", "rows", "element"), [("`x` **y**", 4, "<pre"), ("`x`", 3, "<div"), ("[x](throughput.md)", 4, "<div")]
)
def test_a_folded_table_is_lines_if_a_script_can_make_its_cells(cell: str, rows: int, element: str) -> None:
    table = to_html("| a |\n| --- |\n" + f"| {cell} |\n" * rows, (), is_folded=True)
    assert table.startswith(element)


def test_compressed_tables_are_one_text_in_the_data_with_a_column_in_each_line() -> None:
    lines = "".join(f"| name {number} | {number} |\n" for number in range(300))
    packed: list[str] = []
    tables = [to_html(f"| {head} | b |\n| --- | ---: |\n{lines}", (), head, packed=packed) for head in ("one", "two")]
    sections = [Section(name, name, table) for name, table in zip("xy", tables, strict=True)]
    page = assemble("title", "", "", sections, {}, packed)
    assert re.findall('data-packed="([^"]*)"', page) == ["0", "1"]
    data = json.loads(re.findall('id="data">(.*?)</script>', page)[0])
    texts = zlib.decompress(b64decode(data["tables"])).decode().split("\0")
    assert [text.split("\t")[0] for text in texts] == ["one", "two"]
    first, second = (line.split("\t") for line in texts[0].split("\n"))
    assert (len(first), first[-1], second[-1]) == (301, "name 299", "299")


def test_a_long_table_of_which_no_list_is_made_stays_in_the_html() -> None:
    table = to_html("| a |\n| --- |\n" + "".join(f"| name {number} |\n" for number in range(300)), ())
    assert table.startswith("<pre")
    assert len(table.splitlines()) == 1 + 1 + 300


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
    assert "<td>d<br>e" in html
    assert "</details>" in html


def test_data_and_scripts_cannot_end_their_elements() -> None:
    page = assemble("a < b", "", "", [Section("one", "One & only", "<p>x</p>")], {"said": "</script><!-- $title"})
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert data["said"] == "</script><!-- $title"
    assert page.count("<script") == page.count("</script>") == 2
    assert "<title>a &lt; b</title>" in page
    assert "One &amp; only" in page


def test_the_page_names_no_address_that_it_would_ask() -> None:
    page = assemble("t", "", "", [], {})
    assert re.findall(r"(?:src|href)=[\"'](?!#|data:)[^\"']*", page) == []
    assert "default-src 'none'" in page
    assert "unsafe-eval" not in page


def test_the_title_of_a_plot_is_text() -> None:
    assert "<h4>a &lt;b&gt;</h4>" in chart_html(Chart("name", "a <b>", "dots", [], "label", "unit"))


def test_a_chart_of_many_panels_has_the_first_on_the_page_and_says_how_many_more_there_are() -> None:
    panels = [Panel(f"panel {number}", [Mark("a", 1.0)]) for number in range(PANELS_MAX + 3)]
    html = chart_html(Chart("name", "title", "dots", panels, "label", "unit"))
    assert html.count("<figure") == PANELS_MAX
    assert "3 more of these are in the tables alone." in html
    assert "in the tables alone" not in chart_html(Chart("name", "title", "dots", panels[:PANELS_MAX], "label", "unit"))
