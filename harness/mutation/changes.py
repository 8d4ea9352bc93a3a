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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

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
