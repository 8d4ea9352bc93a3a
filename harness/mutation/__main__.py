"""``make mutate``: draw small changes, try each in a copy of the code, and list those that nothing detects.

A change is tried by the tests nearest to its file first, then by mypy, then, if asked for, by all tests. A test that
fails with the change must pass without it, else the change is not decided.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from types import FrameType

from harness.folders import ROOT, RUNS
from harness.mutation.changes import SmallChange, drawn

DETECTED, UNDETECTED, UNDECIDED = "detected", "not detected", "not decided"
_TESTS = ("stores/tests", "harness/tests")
_FAST = "not long and not kafka and not spark"
_SLOW = "(kafka or spark) and not long"
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+\.py(?:::.+?)?)(?: - .*)?$", re.MULTILINE)
"""The ID of a test that failed. It may have spaces, in those of its cases."""
_LOOK_S = 0.1
_NO_TESTS = 5
"""pytest's exit status if no test was selected."""


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Try the changes that are drawn. Return 0 if each was detected, 1 if one was not, 2 for a mistake."""
    given = _arguments(argv)
    try:
        files = [file for pattern in given.files for file in _files(root, pattern)]
        changes = drawn(root, files, given.count, given.seed)
    except (OSError, SyntaxError, ValueError) as error:
        print(f"make mutate: {error}", file=sys.stderr)
        return 2
    print(f"{len(changes)} changes of {len(files)} files, drawn with SEED={given.seed}")
    if given.list:
        print(*changes, sep="\n")
        return 0
    outcomes: Counter[str] = Counter()
    RUNS.mkdir(exist_ok=True)
    with (RUNS / f"mutation-{given.seed}.jsonl").open("a", encoding="utf-8") as rows:
        for change, outcome, by in _tried(root, changes, given):
            outcomes[outcome] += 1
            rows.write(json.dumps({"seed": given.seed, "change": str(change), "outcome": outcome, "by": by}) + "\n")
            rows.flush()
            print(f"[{outcomes.total()} of {len(changes)}] {outcome}: {change}" + f"  ({by})" * bool(by), flush=True)
    print(", ".join(f"{outcomes[outcome]} {outcome}" for outcome in (DETECTED, UNDETECTED, UNDECIDED)))
    return 1 if outcomes[UNDETECTED] else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutate", description=__doc__)
    parser.add_argument("files", nargs="+", help="files, folders or patterns below the clone, such as stores/worker")
    parser.add_argument("--count", type=int, default=20, help="how many changes (20)")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the draw (1)")
    parser.add_argument("--jobs", type=int, default=2, help="how many are tried at a time, each in a copy (2)")
    parser.add_argument("--seconds", type=int, default=600, help="the time for the tests of one change (600)")
    parser.add_argument("--slow", action="store_true", help="also run the nearest tests on brokers and on Spark")
    parser.add_argument("--all", action="store_true", help="run all tests of make test if the nearest detect nothing")
    parser.add_argument("--list", action="store_true", help="list the changes, and try none")
    return parser.parse_args(argv)


def _files(root: Path, pattern: str) -> list[str]:
    """Return the files of code that a path or a pattern names, relative to ``root``. Raises: ValueError for none."""
    place = root / pattern
    paths = sorted(place.rglob("*.py")) if place.is_dir() else sorted(root.glob(pattern))
    files = [path.relative_to(root).as_posix() for path in paths if path.suffix == ".py"]
    files = [file for file in files if "/tests/" not in file]
    if not files:
        raise ValueError(f"{pattern!r} names no file of code below {root}")
    return files


def nearest_tests(root: Path, file: str) -> list[str]:
    """Return the test files for a file of code: those that name its module, then those of the folders like its own.

    Of the folders above, only the tests directly in them count. ``file`` and the result are paths below ``root``.
    Without any, the tests of its house.
    """
    house, *folders, name = Path(file).with_suffix("").parts
    module = ".".join((house, *folders, name)).removesuffix(".__init__")
    package, _, last = module.rpartition(".")
    naming = re.compile(rf"\b{re.escape(module)}\b|from {re.escape(package)} import [^\n]*\b{re.escape(last)}\b")
    tests = [path for folder in _TESTS for path in sorted((root / folder).rglob("test_*.py"))]
    named = [path for path in tests if naming.search(path.read_text(encoding="utf-8"))]
    mirror = root / house / "tests"
    while folders and not (mirror / Path(*folders)).is_dir():
        folders.pop()
    mirrored = [path for path in tests if path.is_relative_to(mirror / Path(*folders))] if folders else []
    while len(folders) > 1:
        folders.pop()
        mirrored += [path for path in tests if path.parent == mirror / Path(*folders)]
    chosen = dict.fromkeys([*named, *mirrored]) or [path for path in tests if path.is_relative_to(mirror)]
    return [path.relative_to(root).as_posix() for path in chosen]


def _tried(
    root: Path, changes: Sequence[SmallChange], given: argparse.Namespace
) -> Iterator[tuple[SmallChange, str, str]]:
    """Try the changes, and yield each with its outcome and what has decided it, as they come."""
    ended = Event()
    with tempfile.TemporaryDirectory(prefix="txstores-mutation-") as folder, ThreadPoolExecutor(given.jobs) as threads:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(given.jobs):
            copies.put(Copy(root, Path(folder) / str(number), given.seconds, ended))

        def outcome_of(change: SmallChange) -> tuple[SmallChange, str, str]:
            copy = copies.get()
            try:
                return change, *copy.outcome(change, slow=given.slow, whole=given.all)
            finally:
                copies.put(copy)

        try:
            yield from threads.map(outcome_of, changes)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            ended.set()


_SOUND: dict[str, bool] = {}
"""The tests that were run without a change, by their IDs: True for those that passed."""


class Copy:
    """A copy of a clone in ``folder``, in which changes are tried one after the other. ``seconds`` bounds each.

    What runs in it is killed when ``ended`` is set.
    """

    def __init__(self, root: Path, folder: Path, seconds: float, ended: Event) -> None:
        self._folder, self._seconds, self._ended = folder, seconds, ended
        listing = subprocess.run(
            ["git", "ls-files", "-z", "-c", "-o", "--exclude-standard"], cwd=root, check=True, capture_output=True
        )
        for name in filter(None, listing.stdout.decode().split("\0")):
            if (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)
        if (root / ".kafka").is_dir():
            (folder / ".kafka").symlink_to((root / ".kafka").resolve())
        if (root / ".mypy_cache").is_dir():
            shutil.copytree(root / ".mypy_cache", folder / ".mypy_cache")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / ".venv")], check=True)
        self._python = folder / ".venv" / "bin" / "python"
        purelib = sysconfig.get_path("purelib", vars={"base": str(folder / ".venv")})
        # The copy goes before the clone, which an editable installation names.
        (Path(purelib) / "copy.pth").write_text(
            f"{folder}\nimport site; site.addsitedir({sysconfig.get_path('purelib')!r})\n", encoding="utf-8"
        )

    def outcome(self, change: SmallChange, *, slow: bool, whole: bool) -> tuple[str, str]:
        """Return whether the change is detected, and by what."""
        file = self._folder / change.file
        source = file.read_bytes()
        deadline = time.monotonic() + self._seconds
        tests = nearest_tests(self._folder, change.file)
        stages = [(_FAST, tests), *([(_SLOW, tests)] if slow else [])]
        try:
            file.write_bytes(change.applied(source))
            for markers, chosen in stages:
                if decided := self._by_tests(file, source, change, chosen, markers, deadline):
                    return decided
            if self._run(["-m", "mypy"], max(deadline - time.monotonic(), 300)) == 1:
                return DETECTED, "mypy"
            if whole and (decided := self._by_tests(file, source, change, _TESTS, _FAST, deadline + 1800)):
                return decided
            return UNDETECTED, ""
        finally:
            file.write_bytes(source)

    def _by_tests(
        self, file: Path, source: bytes, change: SmallChange, tests: Sequence[str], markers: str, deadline: float
    ) -> tuple[str, str] | None:
        log = self._folder / "log.txt"
        options = ["-q", "-x", "-n0", "--timeout", "120", "-m", markers, "-p", "no:cacheprovider"]
        status = self._run(["-m", "pytest", *options, *tests], deadline - time.monotonic(), log)
        if status in (0, _NO_TESTS):
            return None
        if status is None:
            return UNDECIDED, f"no end within {self._seconds} s"
        failed = _FAILED.findall(log.read_text(encoding="utf-8", errors="replace"))
        if not failed:  # The tests could not even be collected, or the process died.
            return DETECTED, f"pytest, status {status}"
        file.write_bytes(source)
        sound = self._passes(failed[0])
        file.write_bytes(change.applied(source))
        return (DETECTED if sound else UNDECIDED), failed[0]

    def _passes(self, test: str) -> bool:
        """Return True if ``test`` passes without a change."""
        if test not in _SOUND:
            _SOUND[test] = self._run(["-m", "pytest", "-q", "-n0", "-m", "", test], self._seconds) == 0
        return _SOUND[test]

    def _run(self, arguments: Sequence[str], seconds: float, log: Path | None = None) -> int | None:
        """Return the exit status of Python with these arguments, None if it was killed: it takes longer, or all end."""
        ends = time.monotonic() + max(seconds, 1)
        with (log or Path(os.devnull)).open("wb") as output:
            process = subprocess.Popen(
                [self._python, *arguments], cwd=self._folder, stdout=output, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            try:
                while (status := process.poll()) is None and time.monotonic() < ends:
                    if self._ended.wait(_LOOK_S):
                        break
                return status
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # Its children, too.
                process.wait()


def _end(number: int, frame: FrameType | None) -> None:
    """End this process in order: the tests that run are killed, and the copies removed."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _end)
    raise SystemExit(main())
