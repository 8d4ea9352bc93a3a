"""The files of tests that take long are begun first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from harness.folders import ROOT
from harness.tests.conftest import pytest_collection_modifyitems
from harness.tests.file_order import LONG_FILES


def test_each_long_file_exists_and_is_named_once() -> None:
    assert [name for name in LONG_FILES if not (ROOT / name).is_file()] == []
    assert len(set(LONG_FILES)) == len(LONG_FILES)


def test_long_files_come_first_and_the_tests_of_a_file_stay_in_their_order() -> None:
    def tests_of(*files: str) -> list[str]:
        return [f"{file}::test_{name}" for file in files for name in "cab"]

    collected = tests_of("stores/tests/test_b.py", LONG_FILES[2], "stores/tests/test_a.py", LONG_FILES[0])
    items: list[Any] = [SimpleNamespace(nodeid=nodeid) for nodeid in collected]
    pytest_collection_modifyitems(items)
    expected = tests_of(LONG_FILES[0], LONG_FILES[2], "stores/tests/test_b.py", "stores/tests/test_a.py")
    assert [item.nodeid for item in items] == expected
