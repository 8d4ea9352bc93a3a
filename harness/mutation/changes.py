"""The small changes that a file of Python allows, and a draw of some of them.

A change is one edit of the source text: a statement left out, a condition turned round, a bound moved by one. Messages,
annotations, docstrings and assertions are never changed, because no test should notice that.
Source: DeMillo, Lipton and Sayward, "Hints on Test Data Selection", 1978.
"""

from __future__ import annotations

import ast
import random
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
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
}
_OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
}
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
    return _Visitor(file, source).all_changes()


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


class _Visitor(ast.NodeVisitor):
    """Collects the changes of one file."""

    def __init__(self, file: str, source: bytes) -> None:
        self._file, self._source = file, source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._changes: list[SmallChange] = []

    def all_changes(self) -> list[SmallChange]:
        self.visit(ast.parse(self._source))
        return self._changes

    def _span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        """Return where the text of ``node`` begins and ends, in bytes."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _add(self, start: int, end: int, text: str, what: str) -> None:
        line = self._source.count(b"\n", 0, start) + 1
        self._changes.append(SmallChange(self._file, line, start, end, text, what))

    def _replace(self, node: ast.expr | ast.stmt, text: str, what: str) -> None:
        self._add(*self._span(node), text, what)

    def _leave_out(self, node: ast.stmt) -> None:
        first_line = self._text(node).splitlines()[0]
        self._replace(node, "pass", f"left out: {first_line}")

    def _swap(self, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """Replace the operator between two operands."""
        (_, start), (end, _) = self._span(left), self._span(right)
        pattern = r"\s+".join(map(re.escape, old.split()))
        if match := re.search(pattern.encode(), self._source[start:end]):
            self._add(start + match.start(), start + match.end(), new, f"{new} in place of {old}")

    # What is never changed.

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name not in _UNTOUCHED:
            for child in (*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body):
                self.visit(child)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Assert(self, node: ast.Assert) -> None:
        """Leave assertions as they are."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave messages as they are."""

    # Statements.

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return
        self._leave_out(node)
        call = node.value
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _LOGGERS):
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._leave_out(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets):
            self._leave_out(node)
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._leave_out(node)
        self.visit(node.value)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._leave_out(node)

    def visit_Break(self, node: ast.Break) -> None:
        self._leave_out(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._leave_out(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            self._leave_out(node)
        elif not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._replace(node.value, "None", f"None in place of {self._text(node.value).splitlines()[0]}")
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self._turn_round(node.test)
            self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self.generic_visit(node)

    def visit_Try(self, node: ast.Try) -> None:
        for handler in node.handlers:
            if not isinstance(handler.body[0], ast.Raise):
                self._replace(handler.body[0], "raise", "raised again, not handled")
        self.generic_visit(node)

    # Expressions.

    def _turn_round(self, test: ast.expr) -> None:
        self._replace(test, f"(not ({self._text(test)}))", f"turned round: {self._text(test).splitlines()[0]}")

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._turn_round(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._replace(test, "True", f"no filter: {self._text(test).splitlines()[0]}")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for operator, left, right in zip(node.ops, operands, operands[1:], strict=False):
            self._swap(left, right, *_COMPARISONS[type(operator)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._swap(left, right, old, new)
        for value in node.values:
            neutral = "True" if old == "and" else "False"
            self._replace(value, neutral, f"{neutral} in place of {self._text(value).splitlines()[0]}")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        is_text = any(_is_text(side) for side in (node.left, node.right))
        if type(node.op) in _OPERATORS and not is_text:
            self._swap(node.left, node.right, *_OPERATORS[type(node.op)])
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._replace(node, f"bool({self._text(node.operand)})", f"without not: {self._text(node).splitlines()[0]}")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in _NAMES:
            self._replace(node.func, _NAMES[node.func.id], f"{_NAMES[node.func.id]} in place of {node.func.id}")
        for keyword in node.keywords:
            if keyword.arg is not None:
                self._leave_out_argument(keyword)
        self.generic_visit(node)

    def _leave_out_argument(self, keyword: ast.keyword) -> None:
        """Leave out a keyword argument, with the comma before it."""
        start, end = self._span(keyword)
        before = self._source[:start].rstrip()
        if before.endswith(b","):
            start = len(before) - 1
        self._add(start, end, "", f"without the argument {keyword.arg}")

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace(node, str(not node.value), f"{not node.value} in place of {node.value}")
        elif isinstance(node.value, int):
            self._replace(node, f"({self._text(node)} + 1)", f"{self._text(node)} + 1")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))
