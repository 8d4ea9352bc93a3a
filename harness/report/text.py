"""Figures and tables as text: three significant digits, units, Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NOT_MEASURED = "not measured in this run"
NONE = "-"
FAILURES_SHOWN = 20


def word(value: str) -> str:
    """Format a name or a result as it is. Raises: TypeError if it is missing, as in rows of another version."""
    if not isinstance(value, str):
        raise TypeError(f"no word: {value!r}")
    return value


def count(value: float | None) -> str:
    """Format a measured number: ``1,234,000``, with three significant digits."""
    if value is None:
        return NONE
    return f"{float(f'{value:.3g}'):,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def exact(value: float | None) -> str:
    """Format a number that was chosen or counted, not measured: with all of its digits."""
    return NONE if value is None else f"{value:,.0f}"


def ratio(value: float | None) -> str:
    """Format a ratio: ``1.25``, with two decimals."""
    return NONE if value is None else f"{value:.2f}"


def share(part: float | None) -> str:
    """Format a part of 1 as a percentage."""
    return NONE if part is None else f"{part:.0%}"


def duration(seconds: float | None) -> str:
    """Format a duration in the unit that fits: ``1.23 s``, ``4.56 ms``, ``789 us``."""
    if seconds is None:
        return NONE
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{count(seconds / scale)} {unit}"
    return f"{count(seconds * 1e6)} us"


def latency(microseconds: float | None) -> str:
    """Format a duration given in microseconds."""
    return NONE if microseconds is None else duration(microseconds / 1e6)


def size(bytes_: float | None) -> str:
    """Format a size in bytes: ``12.3 MiB``."""
    if bytes_ is None:
        return NONE
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if bytes_ >= scale:
            return f"{bytes_ / scale:.3g} {unit}" if bytes_ < 1000 * scale else f"{bytes_ / scale:,.0f} {unit}"
    return f"{bytes_:.0f} B"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """Return a Markdown table. Columns whose places are in ``right`` are aligned to the right."""
    aligned = set(right)
    lines = [head, ["---:" if place in aligned else "---" for place in range(len(head))], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> str:
    """Return a table for a terminal, with aligned columns."""
    aligned = set(right)
    widths = [max(len(line[place]) for line in (head, *rows)) for place in range(len(head))]
    lines = []
    for line in (head, *rows):
        cells = (
            cell.rjust(width) if place in aligned else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def failures(what: str, lines: Sequence[str]) -> str:
    """Return the number of failures and the first of them as a list. A line may have further lines below it."""
    first = "\n".join(f"* {line}" for line in lines[:FAILURES_SHOWN])
    more = f"\n\nand {len(lines) - FAILURES_SHOWN} more." if len(lines) > FAILURES_SHOWN else ""
    return f"**{what}: {len(lines)}.**\n\n{first}{more}\n"


LEVELS = ("CHANGELOG", "PROCESS", "DISK")
PROMISES = {
    "CHANGELOG": "nothing: after a crash the store is at some earlier commit, whole, "
    "and the changelog's tail is replayed",
    "PROCESS": "a killed process",
    "DISK": "power loss, by fsync in every commit",
}
"""The events that a commit survives by itself, by level."""


MEANING = table(("level", "a commit survives by itself"), PROMISES.items())
"""The levels as a table in Markdown."""


def level_place(level: str) -> int:
    """Return the place of a level: the weakest promise first, unknown levels last."""
    return LEVELS.index(level) if level in LEVELS else len(LEVELS)


def level_order(level: str) -> tuple[int, str]:
    """Return the sort key of a level, with its name after its place."""
    return level_place(level), level
