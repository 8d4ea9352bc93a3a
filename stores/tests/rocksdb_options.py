"""The options that RocksDB says it uses, from the file in which it keeps them."""

from __future__ import annotations

from pathlib import Path


def options_in_use(store: Path) -> dict[str, str]:
    """Return the options of the database of a store, and those of the column family that has the records."""
    text = max((store / "data").glob("OPTIONS-*")).read_text()
    # The first column family has the records.
    return dict(line.strip().split("=", 1) for line in reversed(text.splitlines()) if "=" in line)
