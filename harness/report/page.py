"""The page of a report about one experiment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """One page. ``shows`` says in three sentences what it shows; ``parts`` are Markdown; ``plots`` are file names."""

    title: str
    shows: str
    parts: tuple[str, ...]
    plots: tuple[str, ...] = ()
