"""The SQLite file of a run has its rows and figures with their types, and the documented queries work on it."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from harness.answer.results import all_figures
from harness.experiments.registry import kinds
from harness.folders import ROOT
from harness.report.database import DATABASE_FILE, query, write_database
from harness.report.rows import new_run
from harness.tests.made_up_rows import FACTS, made_up_rows
from stores.errors import ConfigError

SECTION = (ROOT / "docs/harness.md").read_text().split("## Rows as a database\n")[1].split("\n## ")[0]
QUERIES = re.findall(r"```sql\n(.*?)```", SECTION, re.DOTALL)
FIGURES = all_figures(made_up_rows())
MEDIAN = """select records_per_s, repeats from throughput_figure
    where backend = ? and durability = ? and records_per_commit = ?"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with its rows."""
    folder = new_run(tmp_path_factory.mktemp("runs"), "smoke", FACTS)
    write_database(folder, kinds(), made_up_rows(), FIGURES)
    return folder


def answer(run: Path, query: str, *values: object) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(run / DATABASE_FILE)) as connection:
        return connection.execute(query, values).fetchall()


def test_every_kind_has_a_table_with_its_rows_in_their_order(run: Path) -> None:
    for kind, rows in made_up_rows().items():
        names = [name for name in rows[0] if name != "kind"]
        columns = ", ".join(f'"{name}"' for name in names)
        assert answer(run, f"select {columns} from {kind} order by rowid") == [
            tuple(row[name] for name in names) for row in rows
        ]


def test_columns_have_the_types_that_the_experiment_declares(run: Path) -> None:
    types = {name: type_ for _, name, type_, *_ in answer(run, "pragma table_info(throughput)")}
    assert (types["backend"], types["records"], types["records_per_s"]) == ("TEXT", "INTEGER", "REAL")
    plan = " ".join(map(str, answer(run, "explain query plan select * from throughput where backend = 'a'")))
    assert "USING INDEX" in plan


def test_the_figures_of_throughput_are_the_medians_of_the_rows(run: Path) -> None:
    cell = ("lmdb-indexed-batch", "DISK", 100)
    speeds = [
        row["records_per_s"]
        for row in made_up_rows()["throughput"]
        if (row["backend"], row["durability"], row["records_per_commit"]) == cell
    ]
    assert answer(run, MEDIAN, *cell) == [(pytest.approx(median(speeds)), 5)]


def test_a_trial_is_as_bad_as_the_worst_of_its_checkers(run: Path) -> None:
    assert len(answer(run, "select * from crash_trial")) == 47
    assert answer(run, "select backend, result from crash_trial where result <> 'valid' and expected = 'valid'") == [
        ("sqlite-indexed-batch", "anomaly")
    ]


def test_a_page_asks_the_figures_that_the_file_has(run: Path) -> None:
    sql = "select backend, records, ready_s, ready_s_from from opening_figure order by ready_s, backend"
    assert [tuple(line.values()) for line in query(FIGURES, sql)] == answer(run, sql)


def test_a_query_over_figures_that_were_not_measured_has_no_lines() -> None:
    both = "select count(*) as lines from throughput_figure, scale_figure"
    assert query({**FIGURES, "scale": []}, both) == []
    assert query(FIGURES, both)[0]["lines"] > 0


@pytest.mark.parametrize("sql", QUERIES)
def test_a_documented_query_has_an_answer(run: Path, sql: str) -> None:
    assert answer(run, sql)


def test_five_queries_are_documented() -> None:
    assert len(QUERIES) == 5


def test_a_second_database_replaces_the_first_and_leaves_no_other_file(run: Path) -> None:
    before = {file.name for file in run.iterdir()}
    write_database(run, kinds(), made_up_rows(), FIGURES)
    assert {file.name for file in run.iterdir()} == before


def test_a_folder_that_cannot_hold_the_file_is_a_config_error(run: Path) -> None:
    (run / DATABASE_FILE).unlink()
    (run / DATABASE_FILE / "full").mkdir(parents=True)
    with pytest.raises(ConfigError):
        write_database(run, kinds(), {}, {})


def test_a_run_without_rows_has_a_database_without_tables(tmp_path: Path) -> None:
    run = new_run(tmp_path, "smoke", FACTS)
    write_database(run, kinds(), {}, all_figures({}))
    assert answer(run, "select name from sqlite_master") == []
