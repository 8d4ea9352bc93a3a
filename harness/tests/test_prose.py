"""The check of prose finds each kind of offence, and fails for any."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.prose import WORDS_MAX, Rules, main, markdown_passages, python_passages

GLOSSARY = """# Glossary

| word | meaning | instead of | source |
| --- | --- | --- | --- |
| checksum | A CRC-32. | `seal`, `seals` | |
| fork server | A process. | `nursery`, `warm parent` | AFL |
| detected | Found. | `notic*` | |
| engine | Keeps bytes. | | |

`outside` is in no table.
"""
LONG = " ".join(["word"] * (WORDS_MAX + 1))
LONGEST_ALLOWED = " ".join(["word"] * WORDS_MAX)


def of_markdown(text: str) -> list[tuple[int, str]]:
    return [(offence.line, offence.what) for offence in Rules(GLOSSARY).offences(markdown_passages(text))]


def of_python(text: str) -> list[tuple[int, str]]:
    return [(offence.line, offence.what) for offence in Rules(GLOSSARY).offences(python_passages(text))]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("A seal.\n", 1),
        ("Fine.\n\nA Warm\nparent.\n", 3),
        ("It was noticed.\n", 1),
        ("* fine\n* a seal\n", 2),
        ("* fine\n\n  The seal of an item.\n", 3),
        ("| a | the seal |\n", 1),
        ("# A seal\n", 1),
        ("see [the seal](file.md)\n", 1),
        (f"{LONG}.\n", 1),
        (f"Fine.\n\nFine. {LONG}. Fine.\n", 3),
    ],
)
def test_an_offence_in_markdown_is_found_in_its_line(text: str, line: int) -> None:
    assert [found for found, _ in of_markdown(text)] == [line]


@pytest.mark.parametrize(
    "text",
    [
        "Sealing and sealed are no words of this glossary.\n",
        "`seal` and ``the `seal` here`` are code.\n",
        'The word "seal" is quoted.\n',
        "Fine:\n\n    a = seal\n\n    b = seal\n",
        "```python\nseal\n\nseal\n```\n",
        "~~~\nseal\n```\nseal\n~~~\n",
        "<!-- seal -->\n",
        "see [here](seal.md) or https://seal.example\n",
        f"{LONGEST_ALLOWED}. {LONGEST_ALLOWED}!\n",
        f"* {LONGEST_ALLOWED}\n* {LONGEST_ALLOWED}\n",
        f"| a | b |\n| --- | --- |\n| {LONGEST_ALLOWED} | {LONGEST_ALLOWED} |\n",
    ],
)
def test_code_quotations_and_short_sentences_are_no_offence(text: str) -> None:
    assert of_markdown(text) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('"""A seal."""\n', 1),
        ('"""Fine.\n\nThe seal.\n"""\n', 3),
        ('def f():\n    """What it does."""\n', 2),
        ('class A:\n    """Fine."""\n    b = 1\n    """Whether it is."""\n', 4),
        ("raise ValueError('a seal')\n", 1),
        ("raise ValueError(f'{a} is a'\n    f' seal of {b}')\n", 1),
        ("def f():\n    return OwnError('Fine.', hint='a ' + 'seal')\n", 2),
        ("warnings.warn('a seal')\n", 1),
        (f"raise ValueError('{LONG}')\n", 1),
        (f'"""Fine.\n\nRaises: A; {LONG}; B.\n"""\n', 3),
    ],
)
def test_an_offence_in_a_docstring_or_a_message_is_found_in_its_line(text: str, line: int) -> None:
    assert [found for found, _ in of_python(text)] == [line]


@pytest.mark.parametrize(
    "text",
    [
        "seal = 'a seal'  # a seal\n",
        '"""Fine.\n\n    seal = code\n"""\n',
        '"""Fine.\n\nWhat follows is no opening.\n"""\n',
        f'"""Fine.\n\nSource: {LONG}.\n"""\n',
        f'"""{LONGEST_ALLOWED}.\n\nRaises: {LONGEST_ALLOWED}; {LONGEST_ALLOWED}.\n"""\n',
        "print('a seal')\n",
    ],
)
def test_other_strings_comments_and_code_are_no_offence(text: str) -> None:
    assert of_python(text) == []


def test_an_offence_names_the_word_to_use() -> None:
    [(_, what)] = of_markdown("The warm parent.\n")
    assert "fork server" in what


def test_a_glossary_without_replaced_words_is_refused() -> None:
    with pytest.raises(ValueError, match="instead of"):
        Rules("# Glossary\n\n| word | meaning |\n| --- | --- |\n| a | b |\n")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/glossary.md").write_text(GLOSSARY)
    (tmp_path / "stores").mkdir()
    return tmp_path


def test_an_offence_fails_and_is_printed_with_its_place(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], project) == 0
    assert capsys.readouterr().out == ""
    (project / "stores/old.py").write_text('"""A checksum."""\nraise OSError("seal")\n')
    assert main([], project) == 1
    assert capsys.readouterr().out.startswith("stores/old.py:2: ")


def test_a_document_with_one_offence_fails(project: Path) -> None:
    (project / "README.md").write_text("A seal.\n")
    assert main([], project) == 1
