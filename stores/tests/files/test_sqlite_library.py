"""One place chooses the SQLite of all files, and both libraries behave alike there."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from stores.files.sqlite_library import NAMES, VARIABLE

INSTALLED = [name for name in NAMES if find_spec(name) is not None]
USED = """
import sys
from pathlib import Path
from stores.files import sqlite_library as library
connection = library.connect(Path(sys.argv[1]) / "a b%20#?", timeout_s=0.01)
library.run_script(connection, "create table t (a integer primary key, b text); insert into t values (1, 'x')")
connection.execute("delete from t")
print(library.NAME, library.VERSION_NUMBER >= 3_051_003, library.changes(connection))
def name(statement, on=connection):
    try:
        on.execute(statement).fetchall()
    except library.Error as error:
        return library.error_name(error) or type(error).__name__
connection.execute("begin immediate")
connection.execute("insert into t values (1, 'x')")
other = library.connect(Path(sys.argv[1]) / "a b%20#?", timeout_s=0.01)
print(name("insert into t values (1, 'x')"), name("begin immediate", other))
library.roll_back(connection)
library.roll_back(connection)
reader = library.connect(Path(sys.argv[1]) / "a b%20#?", library.READ_ONLY)
print(reader.execute("select count(*) from t").fetchone(), name("insert into t values (1, 'x')", reader))
copy = library.connect(Path(sys.argv[1]) / "copy")
library.copy_whole(connection, copy)
print(copy.execute("select name from sqlite_schema").fetchall())
for opened in (copy, reader, other, connection):
    opened.close()
"""


def run(code: str, *arguments: str, library: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), VARIABLE: library}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize("name", NAMES)
def test_each_library_gives_the_same_answers(tmp_path: Path, name: str) -> None:
    if name not in INSTALLED:
        pytest.skip("apsw is not installed: it is the extra sqlite, and .ci/run tests with it")
    process = run(USED, str(tmp_path), library=name)
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    assert lines[0].split()[::2] == [name, "1"]
    assert lines[1:] == [
        "SQLITE_CONSTRAINT_PRIMARYKEY SQLITE_BUSY",
        "(0,) SQLITE_READONLY",
        "[('t',)]",
    ]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a b%20#?", "copy"]


def test_the_newer_library_is_taken_where_it_is_installed() -> None:
    process = run("from stores.files.sqlite_library import NAME; print(NAME)", library="")
    assert process.stdout.strip() == INSTALLED[0]


def test_another_name_is_refused() -> None:
    process = run("import stores.files.sqlite_library", library="sqlite4")
    assert process.returncode == 1
    assert "TXSTORES_SQLITE is 'sqlite4'" in process.stderr.splitlines()[-1]
