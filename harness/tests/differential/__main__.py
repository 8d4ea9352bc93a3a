"""Run trials against Kafka Streams, one topology after the other, and print a table.

.venv/bin/python -m harness.tests.differential --topology windows --seed 7 --trials 1
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.tests.differential.comparer import NAMES
from harness.tests.differential.course import Course, site
from harness.tests.differential.sides import EndedError
from harness.tests.differential.trial import KILLS, RECORDS, TOPOLOGIES, Trial

_OF_BOTH = ("kills", "outputs", "aborted", "entries")
"""The figures that a row has for each side: ours, theirs."""


def rows(trials: Iterable[Trial], mutant: str) -> Iterator[dict[str, Any]]:
    """Run the trials over one broker; yield the row of each. A trial that breaks off is a difference."""
    with site() as place:
        for trial in trials:
            with TemporaryDirectory(prefix="differential-") as folder:
                course = Course(trial, place, Path(folder), mutant)
                try:
                    row = course.row()
                except EndedError as error:
                    row = {"topology": trial.topology, "seed": trial.seed, "differences": [str(error)]}
            yield row


def table(found: Iterable[Mapping[str, Any]]) -> str:
    """Return the tables of the trials, in Markdown: by topology, and the differences that are by design.

    Aborted outputs are those that no reader sees: a kill came between them and their commit.
    """
    sums: dict[str, Counter[str]] = {}
    by_design: dict[str, Counter[str]] = {name: Counter() for name in NAMES}
    for row in found:
        own = sums.setdefault(row["topology"], Counter())
        own.update(trials=1, inputs=row.get("inputs", 0), differences=len(row["differences"]))
        own.update({f"{name} {side}": number for name in _OF_BOTH for side, number in enumerate(row.get(name, ()))})
        for name, number in row.get("by_design", {}).items():
            by_design[name][row["topology"]] += number
    sums["all"] = sum(sums.values(), Counter())
    lines = [_line(["topology", "trials", "inputs", *_OF_BOTH, "differences"]), _line(["---"] * 8)]
    for topology, own in sums.items():
        both = (f"{own[f'{name} 0']:,} / {own[f'{name} 1']:,}" for name in _OF_BOTH)
        lines.append(_line([topology, str(own["trials"]), f"{own['inputs']:,}", *both, str(own["differences"])]))
    lines += ["", _line(["by design", "seen"]), _line(["---"] * 2)]
    for name, seen in by_design.items():
        lines.append(_line([name, ", ".join(f"{number:,} in {topology}" for topology, number in seen.items()) or "0"]))
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Return 1 if the two sides differ otherwise than by design."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", choices=TOPOLOGIES, action="append", help="one of them; may be repeated")
    parser.add_argument("--seed", type=int, default=1, help="that of the first trial; each has the next one")
    parser.add_argument("--trials", type=int, default=10_000, help="the most trials")
    parser.add_argument("--kills", type=int, default=KILLS, help="kills of each side in a trial")
    parser.add_argument("--records", type=int, default=RECORDS, help="input records of a trial")
    parser.add_argument("--minutes", type=float, default=600.0, help="the time after which no more trials begin")
    parser.add_argument("--broken", default="", metavar="MUTANT", help="build this mutant of the harness into ours")
    parser.add_argument("--rows", type=Path, help="a file to which rows are appended; the table has all of them")
    options = parser.parse_args()
    topologies = options.topology or TOPOLOGIES
    ends_at = time.monotonic() + 60 * options.minutes
    numbers = range(options.trials)
    trials = (
        Trial(topologies[number % len(topologies)], options.seed + number, options.kills, options.records)
        for number in numbers
        if not number or time.monotonic() < ends_at
    )
    found = []
    for row in rows(trials, options.broken):
        found.append(row)
        print(f"{row['topology']}, seed {row['seed']}: {'; '.join(row['differences']) or 'no difference'}", flush=True)
        if row["differences"]:
            print(f"  again: {_command(row, options)}", flush=True)
        if options.rows:
            with options.rows.open("a") as file:
                print(json.dumps(row), file=file)
    if options.rows:
        found = [json.loads(line) for line in options.rows.read_text().splitlines()]
    print(table(found))
    return int(any(row["differences"] for row in found))


def _command(row: Mapping[str, Any], options: argparse.Namespace) -> str:
    command = f".venv/bin/python -m harness.tests.differential --topology {row['topology']} --seed {row['seed']}"
    command += f" --trials 1 --kills {options.kills} --records {options.records}"
    return command + (f" --broken {options.broken}" if options.broken else "")


if __name__ == "__main__":
    sys.exit(main())
