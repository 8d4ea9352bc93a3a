"""The versions, sizes and figures of a version log, for people and programs. Nothing in it is changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stores.changelog.files.format import DESCRIPTION, Header
from stores.changelog.files.partition_log import PartitionLog
from stores.changelog.files.version_log import VersionLog

DESCRIPTION_FILE = DESCRIPTION
"""The file by which a folder is known as a version log."""


def facts_of(log: VersionLog) -> dict[str, Any]:
    """Return the stores and the partitions of a log. Figures are those of each partition's newest version.

    ``lag`` is how many versions a partition is behind the newest. ``commit_ms`` is how long the commit before the
    newest took: a version is written before its own commit ends. None stands for what is not known.

    Raises: ChangelogError, StoreUnavailableError.
    """
    partitions = [_partition(number, log.partition(number)) for number in range(log.partitions)]
    newest = max((facts["newest"] for facts, _ in partitions if facts["newest"] is not None), default=None)
    for facts, _ in partitions:
        facts["lag"] = None if newest is None else newest - (-1 if facts["newest"] is None else facts["newest"])
    return {
        "path": log.location,
        "version_complete_in_all": log.newest_complete(),
        "stores": _stores(log.description.get("stores"), [header for _, header in partitions if header is not None]),
        "partitions": [facts for facts, _ in partitions],
    }


def _partition(number: int, log: PartitionLog) -> tuple[dict[str, Any], Header | None]:
    listing = log.listing()
    header = None if listing.newest is None else log.header(listing.newest)
    snapshots = [size for files in listing.snapshots.values() for _, size in files]
    facts: dict[str, Any] = {
        "partition": number,
        "oldest": min(listing.versions, default=None),
        "newest": listing.newest,
        "lag": None,
        "versions": len(listing.versions),
        "version_bytes": sum(listing.versions.values()),
        "snapshots": len(snapshots),
        "newest_snapshot": max(listing.snapshots, default=None),
        "snapshot_bytes": sum(snapshots),
    }
    if header is not None:
        facts |= {**_sum(header.figures.values()), "restored_versions": header.restored}
        facts["commit_ms"] = header.previous_commit_ms
    return facts, header


def _stores(described: object, newest: Sequence[Header]) -> list[dict[str, Any]]:
    """Return each store with its description, and the sum of its figures over the partitions."""
    kinds = described if isinstance(described, dict) else {}
    return [
        {
            "store": name,
            **(kind if isinstance(kind, dict) else {"kind": kind}),
            **_sum([header.figures.get(name, {}) for header in newest]),
        }
        for name, kind in sorted(kinds.items())
    ]


def _sum(figures: Any) -> dict[str, int]:
    total: Counter[str] = Counter()
    for of_one in figures:
        total.update(of_one)
    return dict(total)


def lines_of(facts: Mapping[str, Any]) -> list[str]:
    """Return the facts as lines of text: the stores, and a table of the partitions."""
    complete = _shown(facts["version_complete_in_all"])
    lines = [f"{facts['path']}: {len(facts['partitions'])} partitions, version complete in all: {complete}"]
    for store in facts["stores"]:
        described = ", ".join(f"{name} {_shown(value)}" for name, value in store.items() if name != "store")
        lines.append(f"store {store['store']}: {described}")
    names = list(dict.fromkeys(name for partition in facts["partitions"] for name in partition))
    rows = [names, *([_shown(partition.get(name)) for name in names] for partition in facts["partitions"])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    heads = [name.replace("_", " ") for name in names]
    for row in [heads, *rows[1:]]:
        lines.append("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)))
    return lines


def _shown(value: Any) -> str:
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
