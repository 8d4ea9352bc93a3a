"""The command that repeats one trial: ``python -m harness trial '<JSON>'``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.experiments.crash.admission import admitted
from harness.experiments.crash.row import failures, row
from harness.experiments.crash.run import DEADLINE_S, examine
from harness.experiments.crash.trial import from_text
from stores.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the trial of the JSON argument, and print its verdicts. Return 0 if all are valid, else 1; 2 for bad JSON."""
    parser = argparse.ArgumentParser(prog="python -m harness trial", description="Run one crash trial again.")
    parser.add_argument("trial", help="the trial as JSON, as a failed one prints it; - reads it from standard input")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="work in this new folder and leave everything in it"
    )
    parser.add_argument(
        "--deadline", type=float, default=DEADLINE_S, metavar="SECONDS", help="for each of its processes"
    )
    given = parser.parse_args(argv)
    try:
        trial = admitted(from_text(sys.stdin.read() if given.trial == "-" else given.trial))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if given.keep is not None and given.keep.exists() and any(given.keep.iterdir()):
        print(f"{given.keep} is not empty: choose another folder", file=sys.stderr)
        return 2
    outcome = examine(trial, work=given.keep.absolute() if given.keep else None, deadline_s=given.deadline)
    print(f"trial {trial.id}, seed {trial.seed}: {outcome.result}, {outcome.seconds:.1f} s")
    for verdict in outcome.verdicts:
        print(f"  {verdict.checker:16} {verdict.result:8} {verdict.detail}".rstrip())
    for failure in failures([row(outcome)]):
        print(failure, file=sys.stderr)
    return 0 if outcome.result == "valid" else 1


if __name__ == "__main__":
    sys.exit(main())
