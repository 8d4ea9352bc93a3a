"""The command ``python -m harness.prose``: report offences against the style."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.folders import ROOT
from harness.prose.rules import Offence, Rules, markdown_passages, python_passages

GLOSSARY = Path("docs/glossary.md")
_DOCUMENTS = ("*.md", "docs/**/*.md", "[a-z]*/README.md")
_CODE = ("stores/**/*.py", "harness/**/*.py", "scenarios/**/*.py", "docs/**/*.py")


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
