"""Pages, their tables and their charts as data: a query over the figures of a run, and how each column is shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from harness.report import text
from harness.report.charts import Chart, Mark, Panel
from harness.report.database import query
from harness.report.figures import Figure, Figures, columns, with_interval
from harness.report.page import Page, PageFinding, TextTable, tables

_IN_BRACES = re.compile(r"\{(.+?)\}")


class Column(NamedTuple):
    """A column: its head, the SQL expression of its values (by default a column of that name), and their format.

    With ``interval`` it also shows ``VALUE_from`` and ``VALUE_to``. ``right`` aligns it to the right: None does so for
    all but words.
    """

    head: str
    value: str = ""
    shown: Callable[[Any], str] = text.word
    interval: bool = False
    right: bool | None = None

    def selected(self, name: str) -> list[str]:
        """Return the parts of a query that select its values under ``name``."""
        value = self.value or self.head
        ends = zip(columns(value), columns(name), strict=True) if self.interval else ()
        return [f"{expression} as {alias}" for expression, alias in ((value, name), *ends)]

    def cell(self, line: Figure, name: str) -> str:
        """Return the text of a line's cell."""
        return with_interval(line, name, self.shown) if self.interval else self.shown(line[name])


@dataclass(frozen=True)
class Listing:
    """A table of a page, or several with the same columns.

    ``source`` is a query from its FROM on. ``caption`` may have SQL expressions in braces: the lines of each caption
    are a table. ``shown_once`` is as for ``TextTable``; a line with something wrong fulfills the condition ``notable``.
    """

    caption: str
    source: str
    columns: Sequence[Column]
    notable: str = "false"
    shown_once: Sequence[int] = ()

    def tables(self, figures: Figures) -> list[TextTable]:
        """Return the tables, in the order of their first lines; none without lines."""
        selected = [part for name, column in self._named() for part in column.selected(name)]
        by_caption: dict[str, list[Figure]] = {}
        for caption, line in filled(figures, self.caption, self.source, *selected, f"{self.notable} as notable"):
            by_caption.setdefault(caption, []).append(line)
        return [self._table(caption, lines) for caption, lines in by_caption.items()]

    def table(self, figures: Figures) -> TextTable:
        """Return the only table, which may have no lines."""
        (table,) = self.tables(figures) or [self._table(self.caption, ())]
        return table

    def _named(self) -> list[tuple[str, Column]]:
        # Names of their own: in an ORDER BY, SQL takes a head that is also a column of the figures for the head.
        return [(f"cell_{place}", column) for place, column in enumerate(self.columns)]

    def _table(self, caption: str, lines: Sequence[Figure]) -> TextTable:
        right = [
            place
            for place, column in enumerate(self.columns)
            if (column.shown is not text.word if column.right is None else column.right)
        ]
        rows = [[column.cell(line, name) for name, column in self._named()] for line in lines]
        notable = [place for place, line in enumerate(lines) if line["notable"]]
        return TextTable(caption, [column.head for column in self.columns], rows, right, self.shown_once, notable)


def filled(figures: Figures, words: str, source: str, *selected: str) -> list[tuple[str, Figure]]:
    """Return ``words`` for each line of a query, with the values of the SQL expressions in their braces, and the line.

    ``source`` is the query from its FROM on; the line has what is ``selected``.
    """
    values = [f"{value} as word_{place}" for place, value in enumerate(_IN_BRACES.findall(words))]
    template = _IN_BRACES.sub("{}", words)
    return [
        (template.format(*(line[f"word_{place}"] for place in range(len(values)))), line)
        for line in query(figures, f"select {', '.join([*values, *selected])} from {source}")
    ]


def sentence(figures: Figures, words: str, source: str) -> str:
    """Return the first text of ``filled``; "" without lines."""
    return next((text_ for text_, _ in filled(figures, words, source)), "")


_OF_PANELS = ("title", "level", "workload", "records_per_commit", "printed")


def panels(lines: Iterable[Figure]) -> list[Panel]:
    """Return the panels of a chart, in the order of their first marks.

    A line has the properties of a mark, and those of its panel that are not the default. A mark is hollow if its line
    has a place for an interval, and none there.
    """
    by_panel: dict[tuple[Any, ...], list[Mark]] = {}
    for line in lines:
        properties = tuple((name, line[name]) for name in _OF_PANELS if name in line)
        words = {name: line[name] for name in ("subject", "step", "measure", "shape") if name in line}
        low, high = line.get("low"), line.get("high")
        mark = Mark(line["backend"], line["value"], low, high, **words, hollow="low" in line and low is None)
        by_panel.setdefault(properties, []).append(mark)
    return [Panel(**dict(properties), marks=marks) for properties, marks in by_panel.items()]


class Plot(NamedTuple):
    """A chart whose panels are the lines of a query; see ``panels``."""

    chart: Chart
    sql: str

    def drawn(self, figures: Figures) -> Chart:
        """Return the chart with its panels."""
        return replace(self.chart, panels=panels(query(figures, self.sql)))


@dataclass(frozen=True)
class Report:
    """The page of an experiment as data. Other parts of a page are given to ``page``.

    ``kinds`` are those of its figures: without any, nothing was measured. A sentence of ``shows`` may be a pair: words
    with SQL expressions in braces, and the source of a query for them.
    """

    kinds: Sequence[str]
    name: str
    title: str
    shows: Sequence[str | tuple[str, str]]
    listings: Sequence[Listing]
    method: str
    plots: Sequence[Plot] = ()

    def tables(self, figures: Figures) -> list[TextTable]:
        """Return the tables of its listings."""
        return [table for listing in self.listings for table in listing.tables(figures)]

    def page(
        self,
        figures: Figures,
        *,
        absent: str = text.NOT_MEASURED,
        before: Sequence[str] = (),
        more: Sequence[TextTable] = (),
        findings: Sequence[PageFinding] = (),
        plots: Sequence[Chart] = (),
    ) -> Page:
        """Return the page. ``more`` tables follow its own; ``absent`` says why nothing was measured."""
        return Page(
            self.name,
            self.title,
            [words if isinstance(words, str) else sentence(figures, *words) for words in self.shows],
            [*before, *tables(*self.tables(figures), *more)] if any(figures.get(kind) for kind in self.kinds) else (),
            self.method,
            findings,
            [*(plot.drawn(figures) for plot in self.plots), *plots],
            absent=absent,
        )
