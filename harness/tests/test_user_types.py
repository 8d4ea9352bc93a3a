"""The check of types in code of users: what it reports, and that both checkers check."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.user_types import TypeErrorAt, differences, mypy_errors, pyright_errors

CODE = """\
from stores.records import INT64, STR, KeyValue
from stores.tasks import TaskContext

COUNTS = KeyValue(key=STR, value=INT64, name="counts")


def count(context: TaskContext) -> None:
    context.store(COUNTS).put("a", 1)
    context.store(COUNTS).putt("a", 1)
    context.store(COUNTS).put("a", "1")
"""
ERRORS = [9, 10]


def test_an_error_without_a_mark_and_a_mark_without_an_error_are_differences(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text("a\nb  # error\nc\nd  # error\n")
    errors = [TypeErrorAt(file, 2, "wrong"), TypeErrorAt(file, 3, "unexpected")]
    assert differences("mypy", [file], errors) == [
        f"{file}:3: mypy: unexpected",
        f"{file}:4: mypy reports no error here",
    ]
    assert differences("mypy", [file], [TypeErrorAt(file, 2, "wrong"), TypeErrorAt(file, 4, "wrong")]) == []


@pytest.mark.long
def test_both_checkers_report_a_wrong_use_of_a_store(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text(CODE)
    assert sorted({error.line for error in mypy_errors([file])}) == ERRORS
    assert sorted({error.line for error in pyright_errors([file])}) == ERRORS


@pytest.mark.long
def test_a_file_that_is_missing_is_no_file_without_errors(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        pyright_errors([tmp_path / "missing.py"])
