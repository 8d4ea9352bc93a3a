"""The log of a trial as its file tells it, read with plain SQL: none of the code that wrote it has a say."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from harness.checkers.evidence import Log, LogRecord
from harness.trials.layout import APPLICATION, INPUT_TOPIC, OUTPUT_TOPIC, STORES, changelog_topic
from harness.typed_maps import PLAIN, logged_key


def read_ledger(path: Path, records: str = PLAIN) -> Log:
    """The committed records of every topic of a trial, and the next input; an empty log where there is no file.

    Keys are those that the records of a store of the kind ``records`` are about; as they lie there unless it is given.

    Opening the file changes it (SQLite folds its write-ahead log in): give a copy.
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
