"""Run trials of the client's retries, and print a table: request, fault, moment, end, bare client, ours.

.venv/bin/python -m harness.tests.client_retries --only "EndTxn" --part 1/2
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from harness.tests.client_retries.course import EXACTLY_ONCE, Run, network
from harness.tests.client_retries.trial import BARE, OURS, Trial, table, trials
from stores.tests.kafka.shared_broker import FOLDER


def rows(chosen: list[Trial], kinds: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Run each trial with each kind of application over one broker; yield what readers saw."""
    with network(FOLDER) as site:
        for trial in chosen:
            for kind in kinds:
                with TemporaryDirectory(prefix="retries-") as folder:
                    began = time.monotonic()
                    run = Run(trial, kind, site, Path(folder))
                    result = run.result()
                yield asdict(trial) | {
                    "kind": kind,
                    "result": result,
                    "notes": run.notes,
                    "seconds": round(time.monotonic() - began, 1),
                }


def main() -> int:
    """Return 1 if a task of ours was not exactly once, or a trial of one had no late request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="trials whose text has this")
    parser.add_argument("--part", default="1/1", help="one of several parts, such as 1/2")
    parser.add_argument("--seed", type=int, default=1, help="that of the trials' order")
    parser.add_argument("--kinds", nargs="+", choices=(BARE, OURS), default=(BARE, OURS), help="the applications")
    parser.add_argument("--rows", type=Path, help="a file to which rows are appended; the table has all of them")
    parser.add_argument("--minutes", type=float, default=600.0, help="the time after which no more trials begin")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    chosen = [trial for trial in trials() if options.only in str(trial)]
    Random(options.seed).shuffle(chosen)
    chosen = chosen[part - 1 :: parts]
    if not chosen:
        parser.error(f"no trial has {options.only!r} in its text, or that part is empty; one is: {trials()[0]}")
    ends_at = time.monotonic() + 60 * options.minutes
    found = []
    for row in rows(chosen, options.kinds):
        found.append(row)
        if options.rows:
            with options.rows.open("a") as file:
                print(json.dumps(row), file=file)
        if time.monotonic() > ends_at and row["kind"] == options.kinds[-1]:
            break
    number, each = len(found) // len(options.kinds), " and ".join(options.kinds)
    print(f"{number} of {len(chosen)} trials in the order of seed {options.seed}, each with {each}")
    if options.rows:
        found = [json.loads(line) for line in options.rows.read_text().splitlines()]
    print(table(found))
    return int(any(row["kind"] == OURS and row["result"] != EXACTLY_ONCE for row in found))


if __name__ == "__main__":
    sys.exit(main())
