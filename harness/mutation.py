"""``make mutate``: draw small changes, try each in a copy of the code, and list those that nothing detects.

A change is tried by the tests nearest to its file first, then by mypy, then, if asked for, by all tests. A test that
fails with the change must pass without it, else the change is not decided.

A change is one edit of the source text: a statement left out, a condition turned round, a bound moved by one. Messages,
annotations, docstrings and assertions are never changed, because no test should notice that.
Source: DeMillo, Lipton and Sayward, "Hints on Test Data Selection", 1978.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from types import FrameType
from typing import Any

from harness.folders import ROOT, RUNS
from harness.user_types import LINT_PYTHON

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
    arguments = _arguments(argv)
    try:
        files = [file for pattern in arguments.files for file in _files(root, pattern)]
        changes = drawn(root, files, arguments.count, arguments.seed)
    except (OSError, SyntaxError, ValueError) as error:
        print(f"make mutate: {error}", file=sys.stderr)
        return 2
    print(f"{len(changes)} changes of {len(files)} files, drawn with SEED={arguments.seed}")
    if arguments.list:
        print(*changes, sep="\n")
        return 0
    outcomes: Counter[str] = Counter()
    RUNS.mkdir(exist_ok=True)
    with (RUNS / f"mutation-{arguments.seed}.jsonl").open("a", encoding="utf-8") as rows:
        for change, outcome, by in _tried(root, changes, arguments):
            outcomes[outcome] += 1
            rows.write(json.dumps({"seed": arguments.seed, "change": str(change), "outcome": outcome, "by": by}) + "\n")
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
    naming_tests = [path for path in tests if naming.search(path.read_text(encoding="utf-8"))]
    mirror = root / house / "tests"
    while folders and not (mirror / Path(*folders)).is_dir():
        folders.pop()
    mirrored = [path for path in tests if path.is_relative_to(mirror / Path(*folders))] if folders else []
    while len(folders) > 1:
        folders.pop()
        mirrored += [path for path in tests if path.parent == mirror / Path(*folders)]
    chosen = dict.fromkeys([*naming_tests, *mirrored]) or [path for path in tests if path.is_relative_to(mirror)]
    return [path.relative_to(root).as_posix() for path in chosen]


def _tried(
    root: Path, changes: Sequence[SmallChange], args: argparse.Namespace
) -> Iterator[tuple[SmallChange, str, str]]:
    """Try the changes, and yield each with its outcome and what has decided it, as they come."""
    end = Event()
    with tempfile.TemporaryDirectory(prefix="txstores-mutation-") as folder, ThreadPoolExecutor(args.jobs) as threads:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(args.jobs):
            copies.put(Copy(root, Path(folder) / str(number), args.seconds, end))

        def outcome_of(change: SmallChange) -> tuple[SmallChange, str, str]:
            copy = copies.get()
            try:
                return change, *copy.outcome(change, slow=args.slow, whole=args.all)
            finally:
                copies.put(copy)

        try:
            yield from threads.map(outcome_of, changes)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            end.set()


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
            for markers, files in stages:
                if decided := self._by_tests(file, source, change, files, markers, deadline):
                    return decided
            mypy = ["-m", "mypy", "--python-executable", str(self._python)]
            if self._run(mypy, max(deadline - time.monotonic(), 300), python=LINT_PYTHON) == 1:
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
        failures = _FAILED.findall(log.read_text(encoding="utf-8", errors="replace"))
        if not failures:  # The tests could not even be collected, or the process died.
            return DETECTED, f"pytest, status {status}"
        file.write_bytes(source)
        sound = self._passes(failures[0])
        file.write_bytes(change.applied(source))
        return (DETECTED if sound else UNDECIDED), failures[0]

    def _passes(self, test: str) -> bool:
        """Return True if ``test`` passes without a change."""
        if test not in _SOUND:
            _SOUND[test] = self._run(["-m", "pytest", "-q", "-n0", "-m", "", test], self._seconds) == 0
        return _SOUND[test]

    def _run(
        self, arguments: Sequence[str], seconds: float, log: Path | None = None, python: Path | None = None
    ) -> int | None:
        """Return the exit status of Python with these arguments, None if it was killed: it takes longer, or all end."""
        ends = time.monotonic() + max(seconds, 1)
        with (log or Path(os.devnull)).open("wb") as output:
            process = subprocess.Popen(
                [python or self._python, *arguments], cwd=self._folder, stdout=output, stderr=subprocess.STDOUT,
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


_OTHERS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
"""The text of each operator, and of the one that takes its place."""
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LOGGERS = frozenset({"debug", "info", "warning", "error", "exception", "log", "warn"})
_UNTOUCHED = frozenset({"__repr__", "__str__"})


@dataclass(frozen=True, order=True)
class SmallChange:
    """One edit: the bytes of ``file`` from ``start`` to ``end`` become ``text``. ``what`` says it in words."""

    file: str
    line: int
    start: int
    end: int
    text: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"

    def applied(self, source: bytes) -> bytes:
        """Return ``source`` with the change."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def drawn(root: Path, files: Sequence[str], count: int, seed: int) -> list[SmallChange]:
    """Return ``count`` changes of ``files``, paths below ``root``, or all that there are.

    Each line that allows a change is as likely as any other; of its changes each is as likely. The same files and seed
    give the same changes. Raises: OSError, SyntaxError for a file that is not there or is not Python.
    """
    by_line: defaultdict[tuple[str, int], list[SmallChange]] = defaultdict(list)
    for file in sorted(set(files)):
        for change in changes_of(file, (root / file).read_bytes()):
            by_line[file, change.line].append(change)
    draw = random.Random(seed)
    lines = sorted(by_line)
    draw.shuffle(lines)
    valid = (_valid_change(root / file, by_line[file, line], draw) for file, line in lines)
    return list(islice(filter(None, valid), count))


def changes_of(file: str, source: bytes) -> list[SmallChange]:
    """Return every change of one file. Of some the result is not valid Python. Raises: SyntaxError."""
    text = _Text(file, source)
    return [change for node in _changeable(ast.parse(source)) for change in text.changes(node)]


def _valid_change(path: Path, changes: list[SmallChange], draw: random.Random) -> SmallChange | None:
    """Return one of the changes whose result is valid Python, None if none is."""
    source = path.read_bytes()
    changes = sorted(changes)
    draw.shuffle(changes)
    return next((change for change in changes if _is_valid(change.applied(source))), None)


def _is_valid(source: bytes) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _changeable(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those below it that may be changed."""
    yield node
    parts: Iterable[ast.AST | None] = ast.iter_child_nodes(node)
    match node:
        case ast.FunctionDef(name=name, args=arguments, body=body):
            parts = () if name in _UNTOUCHED else (*arguments.defaults, *arguments.kw_defaults, *body)
        case ast.AnnAssign(value=value) | ast.Assign(value=value) | ast.AugAssign(value=value):
            parts = (value,)
        case ast.Return(value=ast.Constant(value=None)) | ast.Expr(value=ast.Constant()):
            parts = ()
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name))) if name in _LOGGERS:
            parts = ()
        case ast.Assert() | ast.JoinedStr() | ast.Raise() | ast.Delete() | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            parts = ()
    for part in filter(None, parts):
        yield from _changeable(part)


class _Text:
    """The source of one file, and the changes of its nodes."""

    def __init__(self, file: str, source: bytes) -> None:
        self._file, self._source = file, source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def changes(self, node: ast.AST) -> Iterator[SmallChange]:
        """Yield the changes of one node, without those of its parts."""
        match node:
            case ast.Expr(value=ast.Constant()) | ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass
            case ast.Expr() | ast.Raise() | ast.AugAssign() | ast.Delete() | ast.Break() | ast.Continue():
                yield self._left_out(node)
            case ast.Assign(targets=targets):
                if any(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
                    yield self._left_out(node)
            case ast.Return(value=None):
                yield self._left_out(node)
            case ast.Return(value=ast.expr() as value):
                if not (isinstance(value, ast.Constant) and value.value is None):
                    yield self._instead(value, "None")
            case ast.If(test=test) | ast.IfExp(test=test):
                yield self._replaced(test, f"(not ({self._text(test)}))", f"turned round: {self._first_line(test)}")
            case ast.Try(handlers=handlers):
                for handler in handlers:
                    if not isinstance(handler.body[0], ast.Raise):
                        yield self._replaced(handler.body[0], "raise", "raised again, not handled")
            case ast.comprehension(ifs=tests):
                for test in tests:
                    yield self._replaced(test, "True", f"no filter: {self._first_line(test)}")
            case _:
                yield from self._of_expression(node)

    def _of_expression(self, node: ast.AST) -> Iterator[SmallChange]:
        match node:
            case ast.Compare(left=left, ops=operators, comparators=others):
                for operator, before, after in zip(operators, [left, *others], others, strict=False):
                    yield from self._swapped(before, after, operator)
            case ast.BoolOp(op=operator, values=values):
                for before, after in pairwise(values):
                    yield from self._swapped(before, after, operator)
                for value in values:
                    yield self._instead(value, str(isinstance(operator, ast.And)))
            case ast.BinOp(left=left, op=operator, right=right):
                if type(operator) in _OTHERS and not (_is_text(left) or _is_text(right)):
                    yield from self._swapped(left, right, operator)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self._replaced(node, f"bool({self._text(operand)})", f"without not: {self._first_line(node)}")
            case ast.Call(func=function, keywords=keywords):
                if isinstance(function, ast.Name) and function.id in _NAMES:
                    yield self._instead(function, _NAMES[function.id])
                yield from (self._without(keyword) for keyword in keywords if keyword.arg is not None)
            case ast.Constant(value=bool() as value):
                yield self._instead(node, str(not value))
            case ast.Constant(value=int()):
                yield self._replaced(node, f"({self._text(node)} + 1)", f"{self._text(node)} + 1")

    def _span(self, node: Any) -> tuple[int, int]:
        """Return where the text of ``node`` begins and ends, in bytes."""
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _first_line(self, node: ast.AST) -> str:
        return self._text(node).splitlines()[0]

    def _change(self, start: int, end: int, text: str, what: str) -> SmallChange:
        return SmallChange(self._file, self._source.count(b"\n", 0, start) + 1, start, end, text, what)

    def _replaced(self, node: ast.AST, text: str, what: str) -> SmallChange:
        return self._change(*self._span(node), text, what)

    def _instead(self, node: ast.AST, text: str) -> SmallChange:
        return self._replaced(node, text, f"{text} in place of {self._first_line(node)}")

    def _left_out(self, node: ast.AST) -> SmallChange:
        return self._replaced(node, "pass", f"left out: {self._first_line(node)}")

    def _swapped(self, left: ast.expr, right: ast.expr, operator: ast.AST) -> Iterator[SmallChange]:
        """Yield the change of the operator between two operands."""
        old, new = _OTHERS[type(operator)]
        (_, start), (end, _) = self._span(left), self._span(right)
        pattern = r"\s+".join(map(re.escape, old.split()))
        if match := re.search(pattern.encode(), self._source[start:end]):
            yield self._change(start + match.start(), start + match.end(), new, f"{new} in place of {old}")

    def _without(self, keyword: ast.keyword) -> SmallChange:
        """Return the change that leaves out a keyword argument, with the comma before it."""
        start, end = self._span(keyword)
        before = self._source[:start].rstrip()
        if before.endswith(b","):
            start = len(before) - 1
        return self._change(start, end, "", f"without the argument {keyword.arg}")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))


def _end(number: int, frame: FrameType | None) -> None:
    """End this process in order: the tests that run are killed, and the copies removed."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _end)
    raise SystemExit(main())
