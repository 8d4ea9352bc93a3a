"""The content of a trial's log, read from its file with plain SQL, without the code that wrote it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from harness.checkers.evidence import Log, LogRecord
from harness.experiments.crash.layout import APPLICATION, INPUT_TOPIC, OUTPUT_TOPIC, STORES, changelog_topic
from harness.typed_maps import PLAIN, logged_key


def read_log(path: Path, records: str = PLAIN) -> Log:
    """Return the committed records of a trial's topics, and the next input; an empty log if there is no file.

    With ``records``, a kind of typed store, keys are those of the store's records; without it, keys are as stored.

    Opening the file changes it, because SQLite checkpoints its WAL, so give a copy.
    """
    if not path.exists():
        return Log(dict.fromkeys(STORES, ()))
    with closing(sqlite3.connect(path)) as connection:
        next_input = connection.execute(
            "select next_offset from consumer_groups where consumer_group = ? and topic = ? and partition = 0",
            (APPLICATION, INPUT_TOPIC),
        ).fetchone()
        return Log(
            stores={store: _committed(connection, changelog_topic(store), records) for store in STORES},
            outputs=_committed(connection, OUTPUT_TOPIC),
            next_input=next_input[0] if next_input else 0,
        )


def _committed(connection: sqlite3.Connection, topic: str, records: str = PLAIN) -> tuple[LogRecord, ...]:
    rows = connection.execute(
        "select offset, key, value from records where topic = ? and state = 'COMMITTED' order by offset", (topic,)
    )
    return tuple(LogRecord(offset, logged_key(records, key), value) for offset, key, value in rows)
