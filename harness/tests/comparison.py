"""True if two runs of the same trials came to the same."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

_SAME_ON_EVERY_RUN = ("trial", "spec", "result", "verdicts")


def comparable(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the columns that every run of the same trials has: one JSON line per row, in the order of the ids."""
    told = [{name: found[name] for name in _SAME_ON_EVERY_RUN} for found in rows]
    return "".join(
        json.dumps(line, sort_keys=True) + "\n" for line in sorted(told, key=lambda line: str(line["trial"]))
    )
