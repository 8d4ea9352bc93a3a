"""Move the stores of a state directory to the sub-topologies that a topology gives them:

    python -P -m stores.relocate DIR --topology FILE [--dry-run] [--application ID]

or all stores to another layout of the directory (see ``stores.tasks.directory.store_places``):

    python -P -m stores.relocate DIR --layout store-partition [--dry-run] [--application ID]
    python -P -m stores.relocate DIR --layout task --topology FILE [--dry-run]

With ``-P`` Python imports nothing from the working folder, where a file may have the name of a module.
DIR is the folder of one application, with its tasks' folders (``state.dir/application.id`` under Kafka's properties);
FILE is the topology as JSON (see ``stores.tasks.topology``). Each line printed is a store: where it was and where it is
now, or why it stays. Nothing is changed with ``--dry-run``. Ends with 0; with 2 after an error, which says what to do.

Source: KIP-816.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from stores.errors import StoreError
from stores.tasks.directory.relocation import Relocation, change_layout, relocate
from stores.tasks.directory.store_places import RELOCATE, DirectoryLayout
from stores.tasks.topology import Topology


def main(argv: Sequence[str] | None = None, program: str = RELOCATE) -> int:
    """Relocate, and print what was done; 0 where that was possible, else 2."""
    parser = argparse.ArgumentParser(
        prog=program, description="Move stores to the sub-topologies that a topology gives them."
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="the state directory of one application")
    parser.add_argument("--topology", type=Path, metavar="FILE", help="the topology, as JSON")
    parser.add_argument("--layout", choices=[*DirectoryLayout], help="move all stores to this layout of the directory")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be moved")
    parser.add_argument("--application", metavar="ID", help="the application's ID, if its stores' names end alike")
    arguments = parser.parse_args(argv)
    if arguments.topology is None and arguments.layout is None:
        parser.error("one of --topology and --layout is required")
    settings = {"application_id": arguments.application, "dry_run": arguments.dry_run}
    try:
        topology = None if arguments.topology is None else Topology.from_file(arguments.topology)
        if arguments.layout is not None:
            relocation = change_layout(arguments.directory, arguments.layout, topology=topology, **settings)
        elif topology is not None:
            relocation = relocate(arguments.directory, topology, **settings)
    except (StoreError, TypeError) as error:
        print(error, file=sys.stderr)
        return 2
    for line in lines(relocation, arguments.directory, dry_run=arguments.dry_run):
        print(line)
    return 0


def lines(done: Relocation, directory: Path, *, dry_run: bool) -> list[str]:
    """One line for each store that is moved or kept; paths below ``directory`` without it."""

    def short(path: Path) -> str:
        return str(path.relative_to(directory)) if path.is_relative_to(directory) else str(path)

    verb = "would move" if dry_run else "moved"
    texts = [
        f"{'to complete' if dry_run else 'completed'}: {short(source)} -> {short(target)}"
        for _, source, target in done.completed
    ]
    texts += [f"{verb}: {short(source)} -> {short(target)}" for _, source, target in done.moved]
    texts += [f"kept: {short(source)}, as there is another {name!r}" for name, source, _ in done.doubles]
    texts += [f"kept: {short(path)}, which the topology does not name" for _, path in done.unnamed]
    return texts or ["every store is in its place"]


if __name__ == "__main__":
    raise SystemExit(main())
