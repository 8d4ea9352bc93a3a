"""Rules for prose: no word that the glossary replaces, no long sentence, no docstring that opens with a question."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harness.prose.extraction import Passage

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
