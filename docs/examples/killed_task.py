"""Count words exactly once although the process is killed halfway: ``python killed_task.py``.

The first process is killed (SIGKILL) with a transaction open. The second one opens the same task, which restores what
its store lacks from the changelog, and continues after the last commit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

from stores import TopicPartition
from stores.changelog import Record, SqliteChangelog
from stores.records import INT64, STR, KeyValue
from stores.tasks import NO_INTERVAL, StoreConfig, StreamTask, TaskContext, TaskId, TaskSettings

TEXT = ["to", "be", "or", "not", "to", "be", "that", "is", "the", "question"] * 100
WORDS = TopicPartition("words", 0)
COUNTED = TopicPartition("counted", 0)
KILLED_AFTER = 750
COUNTS = KeyValue(key=STR, value=INT64, name="counts")


def count(record: Record, context: TaskContext) -> None:
    """Count one word, and forward its new count."""
    word = record.value.decode() if record.value else ""
    counts = context.store(COUNTS)
    number = (counts.get(word) or 0) + 1
    counts.put(word, number)
    context.forward(COUNTED.topic, word.encode(), b"%d" % number)


def task_in(folder: str, log: SqliteChangelog) -> StreamTask:
    """Return the task, which commits after each 100 words."""
    return StreamTask(
        "word-count",
        TaskId(0, 0),
        state_dir=folder,
        changelog=log,
        stores={"counts": StoreConfig("rocksdb-indexed-batch", records=COUNTS)},
        process=count,
        inputs=[WORDS],
        settings=TaskSettings(commit_every_records=100, commit_interval_ms=NO_INTERVAL),
    )


def work(folder: str, *, killed: bool) -> None:
    """Count words to the end, or until the process is killed."""
    with SqliteChangelog(f"{folder}/log.sqlite") as log:
        task = task_in(folder, log)
        [report] = task.open()
        print(f"starts at word {task.input_offsets()[WORDS]}, {report.records} counts restored", flush=True)
        if killed:
            task.run(KILLED_AFTER)
            os.kill(os.getpid(), signal.SIGKILL)
        task.run()
        task.close()


def main() -> None:
    """Write the input, run both processes, and print what the second one has left."""
    with tempfile.TemporaryDirectory() as folder:
        with SqliteChangelog(f"{folder}/log.sqlite") as log:
            log.create_topic(WORDS.topic)
            log.create_topic(COUNTED.topic)
            with log.producer() as producer:
                for word in TEXT:
                    producer.send(WORDS, None, word.encode())
                producer.flush()
        for mode in ("killed", "whole"):
            process = subprocess.run([sys.executable, __file__, mode, folder], check=False)
            print(
                "ended by", signal.Signals(-process.returncode).name if process.returncode < 0 else "itself", flush=True
            )
        with SqliteChangelog(f"{folder}/log.sqlite") as log:
            counts: dict[Any, int] = {}
            outputs = 0
            for record in log.read(COUNTED):
                counts[record.key] = int(record.value or b"0")
                outputs += 1
        print(f"{outputs} outputs for {len(TEXT)} words; to: {counts[b'to']}, question: {counts[b'question']}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[2], killed=sys.argv[1] == "killed")
    else:
        main()
