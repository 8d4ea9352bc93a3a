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

from stores import TopicPartition
from stores.changelog import Record, SqliteChangelog
from stores.records import INT64, STR, KeyValue
from stores.tasks import NO_INTERVAL, StreamTask, TaskContext, TaskId, TaskSettings

TEXT = ["to", "be", "or", "not", "to", "be", "that", "is", "the", "question"] * 100
WORDS, COUNTED = TopicPartition("words", 0), TopicPartition("counted", 0)
COUNTS = KeyValue(key=STR, value=INT64, name="counts")
KILLED_AFTER = 750


def count(record: Record, context: TaskContext) -> None:
    """Count one word, and forward its new count."""
    word = record.value or b""
    number = context.store(COUNTS).update(word.decode(), lambda number: number + 1, 0)
    context.forward(COUNTED.topic, word, b"%d" % number)


def work(folder: str, *, killed: bool) -> None:
    """Count words to the end, with a commit after each 100, or until the process is killed."""
    with SqliteChangelog(f"{folder}/log.sqlite") as log:
        task = StreamTask(
            "word-count",
            TaskId(0, 0),
            state_dir=folder,
            changelog=log,
            stores=[COUNTS],
            process=count,
            inputs=[WORDS],
            settings=TaskSettings(commit_every_records=100, commit_interval_ms=NO_INTERVAL),
        )
        [report] = task.open()
        print(f"starts at word {task.input_offsets()[WORDS]}, {report.records} counts restored", flush=True)
        if killed:
            task.run(KILLED_AFTER)
            os.kill(os.getpid(), signal.SIGKILL)
        task.run()
        task.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[2], killed=sys.argv[1] == "killed")
        sys.exit()
    with tempfile.TemporaryDirectory() as place:
        with SqliteChangelog(f"{place}/log.sqlite") as changelog, changelog.producer() as producer:
            changelog.create_topic(WORDS.topic)
            changelog.create_topic(COUNTED.topic)
            producer.send_all(WORDS, [(None, word.encode(), -1) for word in TEXT])
            producer.flush()
        for mode in ("killed", "whole"):
            status = subprocess.run([sys.executable, __file__, mode, place], check=False).returncode
            print("ended by", signal.Signals(-status).name if status else "itself", flush=True)
        with SqliteChangelog(f"{place}/log.sqlite") as changelog:
            outputs = [(record.key, int(record.value or b"0")) for record in changelog.read(COUNTED)]
        last = dict(outputs)
    print(f"{len(outputs)} outputs for {len(TEXT)} words; to: {last[b'to']}, question: {last[b'question']}")
