"""From your own event log to a report: ``python event_log_report.py``. Needs ``txstores-harness``, and Java.

Writes a small CSV file of purchases, measures two backends with it, and prints the first table of the report. It has
no budget, so a slow machine leaves nothing out. With your own file this is ``make bench EVENTS=path/to/events.csv
KEY=customer_id TIME=time``.
"""

from __future__ import annotations

import csv
import random
import subprocess
import sys
import tempfile
from pathlib import Path

BACKENDS = "lmdb-indexed-batch,sqlite-indexed-batch"


def write_events(file: Path, num_events: int) -> None:
    """Write purchases of 100 customers, in order of time."""
    drawn = random.Random(1)
    with file.open("w", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(["time", "customer_id", "item", "cents"])
        for number in range(num_events):
            item = drawn.choice(["apple", "pear", "plum"])
            writer.writerow([1_700_000_000_000 + number * 250, drawn.randrange(100), item, drawn.randrange(50, 900)])


def main() -> None:
    """Measure, and print the table of backends."""
    with tempfile.TemporaryDirectory() as folder:
        events, results = Path(folder, "events.csv"), Path(folder, "results")
        write_events(events, 2_000)
        command = [sys.executable, "-m", "harness", "bench", "--events", str(events), "--key", "customer_id"]
        command += ["--time", "time", "--only", "throughput", "--backends", BACKENDS, "--profile", "smoke"]
        command += ["--budget", "none", "--runs", f"{folder}/runs", "--results", str(results)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lines = (results / "report.md").read_text().splitlines()
        title = lines.index("## All backends side by side")
        first = next(number for number in range(title, len(lines)) if lines[number].startswith("|"))
        end = next(number for number in range(first, len(lines)) if not lines[number].startswith("|"))
        print("\n".join(lines[first:end]))


if __name__ == "__main__":
    main()
