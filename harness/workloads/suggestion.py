"""What was probably meant by a name that doesn't exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown ``name``: the most alike of ``names``; empty if none is."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
