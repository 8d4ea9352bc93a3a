"""``python -m stores.spark inspect FOLDER``: the versions, sizes and lag of the state of a stateful query."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from stores.changelog.files import VersionLog
from stores.errors import StoreError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0, or 2 if there is no state in the folder."""
    parser = argparse.ArgumentParser(
        prog="python -m stores.spark", description="Look at the state of a stateful query."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser("inspect", help="print the stores, and the versions and sizes of each partition")
    inspect.add_argument("folder", help="a path, or a URI of pyarrow.fs")
    options = parser.parse_args(arguments)
    try:
        for line in inspected(VersionLog.open(options.folder)):
            print(line)
    except StoreError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def inspected(log: VersionLog) -> list[str]:
    """Return the contents of a log as lines of text. Lag is how many versions a partition is behind the newest."""
    stores = log.description.get("stores")
    lines = [f"{log.location}: {log.partitions} partitions, version complete in all: {_number(log.newest_complete())}"]
    for name, kind in sorted(stores.items()) if isinstance(stores, dict) else []:
        text = ", ".join(f"{what} {value}" for what, value in sorted(kind.items())) if isinstance(kind, dict) else kind
        lines.append(f"store {name}: {text}")
    listings = [log.partition(number).listing() for number in range(log.partitions)]
    newest = max((listing.newest for listing in listings if listing.newest is not None), default=None)
    lines.append("partition  oldest  newest  lag  versions  version bytes  snapshots  newest snapshot  snapshot bytes")
    for number, listing in enumerate(listings):
        snapshots = [size for files in listing.snapshots.values() for _, size in files]
        lag = None if newest is None else newest - (-1 if listing.newest is None else listing.newest)
        lines.append(
            f"{number:9}  {_number(min(listing.versions, default=None)):>6}  {_number(listing.newest):>6}  "
            f"{_number(lag):>3}  {len(listing.versions):8}  {sum(listing.versions.values()):13,}  {len(snapshots):9}  "
            f"{_number(max(listing.snapshots, default=None)):>15}  {sum(snapshots):14,}"
        )
    return lines


def _number(value: int | None) -> str:
    return "none" if value is None else str(value)


if __name__ == "__main__":
    sys.exit(main())
