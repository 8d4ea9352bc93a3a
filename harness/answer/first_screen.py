"""The first screen of the page: three sentences, the picture of speed against recovery, and the picker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from harness.answer.choice import Choice
from harness.answer.frontier import Landscape, Point, Value, frontier_svg
from harness.experiments.needs import NEEDS, Need
from harness.report import text
from harness.report.coverage_page import coverage_sentences
from harness.report.decision import INDIFFERENCE, ROUNDS_MIN
from harness.report.drawing import KeyEntry, backend_mark
from harness.report.figures import Figures
from harness.report.listing import sentence
from harness.report.markup import inline
from harness.report.page import Page
from harness.report.text import LEVELS, PROMISES
from harness.report.web_page import key_html
from stores.config import StoreConfig

DEFAULT = StoreConfig().backend
_WISHES: Mapping[str, tuple[str, str]] = {
    "speed": ("Speed", "records_per_s"),
    "recovery": ("Recovery", "ready_s"),
    "memory": ("Memory", "peak_memory_bytes"),
    "disk": ("Disk", "bytes_on_disk"),
}
"""The sliders of the picker, each with its name and the measure of a need that is decided by it alone."""
_SLIDER = """\
<label><span class="name">{title}</span>
<input type="range" name="{name}" min="0" max="{most}" step="1" value="{value}"><output></output></label>
"""


def compared(figures: Figures, landscapes: Sequence[Landscape], environment: Mapping[str, Any]) -> str:
    """Return the sentence that says what was compared."""
    names = {point.backend for landscape in landscapes for point in landscape.points}
    measured = sum(figure["repeats"] for figure in figures["throughput"])
    opened = sum(figure["repeats"] for figure in figures["opening"])
    levels = ", ".join(landscape.level for landscape in landscapes)
    return (
        f"**Compared:** {len(names)} backends of a transactional state store, each at the durability levels that it "
        f"offers ({levels or text.NONE}), in {text.exact(measured)} measurements of a task's throughput and "
        f"{text.exact(opened)} opening{'s' * (opened != 1)} after a kill, on {environment['cpu']['cores']} cores."
    )


_LOST = (
    "{iif(sum(lost), '**', '')}{exact(sum(lost))} of {exact(sum(acknowledged))} acknowledged commits were lost"
    "{iif(sum(lost), '**', '')}",
    "crash_figure where expected = 'valid' and isolates having sum(acknowledged) > 0",
)
"""The losses of stores with isolation, in trials without a mutant."""


def proven(figures: Figures, pages: Iterable[Page]) -> str:
    """Return the sentence that says what was proven: what all runs tried, what was lost, and the first checks."""
    findings = [(page, page.findings[0]) for page in pages if page.body and page.findings]
    checks = [finding.sentence(page.file).strip("*.") for page, finding in findings if finding.number]
    wrong = sum(finding.wrong for _, finding in findings)
    checked = f"{text.exact(wrong)} check{'s' * (wrong != 1)}"
    ending = f"**{checked} found a broken promise**" if wrong else "no promise was broken"
    coverage = [words.rstrip(".") for words in coverage_sentences(figures)[:1]]
    return f"**Proven:** {'; '.join(filter(None, [*coverage, sentence(figures, *_LOST), *checks[:2], ending]))}."


def to_take(picks: Sequence[Choice]) -> str:
    """Return the sentence that says which backend to take for what, from the picks alone."""
    by_backend: dict[str, list[str]] = {}
    for (need, backend, ties), levels in _decided(picks).items():
        beside = f"; {_names(ties)} {'is' if len(ties) == 1 else 'are'} as good" if ties else ""
        by_backend.setdefault(backend, []).append(f"{need} ({', '.join(levels)}{beside})")
    advice = "; ".join(f"**{backend}** for {_names(needs)}" for backend, needs in by_backend.items())
    waiting = sum(not pick.decided for pick in picks)
    rest = f" {waiting} of {len(picks)} needs are not decided." if waiting else ""
    return f"**Take:** {advice}.{rest}" if advice else "**Take:** this run decides none of the needs yet."


def default_advice(picks: Sequence[Choice]) -> str:
    """Return the sentence for a reader who has no need in particular: the default, and what the picks say about it."""
    decided = [pick for pick in picks if pick.decided]
    good = sum(DEFAULT in (pick.backend, *pick.ties) for pick in decided)
    unclear = sum(DEFAULT in pick.unclear for pick in decided)
    more = f", and may be as good for {unclear} more" if unclear else ""
    figures = f" It is the pick, or as good, for {good} of {len(decided)} decided needs of this run{more}."
    return f"**If you do not care:** {DEFAULT}, the default of `StoreConfig`.{figures if decided else ''}"


def _decided(picks: Iterable[Choice]) -> dict[tuple[str, str, tuple[str, ...]], list[str]]:
    """Return the levels of each need in its short words, with its pick and those that are as good."""
    levels: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for pick in picks:
        at = levels.setdefault((_short(pick.need), pick.backend, pick.ties), []) if pick.decided else []
        at += [] if pick.durability in at else [pick.durability]
    return levels


def _short(need: str) -> str:
    """Return the words of a need as part of a sentence, without what follows a comma: the level's promise."""
    words = need.partition(",")[0].partition(" (")[0]
    article = "the " if words.partition(" ")[0].endswith("st") else ""
    return f"{article}{words[0].lower()}{words[1:]}"


def _names(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def picture(landscapes: Sequence[Landscape]) -> str:
    """Return the picture of speed against recovery, with a part for each level."""
    if not landscapes:
        return f'<p class="soft">{text.NOT_MEASURED.capitalize()}.</p>'
    backends = sorted({point.backend for landscape in landscapes for point in landscape.points})
    parts = "\n".join(
        f'<figure class="scape" data-level="{escape(each.level)}"><figcaption>{escape(each.level)}, {escape(each.cell)}'
        f"</figcaption>{frontier_svg(each)}</figure>"
        for each in landscapes
    )
    key = key_html(
        [
            *(KeyEntry(backend_mark(name), name) for name in backends),
            KeyEntry('<path class="f" d="M2 10V3H20"/>', "frontier: no other backend is faster and sooner ready"),
            KeyEntry('<path class="i" d="M3 6H19"/>', "interval of the median"),
        ]
    )
    sizes = "".join(
        f'<label><input type="radio" name="area" value="{name}"{" checked" * (name == "memory")}> {words}</label>'
        for name, words in (("memory", "peak memory"), ("disk", "size on disk"))
    )
    return (
        '<div class="plot" id="plot-frontier" data-unit="records/s"><h2>Speed against recovery</h2>'
        '<p class="soft">Up is faster, left is sooner ready after a kill. Pale backends are not on the frontier: they '
        "have no isolation, keep nothing after a crash, or broke a promise.</p>"
        f'<fieldset class="area"><legend>Size of a point</legend>{sizes}</fieldset>'
        f'<div class="scapes">{parts}</div>{key}</div>'
    )


def picker(landscapes: Sequence[Landscape]) -> str:
    """Return the form of the picker, which a script shows and answers."""
    sliders = "".join(
        _SLIDER.format(title=title, name=name, most=3, value=int(name in ("speed", "recovery")))
        for name, (title, _) in _WISHES.items()
    )
    durability = _SLIDER.format(title="Durability", name="durability", most=max(0, len(landscapes) - 1), value=0)
    return (
        '<form id="picker" aria-label="Pick a backend" hidden><h2>What matters to you?</h2>'
        f'{sliders}{durability}<div id="pick" role="status"></div>'
        '<p class="foot"><a id="pick-link" href="#pick">Link to this choice</a></p></form>'
    )


def picker_data(landscapes: Sequence[Landscape], picks: Sequence[Choice]) -> dict[str, Any]:
    """Return what the picker answers from: the figures of each level, and the picks of needs with one measure."""
    pairs = list(zip(NEEDS, picks, strict=True)) if len(picks) == len(NEEDS) else []
    return {
        "indifference": INDIFFERENCE,
        "rounds": ROUNDS_MIN,
        "levels": [
            {
                "level": landscape.level,
                "promise": PROMISES[landscape.level] if landscape.level in LEVELS else "",
                "backends": {point.backend: _figures(point) for point in landscape.points if point.fit},
                "picks": _picks(pairs, landscape.level),
            }
            for landscape in landscapes
        ],
    }


def _figures(point: Point) -> dict[str, list[Any] | None]:
    """Return the figures of a point by wish: a cost of which less is better, the text, and the number of repeats."""
    speed = point.speed
    return {
        "speed": [1 / speed.median, f"{text.count(speed.median)} records/s", speed.repeats],
        "recovery": _cost(point.ready, text.duration),
        "memory": _cost(point.memory, text.size),
        "disk": _cost(point.disk, text.size),
    }


def _cost(value: Value | None, shown: Any) -> list[Any] | None:
    return [value.median, shown(value.median), value.repeats] if value and value.median > 0 else None


def _picks(pairs: Iterable[tuple[Need, Choice]], level: str) -> dict[str, dict[str, Any]]:
    """Return the pick of each wish that a need of this level has decided, or not, in the same cell."""
    wishes = {measure: wish for wish, (_, measure) in _WISHES.items()}
    return {
        wishes[need.measure.name]: {"backend": pick.backend, "ties": pick.ties, "open": pick.open_rivals}
        for need, pick in pairs
        if need.durability == level and need.measure.name in wishes and not need.rebuilt and _is_of_picture(need)
    }


def _is_of_picture(need: Need) -> bool:
    """Return False for a need that is decided by another cell than that of the picture."""
    return need.size is None or need.measure.kind == "opening"


def lead(sentences: Iterable[str], names: Sequence[str]) -> str:
    """Return the sentences, each as a paragraph."""
    return f'<div class="lead">{"".join(f"<p>{inline(sentence, names)}</p>" for sentence in sentences)}</div>'
