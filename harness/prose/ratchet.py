"""Counts of offences per file that are allowed for now, and that may only fall."""

from __future__ import annotations

from collections.abc import Mapping

HEADER = "# Offences against docs/style.md that are left, by file. Generated: python -m harness.prose --update\n"


def parse(text: str) -> dict[str, int]:
    """Return the allowed count of each file. Raises: ValueError for a line that is none."""
    allowed = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            count, _, file = line.partition(" ")
            if not count.isdecimal() or not file:
                raise ValueError(f"{line!r} is no line of the list of allowed offences: generate the list again")
            allowed[file] = int(count)
    return allowed


def text_of(allowed: Mapping[str, int]) -> str:
    """Return the list as it is kept: one line per file that has offences."""
    return HEADER + "".join(f"{count} {file}\n" for file, count in sorted(allowed.items()) if count)


def exceeded(allowed: Mapping[str, int], counts: Mapping[str, int]) -> list[str]:
    """Return the files that have more offences than they are allowed."""
    return sorted(file for file, count in counts.items() if count > allowed.get(file, 0))


def lowered(allowed: Mapping[str, int], counts: Mapping[str, int]) -> dict[str, int]:
    """Return the list after some offences were mended.

    Files that were renamed or divided take their counts along: only the sum is compared.

    Raises: ValueError where there are more offences than before.
    """
    before, now = sum(allowed.values()), sum(counts.values())
    if now > before:
        raise ValueError(f"there are {now:,} offences, and {before:,} are allowed: mend the text, not the list")
    return {file: count for file, count in counts.items() if count}
