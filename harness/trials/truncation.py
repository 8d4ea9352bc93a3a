"""Changelogs that are cut: they say in fewer records what they said, and no longer reach back to any store."""

from __future__ import annotations

from pathlib import Path

from harness.checkers.evidence import Log
from harness.checkers.model import replay_all
from harness.trials.layout import STORES, changelog_topic
from harness.typed_maps import PLAIN, logged_time_ms
from stores.changelog.sqlite import SqliteChangelog
from stores.interface import Durability, TopicPartition

NO_KEY = b"no store has this key"


def truncate(changelog: Path, log: Log, records: str = PLAIN) -> None:
    """Append to each store's changelog the state that ``log`` leads to, and cut off all that was there before.

    ``log`` has the keys as they lie there, of stores of the kind ``records``. No process may have the changelog open.
    Between the old records and the new ones a removal of no key is cut off as well: even a store that has seen every
    old record is left behind.
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
