"""``python -m stores.spark inspect FOLDER``: the figures, versions, sizes and lag of the state of a stateful query."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from stores.changelog.files import VersionLog
from stores.changelog.files.inspection import facts_of, lines_of
from stores.errors import StoreError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0, or 2 if there is no state in the folder."""
    parser = argparse.ArgumentParser(
        prog="python -m stores.spark", description="Look at the state of a stateful query."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser("inspect", help="print the stores, and versions, sizes and figures of each partition")
    inspect.add_argument("folder", help="a path, or a URI of pyarrow.fs")
    inspect.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    try:
        facts = facts_of(VersionLog.open(options.folder))
        print(json.dumps(facts) if options.json else "\n".join(lines_of(facts)))
    except StoreError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
