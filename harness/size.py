"""``make size``: the lines and modules of code and of tests by folder, and what a range of commits changed."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from harness.folders import ROOT

HOUSES = ("stores", "harness", "scenarios")
_COLUMNS = ("modules", "lines", "change", "test modules", "test lines", "change")


@dataclass
class Size:
    """The modules and lines of one folder, by kind: of code (False) and of tests (True)."""

    modules: Counter[bool] = field(default_factory=Counter)
    lines: Counter[bool] = field(default_factory=Counter)
    changed: Counter[bool] = field(default_factory=Counter)
    """The lines that a commit range added, less those that it removed."""

    def add(self, other: Size) -> None:
        """Add what another folder has."""
        self.modules.update(other.modules)
        self.lines.update(other.lines)
        self.changed.update(other.changed)

    def cells(self, *, has_range: bool) -> list[str]:
        """Return the cells of a row, code first."""
        return [
            text
            for kind in (False, True)
            for text in (
                f"{self.modules[kind]:,}",
                f"{self.lines[kind]:,}",
                f"{self.changed[kind]:+,}" if has_range else "",
            )
        ]


def folder_of(path: str) -> tuple[str, bool]:
    """Return the folder under which a module is counted, and whether it is a test."""
    parts = PurePosixPath(path).parts
    is_test = "tests" in parts[:-1]
    parts = tuple(part for part in parts if part != "tests")
    deep = parts[0] == "harness" and parts[1] == "experiments"
    return "/".join(parts[: min(len(parts) - 1, 3 if deep else 2)]), is_test


def sizes(root: Path, commits: str = "") -> dict[str, Size]:
    """Return the size of each folder of the clone ``root``, and what ``commits``, such as ``v1..main``, changed in it.

    Raises: ValueError if git does not know the commits.
    """
    folders: defaultdict[str, Size] = defaultdict(Size)
    for path in _git(root, "ls-files", "-z", "--", *(f"{house}/*.py" for house in HOUSES)).split("\0"):
        if path and (root / path).is_file():
            folder, is_test = folder_of(path)
            folders[folder].modules[is_test] += 1
            folders[folder].lines[is_test] += (root / path).read_bytes().count(b"\n")
    for path, difference in _changes(root, commits) if commits else ():
        folder, is_test = folder_of(path)
        folders[folder].changed[is_test] += difference
    return dict(sorted(folders.items()))


def _changes(root: Path, commits: str) -> Iterator[tuple[str, int]]:
    """Yield each module that the commits changed, with its lines added less its lines removed."""
    houses = (f"{house}/*.py" for house in HOUSES)
    for line in _git(root, "diff", "--numstat", "--no-renames", commits, "--", *houses).splitlines():
        added, removed, path = line.split("\t")
        yield path, int(added) - int(removed)


def _git(root: Path, *arguments: str) -> str:
    process = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if process.returncode:
        raise ValueError(process.stderr.strip())
    return process.stdout


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Print the table. Return 2 for commits that do not exist."""
    parser = argparse.ArgumentParser(prog="make size", description=__doc__)
    parser.add_argument("--range", default="", metavar="A..B", help="commits whose changes are counted as well")
    arguments = parser.parse_args(argv)
    try:
        folders = sizes(root, arguments.range)
    except (OSError, ValueError) as error:
        print(f"make size: {error}", file=sys.stderr)
        return 2
    rows = []
    for house in HOUSES:
        total = Size()
        for folder, size in folders.items():
            if folder.split("/")[0] == house:
                total.add(size)
                rows.append((folder, size))
        rows.append((f"{house}, whole", total))
    whole = Size()
    for name, size in rows:
        if name.endswith(", whole"):
            whole.add(size)
    rows.append(("all", whole))
    for name, cells in [
        ("folder", _COLUMNS),
        *((name, size.cells(has_range=bool(arguments.range))) for name, size in rows),
    ]:
        print(f"{name:36}" + "".join(f"{cell:>14}" for cell in cells).rstrip())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
