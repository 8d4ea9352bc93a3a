"""The files of tests that take long are begun first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness.folders import ROOT
from harness.tests.file_order import LONG_FILES


def test_each_long_file_exists_and_is_named_once() -> None:
    assert [name for name in LONG_FILES if not (ROOT / name).is_file()] == []
    assert len(set(LONG_FILES)) == len(LONG_FILES)


def test_long_files_come_first_and_the_tests_of_a_file_stay_in_their_order() -> None:
    short = Path(__file__).relative_to(ROOT).as_posix()
    longer, long = LONG_FILES[0], LONG_FILES[2]

    def collected(*files: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
        return [line for line in done.stdout.splitlines() if "::" in line]

    alone = [collected(file) for file in (longer, long, short)]
    assert collected(short, long, longer) == [name for names in alone for name in names]
