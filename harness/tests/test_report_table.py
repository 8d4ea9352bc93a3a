"""A terminal gets a table without Markdown's marks, and what all of its lines say only once."""

from __future__ import annotations

from harness.report.table import Table

TABLE = Table(
    "Level `DISK`",
    ("backend", "model", "torn", "held"),
    [["`lmdb`", "gate", "0", "yes"], ["`sqlite`", "gate", "12", "yes"]],
    right=(2,),
    told_once=(1, 2, 3),
)


def test_what_every_line_says_is_told_below_a_terminals_table() -> None:
    assert TABLE.plain().splitlines() == [
        "Level DISK:",
        "backend  torn",
        "lmdb        0",
        "sqlite     12",
        "In every line: model: gate, held: yes.",
    ]
    assert "| `lmdb` | gate | 0 | yes |" in TABLE.markdown()


def test_a_line_that_differs_keeps_its_column() -> None:
    broken = TABLE._replace(rows=[*TABLE.rows, ["`memory`", "gate", "3", "**no: 3**"]])
    assert broken.plain().splitlines()[4:] == ["memory      3  no: 3", "In every line: model: gate."]


def test_a_table_of_one_line_is_shown_whole() -> None:
    assert TABLE._replace(rows=TABLE.rows[:1]).plain().splitlines()[1:] == [
        "backend  model  torn  held",
        "lmdb     gate      0  yes",
    ]
