"""A terminal gets a table without Markdown's marks, and what all of its lines say only once."""

from __future__ import annotations

from harness.report.page import ROWS_SHOWN, TextTable

TABLE = TextTable(
    "Level `DISK`",
    ("backend", "model", "torn", "held"),
    [["`lmdb`", "gate", "0", "yes"], ["`sqlite`", "gate", "12", "yes"]],
    right=(2,),
    shown_once=(1, 2, 3),
)


def test_a_value_that_all_lines_share_follows_below_a_terminals_table() -> None:
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


def long_table(notable: tuple[int, ...] = ()) -> TextTable:
    rows = [[f"`{number}`", "gate", str(number), "yes"] for number in range(ROWS_SHOWN + 1)]
    return TABLE._replace(rows=rows, notable=notable)


def test_a_long_table_is_folded_below_a_caption_that_is_html_and_a_short_one_is_not() -> None:
    lines = long_table().folded().splitlines()
    assert lines[:3] == ["<details>", f"<summary>Level <code>DISK</code>: {ROWS_SHOWN + 1} rows</summary>", ""]
    # Without a blank line around it no table is seen to be one.
    assert (lines[3], lines[-2:]) == ("| backend | model | torn | held |", ["", "</details>"])
    assert sum(line.startswith("| `") for line in lines) == ROWS_SHOWN + 1
    assert TABLE.folded() == TABLE.markdown()


def test_notable_rows_of_a_folded_table_stay_visible() -> None:
    shown, _, folded = long_table(notable=(2, ROWS_SHOWN)).folded().partition("<details>")
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("| `")] == ["`2`", f"`{ROWS_SHOWN}`"]
    assert sum(line.startswith("| `") for line in folded.splitlines()) == ROWS_SHOWN + 1
