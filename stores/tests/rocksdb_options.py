"""The options that RocksDB uses, from the file in which it keeps them."""

from __future__ import annotations

import re
from pathlib import Path

DATABASE, RECORDS, TABLES = "DBOptions", "CFOptions default", "TableOptions/BlockBasedTable default"
"""The sections of a database, of the column family that has the records, and of its tables."""


def options_in_use(folder: Path) -> dict[str, dict[str, str]]:
    """Return the options of the one database in ``folder``, at any depth, by section and name."""
    newest = max(folder.rglob("OPTIONS-*"))
    sections: dict[str, dict[str, str]] = {}
    for line in newest.read_text().splitlines():
        if named := re.fullmatch(r"\[(.*)\]", line.strip()):
            section = sections.setdefault(named[1].replace('"', ""), {})
        elif "=" in line:
            name, _, value = line.strip().partition("=")
            section[name] = value
    del sections["Version"]
    return sections
