"""``python -m harness.prose``: no word that the glossary replaces, no long sentence, no docstring that is a question.

Prose is paragraphs of Markdown, docstrings and error messages of Python. Code is no prose: blocks, spans in backticks
and quotations are left out.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt

from harness.folders import ROOT

GLOSSARY = Path("docs/glossary.md")
_DOCUMENTS = ("*.md", "docs/**/*.md", "[a-z]*/README.md")
_CODE = ("stores/**/*.py", "harness/**/*.py", "scenarios/**/*.py", "docs/**/*.py")
WORDS_MAX = 35
"""The longest sentence allowed, in words."""

_SENTENCE_END = re.compile(r"""[.!?]["')\]]*\s+""")
_QUESTION_WORD = re.compile(r"(What|Whether|Who|Whose|Which|How|Where|Whatever|Whoever)\b")
_REPLACED_COLUMN = "instead of"


@dataclass(frozen=True, order=True)
class Offence:
    """One breach of a rule, with the line that its passage begins in."""

    line: int
    what: str


class Rules:
    """The rules, with the words that a glossary replaces."""

    def __init__(self, glossary: str) -> None:
        """Read the replaced words from the Markdown tables of ``glossary``.

        Raises: ValueError where the glossary has no column of them.
        """
        self.replacements = dict(_replaced_words(glossary))
        if not self.replacements:
            raise ValueError(f"the glossary has no table with a column {_REPLACED_COLUMN!r}: restore it")
        patterns = (_pattern(word) for word in sorted(self.replacements, key=len, reverse=True))
        self._replaced = re.compile(rf"\b({'|'.join(patterns)})\b", re.IGNORECASE)

    def offences(self, passages: Iterable[Passage]) -> Iterator[Offence]:
        """Yield every breach of a rule in ``passages``."""
        for passage in passages:
            for found in self._replaced.finditer(passage.text):
                yield Offence(passage.line, f"{found[0]!r} is replaced by {self._replacement(found[0])!r}")
            for sentence in _sentences(passage.text):
                num_words = sum(any(map(str.isalnum, word)) for word in sentence.split())
                if num_words > WORDS_MAX:
                    opening = " ".join(sentence.split()[:6])
                    yield Offence(passage.line, f"a sentence of {num_words} words: {opening!r} ...")
            if passage.opens_docstring and (found_word := _QUESTION_WORD.match(passage.text)):
                yield Offence(passage.line, f"a docstring that begins with {found_word[0]!r}")

    def _replacement(self, found: str) -> str:
        return next(
            word for replaced, word in self.replacements.items() if re.fullmatch(_pattern(replaced), found, re.I)
        )


def _sentences(text: str) -> list[str]:
    """The sentences of a passage: none of a list of sources, and each error of a list of errors as one."""
    if text.startswith("Source:"):
        return []
    if text.startswith("Raises:"):
        return re.split(rf"{_SENTENCE_END.pattern}|;\s", text.removeprefix("Raises:"))
    return _SENTENCE_END.split(text)


def _replaced_words(glossary: str) -> Iterator[tuple[str, str]]:
    """Each replaced word, and the word to use."""
    column = 0
    for line in glossary.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if _REPLACED_COLUMN in cells:
            column = cells.index(_REPLACED_COLUMN)
        elif not cells:
            column = 0
        elif column and column < len(cells):
            yield from ((word, cells[0]) for word in re.findall(r"`([^`]+)`", cells[column]))


def _pattern(word: str) -> str:
    return r"\s+".join(re.escape(part).replace(r"\*", r"\w*") for part in word.split())


_SPANS = (
    (re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL), "CODE"),
    (re.compile(r'"[^"]*"'), "QUOTE"),
    (re.compile(r"!?\[([^\]]*)\]\([^)]*\)"), r"\1"),
    (re.compile(r"https?://\S+"), "LINK"),
    (re.compile(r"<!--.*?-->"), ""),
)
_NEW_SECTION = re.compile(r"^(Raises|Source|Returns|Yields)\b.*?:")
_MARKDOWN = MarkdownIt("commonmark").enable("table")
_MARKDOWN.core.ruler.disable(["inline"])
_REPORTING_CALL = re.compile(r"(Error|Exception|Warning|SystemExit|^warn|^warning)$")


@dataclass(frozen=True)
class Passage:
    """One paragraph, list item, table cell or message, without its code, and the line that it begins in."""

    line: int
    text: str
    opens_docstring: bool = False


def markdown_passages(text: str) -> Iterator[Passage]:
    """Yield the passages of a Markdown document."""
    yield from _passages(text, 1)


def python_passages(source: str) -> Iterator[Passage]:
    """Yield the passages of the docstrings and error messages of a Python file. Raises: SyntaxError."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from _docstring_passages(node.value.value, node.lineno, node.col_offset)
        elif isinstance(node, ast.Call) and _REPORTING_CALL.search(_name(node.func)):
            for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
                message = _message(argument)
                if message:
                    yield Passage(argument.lineno, _without_spans(message))


def _docstring_passages(text: str, line: int, indentation: int) -> Iterator[Passage]:
    first, *rest = text.split("\n")
    lines = [first.strip(), *(each.removeprefix(" " * indentation) for each in rest)]
    for number, passage in enumerate(_passages("\n".join(lines), line)):
        yield Passage(passage.line, passage.text, opens_docstring=number == 0)


def _passages(text: str, first_line: int) -> Iterator[Passage]:
    """Yield the paragraphs, items, cells and titles of a text in Markdown, and each section of a docstring."""
    for token in _MARKDOWN.parse(text):
        if token.type != "inline" or token.map is None:
            continue
        lines = token.content.split("\n")
        starts = [place for place, line in enumerate(lines) if not place or _NEW_SECTION.match(line)]
        for start, end in pairwise([*starts, len(lines)]):
            yield Passage(first_line + token.map[0] + start, _without_spans("\n".join(lines[start:end])))


def _without_spans(text: str) -> str:
    for pattern, replacement in _SPANS:
        text = pattern.sub(replacement, text)
    return " ".join(text.split())


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _message(node: ast.expr) -> str:
    """The text of a string expression; a value that is formatted into it counts as one word."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_message(part) if isinstance(part, ast.Constant) else "VALUE" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _message(node.left) + _message(node.right)
    return ""


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the command on the project in ``root``. Return 1 where a file has an offence."""
    parser = argparse.ArgumentParser(prog="python -m harness.prose", description="Check prose: see docs/style.md.")
    parser.parse_args(argv)
    lines = [f"{file}:{each.line}: {each.what}" for file, of_file in offences_of(root).items() for each in of_file]
    print("\n".join(lines), end="\n" if lines else "")
    return 1 if lines else 0


def offences_of(root: Path) -> dict[str, list[Offence]]:
    """Return the offences of each file of the project in ``root`` that holds prose, by its path below ``root``."""
    rules = Rules((root / GLOSSARY).read_text(encoding="utf-8"))
    return {
        file.relative_to(root).as_posix(): sorted(
            rules.offences(
                (markdown_passages if file.suffix == ".md" else python_passages)(file.read_text(encoding="utf-8"))
            )
        )
        for file in _files(root)
    }


def _files(root: Path) -> Iterator[Path]:
    for pattern in (*_DOCUMENTS, *_CODE):
        yield from sorted(root.glob(pattern))


if __name__ == "__main__":
    raise SystemExit(main())
