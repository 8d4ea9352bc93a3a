"""The rows and facts of a run: kept as they were written, and refused where they are damaged."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness.answer.write import write_report
from harness.experiments.registry import kinds as known
from harness.report.rows import (
    latest_run,
    name_latest,
    new_run,
    read_rows,
    removed_if_refused,
    write_facts,
    write_rows,
)
from harness.tests.made_up_rows import ENVIRONMENT, FACTS, made_up_rows, run_of
from stores.errors import ConfigError


def test_rows_come_back_as_they_were_written_and_in_their_order(tmp_path: Path) -> None:
    run = new_run(tmp_path, "smoke", FACTS)
    for kind, rows in made_up_rows().items():
        assert write_rows(run, kind, rows[:3], known()) == 3
        assert write_rows(run, kind, rows[3:], known()) == len(rows) - 3
        assert [{name: row[name] for name in rows[0]} for row in read_rows(run, kind, known())] == rows


def test_the_folder_of_a_run_stays_if_it_has_rows_or_failed_in_another_way(tmp_path: Path) -> None:
    for rows, error, stays in (
        ([], ConfigError("refused"), False),
        ([], KeyError("a defect"), True),
        (made_up_rows()["crash"], ConfigError("a full disk"), True),
    ):
        run = new_run(tmp_path, "smoke", FACTS)
        with pytest.raises(type(error)), removed_if_refused(run):
            write_rows(run, "crash", rows, known())
            raise error
        assert run.exists() is stays


def test_a_row_may_have_columns_of_its_own(tmp_path: Path) -> None:
    run = new_run(tmp_path, "smoke", FACTS)
    write_rows(run, "opening", [{"backend": "a", "seed": 5}, {"backend": "b"}], known())
    assert [(row["backend"], row["seed"], row["records"]) for row in read_rows(run, "opening", known())] == [
        ("a", 5, None),
        ("b", None, None),
    ]


def test_an_unknown_kind_or_a_value_of_the_wrong_type_is_refused(tmp_path: Path) -> None:
    run = new_run(tmp_path, "smoke", FACTS)
    with pytest.raises(ConfigError):
        write_rows(run, "speed", [{"backend": "a"}], known())
    with pytest.raises(ConfigError):
        write_rows(run, "opening", [{"records": "many"}], known())
    with pytest.raises(ConfigError):
        write_rows(run, "opening", [{"records": 1 << 63}], known())
    assert read_rows(run, "opening", known()) == []


def test_rows_that_cannot_be_written_are_a_config_error(tmp_path: Path) -> None:
    run = new_run(tmp_path, "smoke", FACTS)
    (run / "opening").touch()
    with pytest.raises(ConfigError):
        write_rows(run, "opening", [{"backend": "a"}], known())


def test_latest_leads_to_the_run_named_last_and_its_lack_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        latest_run(tmp_path)
    first, second = new_run(tmp_path, "smoke", FACTS), new_run(tmp_path, "smoke", FACTS)
    assert first != second
    for run in (first, second):
        name_latest(run)
        assert latest_run(tmp_path) == run


@pytest.mark.parametrize("content", ["", "[]", "nonsense", '{"profile":', "[" * 100_000])
def test_a_run_whose_facts_are_damaged_is_a_config_error(tmp_path: Path, content: str) -> None:
    run = run_of(tmp_path)
    (run / "run.json").write_text(content)
    with pytest.raises(ConfigError):
        write_report(run, tmp_path / "results")


def test_a_damaged_file_of_rows_is_a_config_error_that_names_it(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    part = run / "crash" / "part-0000.parquet"
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(ConfigError) as refusal:
        write_report(run, tmp_path / "results")
    assert str(part) in str(refusal.value)


def test_a_file_that_was_being_written_when_its_process_died_is_no_row(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    (run / "crash" / "part-0001.new").write_bytes(b"PAR1")
    assert len(read_rows(run, "crash", known())) == len(made_up_rows()["crash"])


@pytest.mark.parametrize(
    "facts",
    [
        {**FACTS, "environment": {}},
        {**FACTS, "environment": 5},
        {"environment": ENVIRONMENT},
        {**FACTS, "environment": {name: value for name, value in ENVIRONMENT.items() if name != "backends"}},
    ],
)
def test_a_run_whose_facts_are_those_of_another_version_is_a_config_error(
    tmp_path: Path, facts: dict[str, object]
) -> None:
    run = run_of(tmp_path)
    write_facts(run, facts)
    with pytest.raises(ConfigError):
        write_report(run, tmp_path / "results")
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(("kind", "column"), [("opening", "open_s"), ("crash", "backend"), ("latency", "operation")])
def test_a_run_whose_rows_lack_a_column_is_a_config_error_that_names_it(tmp_path: Path, kind: str, column: str) -> None:
    run = run_of(tmp_path)
    [part] = (run / kind).glob("*.parquet")
    pq.write_table(pq.read_table(part, partitioning=None).drop([column]), part)
    write_facts(run, {**FACTS, "environment": ENVIRONMENT})
    with pytest.raises(ConfigError, match=f"{part.name} has no {column}"):
        write_report(run, tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_run_that_was_given_up_is_reported_as_such(tmp_path: Path) -> None:
    run = new_run(tmp_path, "smoke", {"profile": "smoke", "seed": 1})
    with pytest.raises(ConfigError):
        write_report(run, tmp_path / "results")
    assert not (tmp_path / "results").exists()
