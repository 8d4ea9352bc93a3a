"""A driver that gives a query one batch, writes when it has ended, and then waits until it is killed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from threading import Event
from time import time

from harness.processes.child import end_with_starter
from harness.spark.session import session
from harness.spark.stateful.query import Query, settings


def run(subject: str, folder: Path, batch: Path, partitions: int, local: Path | None, told: Path) -> None:
    """Start Spark and the query in ``folder``, give it ``batch``, and write to ``told`` when things were done."""
    with session("stateful", f"local[{partitions}]", settings=settings(partitions)) as spark:
        begun = time()
        query = Query(spark, subject, folder, partitions, local)
        query.start()
        found = query.feed(batch)
        told.with_suffix(".new").write_text(
            json.dumps({"session_at": begun, "done_at": time(), "first_batch_s": found["seconds"]})
        )
        told.with_suffix(".new").rename(told)
        Event().wait()


def main() -> None:
    """Run with the arguments in a file, as JSON."""
    end_with_starter()
    given = json.loads(Path(sys.argv[1]).read_text())
    paths = {name: Path(given[name]) for name in ("folder", "batch", "told")}
    local = None if given["local"] is None else Path(given["local"])
    run(given["subject"], partitions=given["partitions"], local=local, **paths)


if __name__ == "__main__":
    main()
