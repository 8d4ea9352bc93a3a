"""The tables of a report about faults below the process. Each names its durability level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.checkers.prefix import demand
from harness.report import text
from harness.report.effect_figures import Figure
from harness.report.table import Table

Figures = Mapping[str, Sequence[Figure]]

LEVELS = ("DISK", "PROCESS", "CHANGELOG")
_WORDS: Mapping[str, str] = {
    "kill": "killed before each effect",
    "tear": "killed inside a write",
    "kill_twice": "killed, and again in its recovery",
    "error": "a call fails",
    "power": "power lost",
    "power_twice": "power lost, and again in its recovery",
    "damage": "damaged at rest",
}
_POWER = ("power", "power_twice")
REPORTED_ONLY = ("strict", "beyond")
"""Variants of power loss that are no part of the gate's model."""


def promise_table(figures: Figures) -> Table:
    """What each level promises after each fault, and whether that held."""
    rows = []
    for level in LEVELS:
        for fault, words in _WORDS.items():
            own = [
                figure
                for figure in figures["effect"]
                if (figure["durability"], figure["fault"]) == (level, fault) and figure["variant"] not in REPORTED_ONLY
            ]
            if own and fault != "damage":
                rows.append(
                    [
                        level,
                        words,
                        _promise(level, "power" if fault in _POWER else "error" if fault == "error" else "kill"),
                        text.exact(len({figure["backend"] for figure in own})),
                        text.exact(sum(figure["distinct"] for figure in own)),
                        _held(own),
                    ]
                )
    head = ("level", "fault", "what is promised then", "backends and files", "distinct states", "held")
    return Table("What was promised, and whether it held", head, rows, (3, 4))


def power_tables(figures: Figures) -> list[Table]:
    """Power loss, one table per level: a line per backend and folder model."""
    tables = []
    for level in LEVELS:
        rows = [
            [
                f"`{figure['backend']}`",
                figure["variant"] + (", twice" if figure["fault"] == "power_twice" else ""),
                text.exact(figure["points"]),
                text.exact(figure["states"]),
                text.exact(figure["distinct"]),
                text.exact(figure["lost_at_most"]),
                text.exact(figure["torn"]),
                text.exact(figure["restored"]),
                text.exact(figure["other"] + figure["no_verdict"]),
                text.duration(figure["seconds"]),
                f"`{figure['blind_spots']}`" if figure["blind_spots"] else text.NONE,
                _held([figure]),
            ]
            for figure in figures["effect"]
            if figure["durability"] == level and figure["fault"] in _POWER
        ]
        head = (
            "backend",
            "model",
            "positions",
            "states",
            "distinct",
            "commits lost at most",
            "torn",
            "noticed and restored",
            "other",
            "time of a core",
            "written unseen",
            "promise held",
        )
        if rows:
            tables.append(Table(f"Power loss at level {level}", head, rows, range(2, 10)))
    return tables


def process_tables(figures: Figures) -> list[Table]:
    """Kills and failing calls, one table per level."""
    tables = []
    for level in LEVELS:
        rows = [
            [
                f"`{figure['backend']}`",
                f"{_WORDS[figure['fault']]}{': ' if figure['variant'] else ''}{figure['variant']}",
                text.exact(figure["points"]),
                text.exact(figure["trials"]),
                text.exact(figure["lost_at_most"]),
                text.exact(figure["torn"]),
                text.exact(figure["restored"]),
                text.exact(figure["other"] + figure["no_verdict"]),
                text.duration(figure["seconds"]),
                _held([figure]),
            ]
            for figure in figures["effect"]
            if figure["durability"] == level and figure["fault"] not in (*_POWER, "damage")
        ]
        head = (
            "backend",
            "fault",
            "effects",
            "trials",
            "commits lost at most",
            "torn",
            "noticed and restored",
            "other",
            "time of a core",
            "promise held",
        )
        if rows:
            tables.append(Table(f"Kills and failing calls at level {level}", head, rows, range(2, 9)))
    return tables


def damage_table(figures: Figures) -> Table:
    """Which backend notices which damage at rest."""
    rows = [
        [
            f"`{figure['backend']}`",
            figure["durability"],
            figure["variant"],
            text.exact(figure["trials"]),
            text.exact(
                figure["trials"] - figure["restored"] - figure["silent"] - figure["other"] - figure["no_verdict"]
            ),
            text.exact(figure["restored"]),
            text.exact(figure["silent"]),
            text.exact(figure["other"] + figure["no_verdict"]),
        ]
        for figure in figures["effect"]
        if figure["fault"] == "damage"
    ]
    head = ("backend", "level", "damage", "trials", "harmless", "noticed and restored", "wrong, unnoticed", "other")
    return Table("Damage at rest", head, rows, range(3, 8))


def mutant_table(figures: Figures) -> Table:
    """Every defect built in on purpose: what found it, after how many states, and what can't see it."""
    rows = [
        [
            f"`{figure['mutant']}`",
            figure["meaning"],
            f"`{figure['backend']}`",
            figure["fault"] + (f" ({figure['variant']})" if figure["variant"] else ""),
            figure["wanted"],
            figure["result"].replace("_", " ") or "not seen",
            text.exact(figure["states"]),
            "yes" if figure["expected"] else "**no**",
        ]
        for figure in figures["mutant"]
    ]
    head = ("mutant", "defect", "in", "fault", "should be", "is", "after states", "as it should be")
    return Table("Defects built in on purpose, all at level DISK", head, rows, (6,))


def effect_tables(figures: Figures) -> list[Table]:
    """All of them that have something to tell."""
    tables = [promise_table(figures), *power_tables(figures), *process_tables(figures)]
    return [table for table in (*tables, damage_table(figures), mutant_table(figures)) if table.rows]


def _promise(level: str, fault: str) -> str:
    demanded = demand(level, fault)
    if demanded.keeps:
        return "every acknowledged commit is there, whole"
    return "a whole commit, or noticed and restored"


def _held(figures: Sequence[Figure]) -> str:
    wrong = sum(figure["unexpected"] for figure in figures)
    return "yes" if not wrong else f"**no: {text.exact(wrong)}**"
