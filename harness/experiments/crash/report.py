"""The page about crash trials."""

from __future__ import annotations

from collections.abc import Sequence

from harness.checkers.losses import Commits
from harness.report import text
from harness.report.charts import CellResult, Chart, Mark, Panel
from harness.report.figures import Figure, Figures, grouped
from harness.report.listing import Column, Listing
from harness.report.page import Page, PageFinding, TextTable, tables
from harness.report.rows import Row
from harness.report.text import level_order
from stores.registry import backends

_CELL = "scenario, durability, guarantee, backend, failpoint, fault, expected"
QUERY = f"""select {_CELL}, count(*) as trials, sum(result = 'valid') as valid, sum(result = 'anomaly') as anomaly,
        sum(result = 'unknown') as unknown, sum(as_expected) as as_expected, isolates(backend) as isolates,
        {", ".join(f"coalesce(sum({name}), 0) as {name}" for name in Commits._fields)}
    from crash_trial group by {_CELL} order by {_CELL}"""
"""The cells of the crash matrix: the number of trials, of each result, and of those that ended as expected."""
FAILED = """select printf('%s at %s, %s, seed %d: %s, not %s (%s)', backend, durability, coalesce(nullif(failpoint, ''),
            fault), seed, result, expected, coalesce(found, 'nothing found')) as sentence, repeat_command as repeat
    from crash_trial where not as_expected order by trial_id, scenario"""

_SOUND, _CONTROL = "expected = 'valid' and isolates", "expected = 'valid' and not isolates"
_MUTANT = "expected = 'anomaly'"


def _numbers(whose: str, condition: str, *names: str) -> list[Column]:
    return [Column(f"{name}{whose}", f"sum({name}) filter (where {condition})", text.exact) for name in names]


LOSSES = Listing(
    "What became of acknowledged commits",
    "crash_figure group by durability, fault order by level_place(durability) desc, fault",
    (
        Column("level", "durability"),
        Column("fault"),
        *_numbers("", _SOUND, "acknowledged", "kept", "replayed", "lost"),
        *_numbers(" without isolation", _CONTROL, "acknowledged", "kept", "replayed", "lost"),
        *_numbers(" with mutants", _MUTANT, "acknowledged", "lost"),
    ),
    notable=f"sum(lost) filter (where {_SOUND}) > 0",
)


def crash_finding(figures: Figures) -> PageFinding:
    """Return how many trials ended as expected, those of mutants included."""
    cells = figures["crash"]
    trials, good = (sum(cell[name] for cell in cells) for name in ("trials", "as_expected"))
    unknown = sum(cell["unknown"] for cell in cells)
    return PageFinding("crash trials", trials, good, "ended as expected", unknown=unknown)


def crash_count(figures: Figures, backend: str, durability: str) -> str:
    """Return a backend's crash trials at a level as ``120 of 120``, without mutants."""
    cells = [
        figure
        for figure in figures["crash"]
        if figure["backend"] == backend and figure["durability"] == durability and figure["expected"] == "valid"
    ]
    if not cells:
        return text.NONE
    return f"{sum(cell['as_expected'] for cell in cells)} of {sum(cell['trials'] for cell in cells)}"


def crash_tables(figures: Figures, *, expected: str) -> list[TextTable]:
    """Return one table per scenario, guarantee and level: backends by failpoint, with counts by result."""
    cells = [figure for figure in figures["crash"] if figure["expected"] == expected]
    tables = []
    for key, own in grouped(cells, ("scenario", "durability", "guarantee")):
        names = sorted({cell["backend"] for cell in own})
        rows: list[list[str]] = []
        wrong: list[int] = []
        for place in sorted({place_of(cell) for cell in own}):
            here = [cell for cell in own if place_of(cell) == place]
            if any(cell["as_expected"] < cell["trials"] for cell in here):
                wrong.append(len(rows))
            by_backend = (_results([cell for cell in here if cell["backend"] == name]) for name in names)
            rows.append([f"`{place}`", *by_backend])
        caption = f"`{key['scenario']}`, {key['guarantee'].replace('_', ' ')}, level {key['durability']}"
        tables.append(TextTable(caption, ("failpoint or fault", *names), rows, range(1, 1 + len(names)), (), wrong))
    return tables


def place_of(cell: Row) -> str:
    """Return the failpoint at which a trial's process is killed, or its other fault."""
    return str(cell["failpoint"] or cell["fault"])


def _results(cells: Sequence[Row]) -> str:
    if not cells:
        return ""
    counts = {name: sum(cell[name] for cell in cells) for name in ("valid", "anomaly", "unknown")}
    return ", ".join(f"{number} {name}" for name, number in counts.items() if number)


_LOSSES = """\
A commit that was acknowledged before a death is *kept* if each store has it, whole, when the next process opens it. It
is *replayed* if the changelog has it and the restore brings it back. It is *lost* if the changelog lacks it after any
death, or if a store is not whole after its restore: that must be 0. Beside it, as controls, are the stores without
isolation, which are wiped and restored whole, and the mutants of a scenario.
"""
_METHOD = """\
A task works through a seeded input over two stores and is killed with SIGKILL at a named failpoint; fresh processes
recover (some are killed again) and finish the input. Checkers that share no code with the stores check atomicity,
durability, visibility of uncommitted writes, convergence with the changelog, exactly-once outputs and the length of the
restore. *Unknown* fails as *anomaly* does. Stores of bytes, of timestamped values, of windows and of sessions take
turns.
"""


def page(figures: Figures, failures: Sequence[str]) -> Page:
    """Return the page."""
    return Page(
        "crashes",
        "Crashes",
        (
            "A task is killed at a failpoint or stopped by another fault, and fresh processes recover its stores.",
            "Checkers compare the stores, the changelog and the outputs with what the task acknowledged.",
        ),
        _body(figures, failures) if figures["crash"] else (),
        _METHOD,
        (crash_finding(figures),),
        (crash_chart(figures["crash"]),),
    )


def _body(figures: Figures, failures: Sequence[str]) -> list[str]:
    mutants = crash_tables(figures, expected="anomaly")
    parts = [LOSSES.table(figures).folded(), _LOSSES, *tables(*crash_tables(figures, expected="valid"))]
    parts.append(
        text.failures("Trials that did not end as expected", failures)
        if failures
        else "Every trial ended as expected.\n"
    )
    if mutants:
        parts.append("## Mutants in crash trials\n")
        parts.append("Each of these must be detected: here `anomaly` is the expected result.\n")
        parts += tables(*mutants)
    return parts


def crash_chart(figures: Sequence[Figure]) -> Chart:
    """Return the results of the trials of each level. Mutants are left out."""
    placed = [{**cell, "place": place_of(cell)} for cell in figures if cell["expected"] == "valid"]
    places = sorted({str(cell["place"]) for cell in placed}, key=lambda place: ("." not in place, place))
    names = sorted({cell["backend"] for cell in placed})
    levels = sorted({cell["durability"] for cell in placed}, key=level_order)
    panels = [
        Panel(f"Level {level}", [_cell(placed, level, place, name) for name in names for place in places], level)
        for level in levels
    ]
    title = "Crash matrix: the trials of each backend at each step of a commit, a creation or a recovery"
    return Chart("crash-matrix", title, "matrix", panels, "", "valid trials", "steps and faults")


def _cell(cells: Sequence[Row], level: str, place: str, backend: str) -> Mark:
    own = [cell for cell in cells if (cell["durability"], cell["place"], cell["backend"]) == (level, place, backend)]
    if not own:
        result = CellResult.NOT_TRIED if _has_step(backend, level, place) else CellResult.NO_STEP
        return Mark(backend, 0, subject=place, rank=_rank(result))
    valid, trials = (sum(cell[name] for cell in own) for name in ("valid", "trials"))
    return Mark(backend, valid, subject=place, of=trials, rank=_rank(_worst_of_cells(own)))


def _rank(result: CellResult) -> int:
    return list(CellResult).index(result)


def _worst_of_cells(cells: Sequence[Row]) -> CellResult:
    if any(cell["anomaly"] for cell in cells):
        return CellResult.ANOMALY
    return CellResult.UNKNOWN if any(cell["unknown"] for cell in cells) else CellResult.VALID


def _has_step(backend: str, level: str, place: str) -> bool:
    """Return False for a failpoint that other backends have and this one has not, and for a level that it lacks."""
    registry = backends()
    if backend not in registry:
        return True
    steps = registry[backend].failpoints
    return level in registry[backend].durabilities and (
        place in steps or not any(place in each.failpoints for each in registry.values())
    )
