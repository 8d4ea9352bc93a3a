"""The command ``python -m harness.prose``: report offences against the style, or lower the list of allowed ones."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.folders import ROOT
from harness.prose.extraction import markdown_passages, python_passages
from harness.prose.ratchet import exceeded, lowered, parse, text_of
from harness.prose.rules import Offence, Rules

GLOSSARY = Path("docs/glossary.md")
ALLOWED = Path("harness/prose/allowed.txt")
_DOCUMENTS = ("*.md", "docs/**/*.md", "[a-z]*/README.md")
_CODE = ("stores/**/*.py", "harness/**/*.py", "scenarios/**/*.py", "docs/**/*.py")


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the command on the project in ``root``. Return 1 where a file has more offences than it is allowed."""
    parser = argparse.ArgumentParser(prog="python -m harness.prose", description="Check prose: see docs/style.md.")
    parser.add_argument("files", nargs="*", help="list all offences of these files, allowed or not")
    parser.add_argument("--update", action="store_true", help=f"lower the counts in {ALLOWED} to what is there")
    given = parser.parse_args(argv)
    found = offences_of(root)
    if given.files:
        wanted = {Path(file).resolve() for file in given.files}
        chosen = {file: offences for file, offences in found.items() if (root / file).resolve() in wanted}
        _report(chosen, {})
        return 1 if any(chosen.values()) else 0
    allowed = parse((root / ALLOWED).read_text(encoding="utf-8")) if (root / ALLOWED).exists() else {}
    counts = {file: len(offences) for file, offences in found.items()}
    if given.update:
        try:
            (root / ALLOWED).write_text(text_of(lowered(allowed, counts)), encoding="utf-8")
        except ValueError as error:
            print(error, file=sys.stderr)
            return 1
        return 0
    too_many = exceeded(allowed, counts)
    _report({file: found[file] for file in too_many}, allowed)
    return 1 if too_many else 0


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


def _report(found: Mapping[str, Sequence[Offence]], allowed: Mapping[str, int]) -> None:
    for file, offences in found.items():
        for offence in offences:
            print(f"{file}:{offence.line}: {offence.what}")
        if file in allowed:
            print(f"{file}: {len(offences)} offences, {allowed[file]} allowed")


if __name__ == "__main__":
    raise SystemExit(main())
