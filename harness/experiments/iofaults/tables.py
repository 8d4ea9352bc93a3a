"""The tables of a report about I/O faults. Each names its durability level."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.checkers.prefix import demand
from harness.experiments.iofaults.case import ENOUGH, NOT_TRIED, is_wrong
from harness.experiments.iofaults.figures import is_promised
from harness.report import text
from harness.report.figures import Figure, Figures
from harness.report.table import Table

LEVELS = ("DISK", "PROCESS", "CHANGELOG")
_WORDS: Mapping[str, str] = {
    "kill": "killed before each I/O operation",
    "tear": "killed inside a write",
    "kill_twice": "killed, and again in its recovery",
    "error": "a call fails",
    "power": "power lost",
    "power_twice": "power lost, and again in its recovery",
    "failed_sync": "a sync fails, a kill, and power lost later",
    "damage": "corrupted at rest",
}
_MUTANT = {"found": "detected", "not seen": "passed"}
"""The wanted results of a mutant, as rows have them."""
_SYMPTOMS = {"": "none", "detected": "reported corrupt"}
_OWN = ("error", "damage")
_POWER = ("power", "power_twice", "failed_sync")
_MORE = {"power_twice": ", twice", "failed_sync": ", a sync failed earlier"}
_SUMMED = ("points", "trials", "torn", "restored", "other", "no_verdict", "unexpected", "wrong", "seconds")
_RESULTS = ("commits lost at most", "torn", "detected and restored", "other", "time of a core")


def promise_table(figures: Figures) -> Table:
    """Return the promise of each level after each fault, with its result."""
    rows = []
    for level in LEVELS:
        for fault, words in _WORDS.items():
            own = [
                figure
                for figure in figures["effect"]
                if (figure["durability"], figure["fault"]) == (level, fault) and is_promised(figure)
            ]
            if own:
                rows.append(
                    [
                        level,
                        words,
                        _promise(level, "power" if fault in _POWER else fault if fault in _OWN else "kill"),
                        text.exact(len({figure["backend"] for figure in own if figure["trials"]})),
                        text.exact(sum(figure["distinct"] for figure in own)),
                        _held(own),
                    ]
                )
    head = ("level", "fault", "what is promised then", "backends and files", "distinct states", "held")
    return Table("What was promised, and whether it held", head, rows, (3, 4))


def power_tables(figures: Figures) -> list[Table]:
    """Return the tables of power loss, one per level: a line per backend and persistence model."""
    tables = []
    for level in LEVELS:
        own = [figure for figure in figures["effect"] if figure["durability"] == level and figure["fault"] in _POWER]
        rows = [
            [
                f"`{figure['backend']}`",
                figure["variant"] + _MORE.get(figure["fault"], ""),
                _points(figure),
                text.exact(figure["states"]),
                text.exact(figure["distinct"]),
                *_results(figure),
                f"`{figure['blind_spots']}`" if figure["blind_spots"] else text.NONE,
                _held([figure]),
            ]
            for figure in own
        ]
        head = (
            "backend",
            "model",
            "positions",
            "states",
            "distinct",
            *_RESULTS,
            "written unseen",
            "promise held",
        )
        if rows:
            caption = f"Power loss at level {level}"
            tables.append(Table(caption, head, rows, range(2, 10), range(1, 12), _wrong(own)))
    return tables


def process_tables(figures: Figures) -> list[Table]:
    """Return the tables of kills and failing calls, one per level."""
    tables = []
    for level in LEVELS:
        own = _errors_together(
            figure
            for figure in figures["effect"]
            if figure["durability"] == level and figure["fault"] not in (*_POWER, "damage")
        )
        rows = [
            [
                f"`{figure['backend']}`",
                f"{_WORDS[figure['fault']]}{': ' if figure['variant'] else ''}{figure['variant']}",
                _points(figure),
                text.exact(figure["trials"]),
                *_results(figure),
                _held([figure]),
            ]
            for figure in own
        ]
        head = (
            "backend",
            "fault",
            "I/O operations",
            "trials",
            *_RESULTS,
            "promise held",
        )
        if rows:
            caption = f"Kills and failing calls at level {level}"
            tables.append(Table(caption, head, rows, range(2, 9), range(1, 10), _wrong(own)))
    return tables


def _errors_together(figures: Iterable[Figure]) -> list[Figure]:
    """Return the figures, with one sum for all kinds of errors of a backend that broke no promise.

    All are of one level.
    """
    alone: list[Figure] = []
    together: dict[str, list[Figure]] = {}
    for figure in figures:
        if figure["fault"] == "error" and not figure["unexpected"]:
            together.setdefault(figure["backend"], []).append(figure)
        else:
            alone.append(figure)
    for own in together.values():
        if len(own) == 1:
            alone += own
            continue
        summed = {name: sum(figure[name] for figure in own) for name in _SUMMED}
        most = max(figure["lost_at_most"] for figure in own)
        alone.append({**own[0], **summed, "lost_at_most": most, "variant": f"in {len(own)} ways"})
    return sorted(alone, key=lambda figure: (figure["fault"], figure["variant"], figure["backend"]))


def damage_table(figures: Figures) -> Table:
    """Return the steps by which each backend detects corruption at rest, and the corruption that it does not detect."""
    own = [figure for figure in figures["effect"] if figure["fault"] == "damage"]
    rows = [
        [
            f"`{figure['backend']}`",
            figure["durability"],
            figure["variant"],
            text.exact(figure["trials"]),
            text.exact(
                figure["trials"] - figure["restored"] - figure["silent"] - figure["other"] - figure["no_verdict"]
            ),
            text.exact(figure["by_opening"]),
            text.exact(figure["by_reading"]),
            text.exact(figure["by_verifying"]),
            text.exact(figure["unverified"]),
            text.exact(figure["lost"]),
            text.exact(figure["silent"] - figure["lost"]),
            text.exact(figure["other"] + figure["no_verdict"]),
            _held([figure]),
        ]
        for figure in own
    ]
    head = (
        *("backend", "level", "damage", "trials", "harmless", "detected by opening", "by reading", "by verifying only"),
        *("of these harmful unverified", "an earlier commit, undetected", "wrong, undetected", "other", "promise held"),
    )
    return Table("Corruption at rest", head, rows, range(3, 12), (1, 2, 12), _wrong(own))


def mutant_table(figures: Figures) -> Table:
    """Return every mutant with its result, the number of states tried, and the fault that cannot detect it."""
    by_gate = {
        (figure["mutant"], figure["backend"], figure["fault"]): _of(figure["found"], figure["runs"])
        for figure in figures["detection"]
    }
    rows = [
        [
            f"`{figure['mutant']}`",
            figure["meaning"],
            f"`{figure['backend']}`",
            figure["fault"] + (f" ({figure['variant']})" if figure["variant"] else ""),
            _MUTANT.get(figure["wanted"], figure["wanted"]),
            text.NONE
            if figure["result"] == NOT_TRIED
            else _SYMPTOMS.get(figure["result"], figure["result"].replace("_", " ")),
            text.exact(figure["states"]),
            by_gate.get((figure["mutant"], figure["backend"], figure["fault"]), text.NONE),
            NOT_TRIED if figure["result"] == NOT_TRIED else "yes" if figure["expected"] else "**no**",
        ]
        for figure in figures["mutant"]
    ]
    head = (
        *("mutant", "defect", "in", "fault", "should be", "symptom", "after states"),
        *("detected by the default profile", "as expected"),
    )
    missed = [place for place, figure in enumerate(figures["mutant"]) if is_wrong(figure)]
    return Table("Mutants, all at level DISK", head, rows, (6, 7), (8,), missed)


def detection_table(figures: Figures) -> Table:
    """Return the share of runs of the default profile that detected each mutant, over all backends and seeds."""
    rows: list[list[str]] = []
    weak: list[int] = []
    for mutant in dict.fromkeys(figure["mutant"] for figure in figures["detection"]):
        own = [figure for figure in figures["detection"] if figure["mutant"] == mutant]
        found, runs = (sum(figure[name] for figure in own) for name in ("found", "runs"))
        missed = [f"`{figure['backend']}`" for figure in own if figure["found"] < figure["runs"]]
        if found < ENOUGH * runs:
            weak.append(len(rows))
        cells = (text.exact(len(own)), _of(found, runs), f"{100 * found / runs:.0f} %", ", ".join(missed) or text.NONE)
        rows.append([f"`{mutant}`", own[0]["fault"], *cells])
    head = ("mutant", "fault", "built into", "detected", "share", "missed at some seed in")
    return Table("Mutants detected by the default profile, at level DISK", head, rows, (2, 3, 4), (), weak)


def effect_tables(figures: Figures) -> list[Table]:
    """Return all tables that have rows."""
    tables = [promise_table(figures), *power_tables(figures), *process_tables(figures)]
    return [table for table in (*tables, damage_table(figures), mutant_table(figures)) if table.rows]


def left_out(figures: Figures) -> str:
    """Return a sentence with the number of points that were explored, or "" if all were."""
    explored = sum(figure["points"] for figure in figures["effect"])
    in_all = sum(max(figure["points"], figure["points_in_all"]) for figure in figures["effect"])
    if explored == in_all:
        return ""
    return f"{text.exact(explored)} of {text.exact(in_all)} points were tried, drawn by the seed."


def _wrong(figures: Sequence[Figure]) -> list[int]:
    """Return the places of the figures that fail a run."""
    return [place for place, figure in enumerate(figures) if figure["wrong"]]


def _results(figure: Figure) -> list[str]:
    """Return the cells below ``_RESULTS``."""
    counts = (figure["lost_at_most"], figure["torn"], figure["restored"], figure["other"] + figure["no_verdict"])
    return [*(text.exact(count) for count in counts), text.duration(figure["seconds"])]


def _of(found: int, runs: int) -> str:
    return f"{text.exact(found)} of {text.exact(runs)}"


def _points(figure: Figure) -> str:
    explored = text.exact(figure["points"])
    return (
        explored
        if figure["points_in_all"] <= figure["points"]
        else f"{explored} of {text.exact(figure['points_in_all'])}"
    )


def _promise(level: str, fault: str) -> str:
    if fault == "damage":
        return "the last commit, whole, or detected by opening, verifying or reading, and restored"
    demanded = demand(level, fault)
    if demanded.keeps:
        return "every acknowledged commit is there, whole"
    return "a whole commit, or detected and restored"


def _held(figures: Sequence[Figure]) -> str:
    if not any(figure["trials"] for figure in figures):
        return text.NOT_MEASURED
    broken = sum(figure["unexpected"] for figure in figures)
    if broken and not any(figure["wrong"] for figure in figures):
        return f"no: {text.exact(broken)}, reported only"
    return "yes" if not broken else f"**no: {text.exact(broken)}**"
