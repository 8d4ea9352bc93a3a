"""Show the clicks of each page while another process counts them, is killed and continues: ``python dashboard.py``.

A reader waits for no commit, and no commit waits for it. A worker's stores are in its ``state.dir``, below the name of
the application and the number of the task, such as ``state/clicks/0_0/lmdb/counts``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

from stores import StoreUnavailableError, TopicPartition, open_read_only
from stores.changelog import Record, SqliteChangelog
from stores.records import INT64, STR, KeyValue
from stores.tasks import NO_INTERVAL, StoreConfig, StreamTask, TaskContext, TaskId, TaskSettings, Topic

NUM_CLICKS, PER_COMMIT = 20_000, 500
CLICKS = Topic("clicks", key=STR, value=STR)
"""The user of each click, by page."""
COUNTS = KeyValue(key=STR, value=INT64, name="counts")


def count(record: Record[str, str], context: TaskContext) -> None:
    """Count a click on a page."""
    context.store(COUNTS).update(record.key or "", lambda clicks: clicks + 1, 0)


def write(folder: str) -> None:
    """Count to the end of the input: the other process."""
    with (
        SqliteChangelog(f"{folder}/log.sqlite") as log,
        StreamTask(
            "clicks",
            TaskId(0, 0),
            state_dir=folder,
            changelog=log,
            stores={"counts": StoreConfig("lmdb", records=COUNTS)},
            process=count,
            inputs=[CLICKS],
            settings=TaskSettings(commit_every_records=PER_COMMIT, commit_interval_ms=NO_INTERVAL),
        ) as task,
    ):
        task.run(commit=True)


def show(folder: str, least: int) -> list[int]:
    """Look at the store until it has so many clicks; return the number at each look."""
    totals = [0]
    while totals[-1] < least:
        try:
            with open_read_only(f"{folder}/0_0/lmdb/counts", COUNTS) as counts:
                while totals[-1] < least:
                    with counts.snapshot() as snapshot:  # one commit, for all pages
                        totals.append(sum(clicks for _, clicks in snapshot.all()))
        except StoreUnavailableError:
            time.sleep(0.01)  # The writer has not made it yet.
    return totals


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write(sys.argv[1])
        sys.exit()
    with tempfile.TemporaryDirectory() as place:
        with SqliteChangelog(f"{place}/log.sqlite") as changelog, changelog.producer() as producer:
            changelog.create_topic(CLICKS.name)
            for number in range(NUM_CLICKS):
                producer.send(TopicPartition(CLICKS.name, 0), *CLICKS.encoded("shop" if number % 3 else "home", "ann"))
            producer.flush()
        looks: list[int] = []
        for until in (NUM_CLICKS // 2, NUM_CLICKS):
            with subprocess.Popen([sys.executable, __file__, place]) as writer:
                looks += show(place, until)[1:]
                writer.kill() if until < NUM_CLICKS else writer.wait()
        print(f"the last look: {looks[-1]} clicks")
        print("each look was at a whole commit:", all(clicks % PER_COMMIT == 0 for clicks in looks))
        print("none was older than the one before:", looks == sorted(looks))
