"""Truncation of changelogs: the same state in fewer records, which no longer reach back to any store's offset."""

from __future__ import annotations

from pathlib import Path

from harness.checkers.evidence import Log
from harness.checkers.model import replay_all
from harness.experiments.crash.layout import STORES, changelog_topic
from harness.typed_maps import PLAIN, logged_time_ms
from stores.changelog.sqlite import SqliteChangelog
from stores.interface import Durability, TopicPartition

NO_KEY = b"no store has this key"


def truncate(changelog: Path, log: Log, records: str = PLAIN) -> None:
    """Append the state of ``log`` to each store's changelog, and truncate all records before.

    ``log`` has the keys as stored, of stores of the kind ``records``. No process may have the changelog open. Between
    the old records and the new ones, a deletion of an unused key is truncated too. So even a store that has every old
    record is out of reach.
    """
    with SqliteChangelog(changelog, Durability.PROCESS) as opened:
        for store in STORES:
            partition = TopicPartition(changelog_topic(store), 0)
            with opened.producer() as producer:
                producer.send(partition, NO_KEY, None)
                start = producer.flush()[partition] + 1
                for key, value in sorted(replay_all(log.stores[store]).items()):
                    producer.send(partition, key, value, logged_time_ms(records, value))
                producer.flush()
            opened.truncate(partition, start)
