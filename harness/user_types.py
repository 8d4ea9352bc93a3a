"""``python -m harness.user_types``: check code of users as an editor does, by mypy and by pyright, both of them strict.

The library counts as installed, so that pyright takes its types from declarations alone. The examples have no error. In
``docs/wrong_types.py`` each line with the comment ``# error`` has one, and no other line has.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from harness.folders import PREFIX, ROOT

LINT_PYTHON = ROOT / ".venv-lint" / "bin" / "python"
"""The Python with the checkers, which ``make lint`` sets up. They read the packages of the Python that runs this."""
EXAMPLES = Path("docs/examples")
WRONG = Path("docs/wrong_types.py")
_MARK = re.compile(r"# error$")
_MYPY_ERROR = re.compile(r"^(.+?):(\d+): error: (.*)$", re.MULTILINE)


class TypeErrorAt(NamedTuple):
    """An error that a checker of types has reported."""

    file: Path
    line: int
    what: str


def marked_lines(file: Path) -> set[int]:
    """Return the numbers of the lines of ``file`` that must have an error."""
    return {number for number, line in enumerate(file.read_text().splitlines(), 1) if _MARK.search(line)}


def differences(checker: str, files: Iterable[Path], errors: Iterable[TypeErrorAt]) -> list[str]:
    """Return a line of text for each error at a line without a mark, and for each mark at a line without an error."""
    by_place = {(error.file.resolve(), error.line): error.what for error in errors}
    marked = {(file.resolve(), line) for file in files for line in marked_lines(file)}
    return [
        *(f"{file}:{line}: {checker}: {by_place[file, line]}" for file, line in sorted(by_place.keys() - marked)),
        *(f"{file}:{line}: {checker} reports no error here" for file, line in sorted(marked - by_place.keys())),
    ]


def mypy_errors(files: Sequence[Path]) -> list[TypeErrorAt]:
    """Return the errors of mypy. Raises: RuntimeError if it can't check."""
    output = _output(
        ROOT,
        "mypy",
        "--strict",
        "--python-executable",
        sys.executable,
        "--cache-dir",
        ".mypy_cache/users",
        "--no-error-summary",
        *files,
    )
    return [TypeErrorAt(ROOT / file, int(line), what) for file, line, what in _MYPY_ERROR.findall(output)]


def pyright_errors(files: Sequence[Path]) -> list[TypeErrorAt]:
    """Return the errors of pyright. Raises: RuntimeError if it can't check."""
    settings = {"typeCheckingMode": "strict", "pythonVersion": "3.11"}
    with TemporaryDirectory(prefix=PREFIX) as folder:
        Path(folder, "pyrightconfig.json").write_text(json.dumps(settings))
        output = _output(Path(folder), "pyright", "--outputjson", "--pythonpath", sys.executable, *files)
    report = json.loads(output)
    if report["summary"]["filesAnalyzed"] != len(files):
        raise RuntimeError(f"pyright checked {report['summary']['filesAnalyzed']} of {len(files)} files: {output}")
    return [
        TypeErrorAt(Path(each["file"]), each["range"]["start"]["line"] + 1, each["message"].splitlines()[0])
        for each in report["generalDiagnostics"]
        if each["severity"] == "error"
    ]


def _output(folder: Path, checker: str, *arguments: str | Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    if not LINT_PYTHON.exists():
        raise RuntimeError(f"there is no {LINT_PYTHON}: run make lint, which sets it up")
    command = [str(LINT_PYTHON), "-m", checker, *map(str, arguments)]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode not in (0, 1) or (not ended.stdout and ended.stderr):
        raise RuntimeError(f"{checker} ended with status {ended.returncode}: {ended.stderr or ended.stdout}")
    return ended.stdout


def main() -> int:
    """Check, and print what differs. Return 1 if something does."""
    files = [ROOT / WRONG, *sorted((ROOT / EXAMPLES).rglob("*.py"))]
    lines = differences("mypy", files, mypy_errors(files)) + differences("pyright", files, pyright_errors(files))
    print("\n".join(lines) or f"Types of users: {len(files)} files are as they must be.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
