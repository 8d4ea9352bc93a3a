"""The page for browsers in a real one: plots, filters, tables, colours, keyboard, a telephone's width, no network."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from harness.answer.browser_page import browser_page
from harness.answer.history import with_run
from harness.answer.results import all_figures, all_pages
from harness.folders import ROOT
from harness.tests.headless_browser import Browser, missing, running_browser
from harness.tests.made_up_rows import ENVIRONMENT, FACTS, SPEEDS, made_up_rows

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
PICTURES = ROOT / "build" / "screenshots"
PLOTS = {"crash-matrix", "throughput", "commit-latency", "task-memory", "task-disk", "store-throughput"}
PLOTS |= {"large-step-memory"}
PLOTS |= {"put-and-commit-latency", "opening", "history-records-per-s", "history-ready-s", "history-commit-p99-us"}
PLOTS |= {"history-peak-memory-bytes", "history-bytes-on-disk", "scale"}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of three whole runs."""
    rows = made_up_rows()
    rows["throughput"] = [row for row in rows["throughput"] if row["records_per_commit"] < 10_000]
    figures = all_figures(rows)
    facts = {name: value for name, value in FACTS.items() if name != "environment"} | {"whole": True}
    history = with_run([], figures, facts, ENVIRONMENT)
    for day, commit in ((2, "a" * 40), (3, "b" * 40 + "+")):
        history = with_run(history, figures, facts | {"started": f"2026-01-0{day}", "commit": commit}, ENVIRONMENT)
    file = tmp_path_factory.mktemp("page") / "index.html"
    file.write_text(browser_page(figures, all_pages(figures, rows, facts), facts, ENVIRONMENT, history))
    return file


@pytest.fixture(scope="module")
def started() -> Iterator[Browser]:
    """One browser for all tests of this file."""
    with running_browser() as browser:
        yield browser


@pytest.fixture
def browser(started: Browser, page: Path) -> Browser:
    """The browser with the page, as it is at first."""
    started.prefer("light")
    started.open(page.as_uri())
    started.run("localStorage.clear()")
    return started


def test_every_plot_is_drawn_with_all_its_values_and_without_a_word_in_the_console(browser: Browser) -> None:
    assert browser.console() == []
    assert {name.removeprefix("plot-") for name in browser.run(
        "return [...document.querySelectorAll('.plot > div')].map((each) => each.id)"
    )} == PLOTS  # fmt: skip
    drawn = browser.run(
        """return page.plots.filter((plot) => plot.kind != "matrix").flatMap((plot) => plot.panels
            .filter((panel) => !panel.figure.hidden).map((panel) => [plot.name, panel.values.length,
                panel.chart.querySelectorAll(".mark-symbol path").length,
                panel.chart.getBoundingClientRect().height]))"""
    )
    assert {name for name, *_ in drawn} == PLOTS - {"crash-matrix"}
    assert [each for each in drawn if each[1] != each[2] or each[1] == 0 or each[3] < 20] == []
    assert len(browser.all("#plot-crash-matrix .mark-rect path")) == 5 * len(SPEEDS)
    cells = [text for text in matrix_texts(browser) if re.fullmatch(r"\d+/\d+", text)]
    assert "1/2" in cells
    assert len(cells) == len(SPEEDS) * 5 - 5 - 2


def matrix_texts(browser: Browser) -> list[str]:
    """The words and numbers of the crash matrix."""
    texts = "[...document.querySelectorAll('#plot-crash-matrix .chart svg text')]"
    found: list[str] = browser.run(f"return {texts}.map((each) => each.textContent)")
    return found


def test_nothing_is_asked_for_but_the_page_from_a_file_and_from_a_server(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    asked_for = {address for address in browser.requests() if not address.startswith(("data:", "about:"))}
    assert asked_for == {page.as_uri()}

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(page.parent))  # type: ignore[arg-type]

        def log_message(self, format: str, *arguments: object) -> None:
            asked.append(self.path)

    asked: list[str] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            browser.open(f"http://127.0.0.1:{server.server_port}/")
            assert browser.console() == []
        finally:
            server.shutdown()
            thread.join()
    assert asked == ["/"]
    assert len({address for address in browser.requests() if not address.startswith(("data:", "about:"))}) == 1


def test_every_link_within_the_page_leads_to_a_part_of_it_and_opens_it(browser: Browser) -> None:
    broken = browser.run(
        """return [...document.querySelectorAll('a[href^="#"]')].map((each) => each.getAttribute("href").slice(1))
            .filter((name) => !document.getElementById(name))"""
    )
    assert broken == []
    assert browser.run("return document.getElementById('crashes').open") is False
    browser.click('#proven a[href="#crashes"]')
    assert browser.run(
        "return new Promise((done) => setTimeout(() => done(document.getElementById('crashes').open), 50))"
    )


def shown_panels(browser: Browser, plot: str) -> list[str]:
    return browser.texts(f"#plot-{plot} figcaption")


def test_filters_change_what_every_plot_shows(browser: Browser) -> None:
    everything = shown_panels(browser, "throughput")
    assert {title.split(",")[0] for title in everything} == {"CHANGELOG", "DISK"}
    browser.click("input[name=levels][value=DISK]")
    assert shown_panels(browser, "throughput") == [title for title in everything if title.startswith("CHANGELOG")]
    assert all(title.startswith("CHANGELOG") for title in browser.texts("figcaption") if "records per commit" in title)
    browser.choose("size", "100")
    assert [title for title in shown_panels(browser, "throughput") if "100 records per commit" not in title] == []
    browser.click("input[name=backends][value=lmdb-indexed-batch]")
    named = browser.run("return [...document.querySelectorAll('.chart svg text')].map((each) => each.textContent)")
    assert "rocksdb-direct" in named
    assert "lmdb-indexed-batch" not in named
    assert "rocksdb-direct" in matrix_texts(browser)
    assert "lmdb-indexed-batch" not in matrix_texts(browser)
    assert re.match(r"\d+ of \d+ panels", browser.texts("#shown")[0])
    browser.click("#filters button[type=reset]")
    assert shown_panels(browser, "throughput") == everything


def test_a_workload_has_its_own_panels(browser: Browser) -> None:
    browser.run(
        """const plot = page.plots.find((each) => each.name === "throughput");
        plot.panels.forEach((panel) => { panel.workload = "other"; });
        filters.onChange(() => {})"""
    )
    browser.choose("workload", "count")
    assert shown_panels(browser, "throughput") == []
    assert shown_panels(browser, "task-memory")
    browser.choose("workload", "")
    assert shown_panels(browser, "throughput")


def test_the_scale_is_linear_or_logarithmic_as_chosen(browser: Browser) -> None:
    def places() -> list[float]:
        found: list[float] = browser.run(
            """return [...document.querySelector("#plot-throughput .panel").querySelectorAll(".mark-symbol path")]
                .map((each) => each.getBoundingClientRect().x)"""
        )
        return found

    drawn = {}
    for scale in ("linear", "log"):
        browser.choose("scale", scale)
        drawn[scale] = places()
        panels = "[...document.querySelectorAll('#plot-throughput .panel:not([hidden])')]"
        assert set(browser.run(f"return {panels}.map((each) => each.dataset.scale)")) == {scale}
    assert drawn["linear"] != drawn["log"]


def test_tables_sort_by_quantity_in_both_directions_and_with_the_keyboard(browser: Browser) -> None:
    table = "#side-by-side .scroll:first-of-type"
    browser.run(f"document.querySelector('{table} th:nth-child(3) button').focus()")
    browser.press(Keys.ENTER)
    rising = [float(cell.split("(")[0].replace(",", "")) for cell in browser.texts(f"{table} td:nth-child(3)")]
    browser.press(Keys.SPACE)
    falling = [float(cell.split("(")[0].replace(",", "")) for cell in browser.texts(f"{table} td:nth-child(3)")]
    assert (rising, falling) == (sorted(rising), sorted(rising, reverse=True))
    assert len(set(rising)) > 2
    assert browser.all(f"{table} th:nth-child(3)")[0].get_attribute("aria-sort") == "descending"
    quantities = browser.run("return ['5 us', '4.5 ms', '1,000 MiB', '2 GiB', '2.5'].map(tables.quantity)")
    assert quantities == pytest.approx([5e-6, 4.5e-3, 1000 * 2**20, 2 * 2**30, 2.5])


def test_figures_of_a_plot_are_a_table_too(browser: Browser) -> None:
    browser.click("#plot-throughput details.figures summary")
    browser.run("return new Promise((done) => setTimeout(done, 50))")
    lines = browser.texts("#plot-throughput .figures tbody tr")
    assert len(lines) == len(browser.all("#plot-throughput .panel:not([hidden]) .mark-symbol path"))


def test_the_page_is_as_wide_as_a_telephone(browser: Browser) -> None:
    browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    browser.size(360, 740)
    browser.choose("scale", "linear")
    width, widest = browser.run("return [innerWidth, document.documentElement.scrollWidth]")
    assert (width, widest) == (360, 360)
    outside = browser.run(
        """return [...document.querySelectorAll("body *")].filter((each) => each.checkVisibility()
            && !each.closest(".scroll, pre, .skip, #tip") && each.getBoundingClientRect().right > 361)
            .map((each) => each.outerHTML.slice(0, 200))"""
    )
    assert outside == []
    browser.run("document.querySelectorAll('.pages details').forEach((each) => { each.open = false; })")
    browser.picture(PICTURES / "phone.png")


def test_light_and_dark_follow_the_system_until_one_is_chosen_and_can_be_read(browser: Browser) -> None:
    paper = {}
    for scheme in ("dark", "light"):
        browser.prefer(scheme)
        browser.wait()
        paper[scheme] = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert len(set(paper.values())) == 2
    for chosen in ("dark", "light"):
        browser.choose("theme", chosen)
        browser.prefer("light" if chosen == "dark" else "dark")
        browser.wait()
        assert browser.run("return getComputedStyle(document.body).backgroundColor") == paper[chosen]
        named = browser.run("return ['--paper', '--ink', '--soft', '--link', '--good', '--bad'].map(theme.value)")
        assert [colour for colour in named[1:] if contrast(colour, named[0]) < 4.5] == []
        marks = browser.run("return [...page.backends, 'another'].map(theme.colour)")
        assert [colour for colour in marks if contrast(colour, named[0]) < 3] == []
        label = browser.run("return document.querySelector('.chart svg text').getAttribute('fill')")
        assert contrast(label, named[0]) >= 4.5
        browser.picture(PICTURES / f"{chosen}.png")


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2.2, "relative luminance", of two colours as ``#rgb`` or ``#rrggbb``."""

    def luminance(colour: str) -> float:
        digits = colour.lstrip("#")
        parts = [int(digits[at] * 2, 16) for at in range(3)] if len(digits) == 3 else list(bytes.fromhex(digits))
        linear = [part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_all_can_be_done_with_the_keyboard_and_the_focus_is_seen(browser: Browser) -> None:
    browser.press(Keys.TAB)
    assert browser.run("return document.activeElement.className") == "skip"
    assert browser.run("return document.activeElement.getBoundingClientRect().x") >= 0
    browser.run("document.querySelector('input[name=levels][value=DISK]').focus()")
    browser.press(Keys.SPACE)
    browser.wait()
    assert not any(title.startswith("DISK") for title in shown_panels(browser, "throughput"))
    browser.run("document.querySelector('#plot-throughput .chart').focus()")
    assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.press(Keys.ARROW_DOWN)
    first = browser.texts("#tip")
    browser.press(Keys.ARROW_DOWN)
    second = browser.texts("#tip")
    assert first != second
    assert "records/s" in first[0]
    browser.press(Keys.ESCAPE)
    assert browser.texts("#tip") == []
    nameless = browser.run(
        """return [...document.querySelectorAll("input, select, button, [role=img]")].filter((each) =>
            !(each.labels?.length || each.textContent.trim() || each.ariaLabel)).map((each) => each.outerHTML)"""
    )
    assert nameless == []


def test_the_page_shows_the_value_under_the_pointer(browser: Browser) -> None:
    browser.point("#plot-throughput .mark-symbol path")
    assert "records/s" in browser.texts("#tip")[0]
    browser.point("h1")
    assert browser.texts("#tip") == []


HOSTILE = "<img src=x onerror=\"document.title = 'taken'\">'</script>"


def made(rows: dict[str, Any], environment: dict[str, Any]) -> str:
    figures = all_figures(rows)
    facts = {name: value for name, value in FACTS.items() if name != "environment"} | {"whole": True, "commit": HOSTILE}
    pages = all_pages(figures, rows, facts)
    return browser_page(figures, pages, facts, environment, with_run([], figures, facts, environment))


def renamed(value: Any, names: dict[str, str]) -> Any:
    """The same value, with other texts in place of some."""
    if isinstance(value, dict):
        return {names.get(name, name): renamed(each, names) for name, each in value.items()}
    if isinstance(value, list):
        return [renamed(each, names) for each in value]
    return names.get(value, value) if isinstance(value, str) else value


def test_names_and_messages_are_shown_as_they_are_and_run_nothing(started: Browser, tmp_path: Path) -> None:
    names = {"lmdb-indexed-batch": HOSTILE, "direct.commit": f"point {HOSTILE}", "count": f"work {HOSTILE}"}
    rows = renamed(made_up_rows(), names | {"": HOSTILE})
    (tmp_path / "index.html").write_text(made(rows, renamed(ENVIRONMENT, names)))
    started.open((tmp_path / "index.html").as_uri())
    assert started.console() == []
    assert started.run("return document.title") == "Which backend, and why"
    assert started.all("img") == []
    started.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert HOSTILE in "".join(started.texts("#side-by-side td"))
    shown = " ".join(matrix_texts(started))
    assert HOSTILE[:20] in shown
    assert f"point {HOSTILE[:20]}" in shown
    shown = started.run("return [...document.querySelectorAll('.chart svg text')].map((each) => each.textContent)")
    assert HOSTILE[:20] in " ".join(shown)
    box = f"[...document.querySelectorAll('input[name=backends]')].find((each) => each.value === {json.dumps(HOSTILE)})"
    started.run(f"{box}.click()")
    started.wait()
    assert HOSTILE[:20] not in " ".join(matrix_texts(started)).replace(f"point {HOSTILE[:20]}", "")


def test_figures_that_are_no_numbers_leave_the_rest_of_the_page(started: Browser, tmp_path: Path) -> None:
    rows = made_up_rows()
    for kind, odd in (("throughput", float("nan")), ("opening", float("inf")), ("scale", float("nan"))):
        for row in rows[kind]:
            if row["backend"] == "lmdb-indexed-batch":
                row.update({name: odd for name, value in row.items() if isinstance(value, float)})
    (tmp_path / "index.html").write_text(made(rows, ENVIRONMENT))
    started.open((tmp_path / "index.html").as_uri())
    assert started.console() == []
    assert len(started.texts("#plot-throughput figcaption")) > 1


@pytest.mark.parametrize("kept", [[], ["sqlite-indexed-batch"]])
def test_a_run_of_one_backend_or_none_has_a_page(started: Browser, tmp_path: Path, kept: list[str]) -> None:
    rows = {kind: [row for row in of_kind if row.get("backend") in kept] for kind, of_kind in made_up_rows().items()}
    (tmp_path / "index.html").write_text(made(rows, ENVIRONMENT))
    started.open((tmp_path / "index.html").as_uri())
    assert started.console() == []
    assert started.texts("#answer h2") == ["The answer"]
    assert bool(started.texts("#plot-throughput figcaption")) == bool(kept)
