"""The page for browsers in a real one: plots, filters, tables, colours, keyboard, a telephone's width, no network."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from harness.answer.browser_page import browser_page
from harness.answer.history import with_run
from harness.answer.results import all_figures, all_pages
from harness.folders import ROOT
from harness.report.charts import LOOKS
from harness.tests.contrast import contrast
from harness.tests.headless_browser import Browser, missing, running_browser
from harness.tests.made_up_rows import ENVIRONMENT, FACTS, LEVELS, SPEEDS, made_up_rows

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
PICTURES = ROOT / "build" / "screenshots"
PLOTS = {"crash-matrix", "throughput", "commit-latency", "task-memory", "task-disk", "store-throughput"}
PLOTS |= {"large-step-memory"}
PLOTS |= {"put-and-commit-latency", "opening", "history-records-per-s", "history-ready-s", "scale", "frontier"}


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


OPEN_ALL = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"


def test_every_plot_is_drawn_with_all_its_values_and_without_a_word_in_the_console(browser: Browser) -> None:
    assert browser.console() == []
    names = browser.run("return [...document.querySelectorAll('.plot')].map((each) => each.id)")
    assert {name.removeprefix("plot-") for name in names} == PLOTS
    browser.run(OPEN_ALL)
    heights = browser.run(
        """return [...document.querySelectorAll("figure:not([hidden]) svg[data-kind]")]
            .map((each) => [each.closest("figure").textContent, each.getBoundingClientRect().height])"""
    )
    assert [each for each in heights if each[1] < 20] == []
    cells = matrix_texts(browser)
    assert "sqlite-indexed-batch, create.built: 1 of 2 valid" in cells
    assert len(cells) == len(SPEEDS) * 5 - 5 - 2


def matrix_texts(browser: Browser) -> list[str]:
    """The cells of the crash matrix in words."""
    told: list[str] = browser.run(
        """const plot = document.getElementById("plot-crash-matrix");
        return charts.rowsOf(plot).slice(1).map(([, backend, step, valid, trials]) =>
            `${backend}, ${step}: ${valid} of ${trials} valid`)"""
    )
    return told


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
            .filter((name) => !document.getElementById(name) && !name.startsWith("pick-"))"""
    )
    assert broken == []
    assert browser.run("return document.querySelector('#tables > details').open") is False
    browser.click('#proven a[href="#crashes"]')
    assert browser.run(
        """return new Promise((done) => setTimeout(() => done(
            document.querySelector("#tables > details").open && document.getElementById("crashes").open), 50))"""
    )


def shown_panels(browser: Browser, plot: str) -> list[str]:
    return browser.texts(f"#plot-{plot} figcaption")


def test_filters_change_what_every_plot_shows(browser: Browser) -> None:
    browser.run(OPEN_ALL)
    everything = shown_panels(browser, "throughput")
    assert {title.split(",")[0] for title in everything} == {"CHANGELOG", "DISK"}
    browser.click("input[name=levels][value=DISK]")
    assert shown_panels(browser, "throughput") == [title for title in everything if title.startswith("CHANGELOG")]
    assert all(title.startswith("CHANGELOG") for title in browser.texts("figcaption") if "records per commit" in title)
    browser.choose("size", "100")
    assert [title for title in shown_panels(browser, "throughput") if "100 records per commit" not in title] == []
    browser.click("input[name=backends][value=lmdb-indexed-batch]")
    named = browser.texts("#plots svg .row text:first-child")
    assert "rocksdb-direct" in named
    assert "lmdb-indexed-batch" not in named
    subjects = {cell.partition(",")[0] for cell in matrix_texts(browser)}
    assert "rocksdb-direct" in subjects
    assert "lmdb-indexed-batch" not in subjects
    rows = browser.run(
        """return [...document.querySelectorAll("#plot-throughput figure:not([hidden]) .row")]
            .filter((row) => row.getClientRects().length).map((row) => row.transform.baseVal[0].matrix.f)"""
    )
    assert {later - before for before, later in pairwise(rows)} == {20}
    assert re.match(r"\d+ of \d+ panels", browser.texts("#shown")[0])
    browser.click("#filters button[type=reset]")
    assert shown_panels(browser, "throughput") == everything


def test_a_workload_has_its_own_panels(browser: Browser) -> None:
    browser.run(OPEN_ALL)
    browser.run(
        """const select = document.querySelector("[name=workload]");
        select.append(new Option("other", "other"));
        document.querySelectorAll("#plot-throughput figure").forEach((each) => { each.dataset.workload = "other"; })"""
    )
    browser.choose("workload", "count")
    assert shown_panels(browser, "throughput") == []
    assert browser.texts("#plot-throughput .none") != []
    assert shown_panels(browser, "task-memory")
    browser.choose("workload", "other")
    assert shown_panels(browser, "throughput")


@pytest.mark.parametrize(("number", "element"), [(30, "pre.scroll"), (140, "div.scroll[data-packed]")])
def test_a_long_table_is_made_of_its_lines_when_it_is_opened(
    started: Browser, tmp_path: Path, number: int, element: str
) -> None:
    rows = made_up_rows()
    # Lines that are short, and lines of which only a part of the characters is left when they are compressed.
    rows["ratio"] = [{**rows["ratio"][0], "claim": f"`claim` {place}"} for place in range(number)]
    (tmp_path / "index.html").write_text(made(rows, ENVIRONMENT))
    started.open((tmp_path / "index.html").as_uri())
    assert len(started.all(f"#ratios {element}")) == 1
    started.run(OPEN_ALL)
    started.run("return new Promise((done) => setTimeout(done, 50))")
    assert started.all(f"#ratios {element}") == []
    assert len(started.all("#ratios tbody tr")) == number
    assert started.texts("#ratios tbody td:nth-child(4)") == ["rocksdb-indexed-batch"] * number
    assert sorted(started.texts("#ratios td code")) == ["claim"] * number
    assert len(started.texts("#ratios td .interval")) == number


def test_every_figure_has_an_address_its_rows_and_its_run(browser: Browser) -> None:
    browser.run(OPEN_ALL)
    browser.run("return new Promise((done) => setTimeout(done, 50))")
    without = browser.run(
        """return [...document.querySelectorAll(".plot, .scroll[id]")].filter((each) => {
            const foot = each.matches(".plot") ? each.querySelector(".foot") : each.nextElementSibling;
            return !foot?.matches(".foot") || foot.querySelector("a").hash !== `#${each.id}`
                || !foot.textContent.includes(page.origin);
        }).map((each) => each.id)"""
    )
    assert without == []
    assert "2 cores, Made-up, 8 GiB, ext4" in browser.run("return page.origin")
    csv = browser.run(
        """const link = document.querySelector("#plot-opening .foot [download]");
        link.addEventListener("click", (event) => event.preventDefault(), {once: true});
        link.click();
        return decodeURIComponent(link.href)"""
    )
    head, *lines = csv.partition(",")[2].split("\n")
    assert head == "panel,subject,of,s,from,to"
    assert len(lines) == 2 * (len(SPEEDS) - 1)
    assert lines[0].startswith('"CHANGELOG, 50,000 records in the store",rocksdb-indexed-batch,,0.0')


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


def test_no_two_parts_have_one_address(browser: Browser) -> None:
    browser.run(OPEN_ALL)
    browser.run("return new Promise((done) => setTimeout(done, 50))")
    names = browser.run("return [...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert [name for name in names if names.count(name) > 1] == []


def test_headings_leave_out_no_level_and_tables_have_names(browser: Browser) -> None:
    browser.run(OPEN_ALL)
    browser.run("return new Promise((done) => setTimeout(done, 50))")
    levels = browser.run(
        """return [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].map((each) => Number(each.tagName[1]))"""
    )
    assert [pair for pair in pairwise(levels) if pair[1] > pair[0] + 1] == []
    assert browser.run("return [...document.querySelectorAll('.scroll[id] table')].every((each) => each.ariaLabel)")


def test_figures_of_a_plot_are_a_table_too(browser: Browser) -> None:
    browser.run(OPEN_ALL)
    browser.run("return new Promise((done) => setTimeout(done, 50))")
    lines = browser.texts("#plot-throughput .figures tbody tr")
    assert len(lines) == len(browser.all("#plot-throughput figure:not([hidden]) .m")) > 10


def test_without_scripts_all_plots_and_tables_can_be_read(started: Browser, page: Path, tmp_path: Path) -> None:
    html = page.read_text()
    (tmp_path / "index.html").write_text(re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL))
    started.open((tmp_path / "index.html").as_uri(), scripts=False)
    started.run(OPEN_ALL)
    assert len(started.texts("figure svg[role=img]")) == html.count("<figure")
    assert "78,300" not in html
    assert len(started.texts("#changelog-table-1 tbody tr")) == len(SPEEDS)
    assert started.texts("label") == ["peak memory", "size on disk"]
    assert len(started.texts("figure.scape")) == len(LEVELS)


def test_the_page_is_as_wide_as_a_telephone(browser: Browser) -> None:
    browser.run(OPEN_ALL)
    browser.size(360, 740)
    browser.choose("size", "")
    width, widest = browser.run("return [innerWidth, document.documentElement.scrollWidth]")
    assert (width, widest) == (360, 360)
    outside = browser.run(
        """return [...document.querySelectorAll("body *")].filter((each) => each.checkVisibility()
            && !each.closest(".scroll, pre, .skip, #tip, svg svg, defs") && each.getBoundingClientRect().right > 361)
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
        drawn = {
            name: browser.run(f"return getComputedStyle(document.querySelector('#plots .row.b{place}')).color")
            for place, name in enumerate(LOOKS)
            if name in SPEEDS
        }
        assert drawn == {name: in_words(getattr(LOOKS[name], chosen)) for name in drawn}
        label = browser.run("return getComputedStyle(document.querySelector('#plots svg .row text')).fill")
        assert label == in_words(named[1])
        browser.picture(PICTURES / f"{chosen}.png")


def in_words(colour: str) -> str:
    return f"rgb({', '.join(str(part) for part in bytes.fromhex(colour.lstrip('#')))})"


def test_all_can_be_done_with_the_keyboard_and_the_focus_is_seen(browser: Browser) -> None:
    browser.press(Keys.TAB)
    assert browser.run("return document.activeElement.className") == "skip"
    assert browser.run("return document.activeElement.getBoundingClientRect().x") >= 0
    browser.run(OPEN_ALL)
    browser.run("document.querySelector('input[name=levels][value=DISK]').focus()")
    browser.press(Keys.SPACE)
    browser.wait()
    assert not any(title.startswith("DISK") for title in shown_panels(browser, "throughput"))
    browser.run("document.querySelector('#plot-throughput figure:not([hidden]) svg').focus()")
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
    browser.run(OPEN_ALL)
    browser.point("#plot-throughput figure:not([hidden]) .m")
    assert "records/s" in browser.texts("#tip")[0]
    browser.point("h1")
    assert browser.texts("#tip") == []


def pick(browser: Browser, **sliders: int) -> tuple[str, str]:
    """Move sliders of the picker; return the backend that it answers, and the address."""
    for name, value in sliders.items():
        browser.run(
            """const slider = document.getElementById("picker").elements[arguments[0]];
            slider.value = arguments[1]; slider.dispatchEvent(new Event("input", {bubbles: true}))""",
            name,
            value,
        )
    return "".join(browser.texts("#pick strong")), browser.run("return location.hash")


def test_the_picker_answers_what_matters_and_its_choice_can_be_sent(browser: Browser, page: Path) -> None:
    assert pick(browser, speed=3, recovery=0) == ("rocksdb-indexed-batch", "#pick-3-0-0-0-CHANGELOG")
    assert "the fastest" in browser.texts("#pick li")[0]
    assert pick(browser, speed=0, disk=3)[0] == "lmdb-indexed-batch"
    assert pick(browser, disk=0) == ("", "#pick-0-0-0-0-CHANGELOG")
    assert browser.texts("#pick") != [""]
    chosen = pick(browser, speed=1, memory=2, durability=1)
    assert chosen[1] == "#pick-1-0-2-0-DISK"
    assert browser.texts("figure.scape figcaption")[0].startswith("DISK")
    assert {chosen[0]} == set(browser.texts("figure.scape .picked text"))
    assert browser.run("return document.getElementById('pick-link').hash") == chosen[1]
    browser.open(page.as_uri() + chosen[1])
    assert ("".join(browser.texts("#pick strong")), browser.run("return location.hash")) == chosen


def test_the_picker_picks_nothing_from_figures_that_were_measured_once(started: Browser, tmp_path: Path) -> None:
    rows = made_up_rows()
    rows["throughput"] = [row for row in rows["throughput"] if row["repeat"] == 0]
    (tmp_path / "index.html").write_text(made(rows, ENVIRONMENT))
    started.open((tmp_path / "index.html").as_uri())
    assert pick(started, speed=2)[0] == ""
    assert "measured once" in started.texts("#pick p")[0]


def test_the_picker_is_that_of_the_answer_where_one_thing_matters(browser: Browser) -> None:
    answers = dict(zip(browser.texts(".answer td:nth-child(1)"), browser.texts(".answer td:nth-child(3)"), strict=True))
    rate = next(answer for need, answer in answers.items() if need.startswith("Most records per second, commits kept"))
    disk = next(answer for need, answer in answers.items() if need.startswith("Least disk"))
    assert rate.startswith(pick(browser, speed=2, recovery=0)[0])
    assert disk.startswith(pick(browser, speed=0, disk=1)[0])


def test_the_page_says_where_backends_lose_what_changed_and_how_to_correct_it(browser: Browser) -> None:
    missed, lost = browser.texts("#losses > .cards > .scroll > table")
    assert "and with long transactions" in missed
    assert "rocksdb-dual-store" in lost
    browser.run(OPEN_ALL)
    assert [words[:10] for words in browser.texts("#history li strong")] == ["2026-01-03", "2026-01-02", "2026-01-01"]
    assert "open an issue of this project with the output of make bench" in browser.texts("#correct p")[0].lower()


def test_the_size_of_points_is_memory_or_disk(browser: Browser) -> None:
    shown = """return ["memory", "disk"].map((size) => [...document.querySelectorAll(`.scape:not([hidden]) .m.${size}`)]
        .filter((mark) => mark.getClientRects().length).length)"""
    assert browser.run(shown) == [len(SPEEDS), 0]
    browser.run("document.querySelector('[name=area][value=disk]').click()")
    assert browser.run(shown) == [0, len(SPEEDS)]
    browser.run("document.querySelector('.scape:not([hidden]) svg').focus()")
    browser.press(Keys.ARROW_DOWN)
    assert "records/s" in browser.texts("#tip")[0]
    assert "on disk, MiB" in browser.texts("#tip")[0]


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
    assert f"{HOSTILE}, point {HOSTILE}: " in shown
    assert HOSTILE[:20] in " ".join(started.texts("#plot-throughput svg text"))
    box = f"[...document.querySelectorAll('input[name=backends]')].find((each) => each.value === {json.dumps(HOSTILE)})"
    started.run(f"{box}.click()")
    started.wait()
    assert not any(cell.startswith(f"{HOSTILE},") for cell in matrix_texts(started))


def test_figures_that_are_no_numbers_leave_the_rest_of_the_page(started: Browser, tmp_path: Path) -> None:
    rows = made_up_rows()
    for kind, odd in (("throughput", float("nan")), ("opening", float("inf")), ("scale", float("nan"))):
        for row in rows[kind]:
            if row["backend"] == "lmdb-indexed-batch":
                row.update({name: odd for name, value in row.items() if isinstance(value, float)})
    (tmp_path / "index.html").write_text(made(rows, ENVIRONMENT))
    started.open((tmp_path / "index.html").as_uri())
    assert started.console() == []
    started.run(OPEN_ALL)
    assert len(started.texts("#plot-throughput figcaption")) > 1


@pytest.mark.parametrize("kept", [[], ["sqlite-indexed-batch"]])
def test_a_run_of_one_backend_or_none_has_a_page(started: Browser, tmp_path: Path, kept: list[str]) -> None:
    rows = {kind: [row for row in of_kind if row.get("backend") in kept] for kind, of_kind in made_up_rows().items()}
    (tmp_path / "index.html").write_text(made(rows, ENVIRONMENT))
    started.open((tmp_path / "index.html").as_uri())
    assert started.console() == []
    assert started.texts("#answer h2") == ["The answer"]
    started.run(OPEN_ALL)
    assert bool(started.texts("#plot-throughput figcaption")) == bool(kept)
