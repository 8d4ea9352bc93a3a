"""Readers of global stores on other threads, while these follow their topics and are closed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import MemoryChangelog
from stores.errors import StoreClosedError
from stores.tasks import GlobalStores
from stores.tests.tasks.global_topic import PARTITIONS, say, stores_over


@pytest.fixture
def log() -> MemoryChangelog:
    return MemoryChangelog()


def test_a_read_overtaken_by_a_close_raises_store_closed(
    log: MemoryChangelog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The close comes at the worst moment: when the reader has just found the stores open."""
    say(log, [])
    with stores_over(log, tmp_path) as stores:
        checking = GlobalStores._readable_copies

        def overtaken(self: GlobalStores) -> Any:
            found = checking(self)
            self.close()
            return found

        monkeypatch.setattr(GlobalStores, "_readable_copies", overtaken)
        with pytest.raises(StoreClosedError):
            stores.view("prices")


def test_readers_see_whole_commits_while_it_follows_and_closes(log: MemoryChangelog, tmp_path: Path) -> None:
    say(log, [])
    stores = stores_over(log, tmp_path)
    stores.open()
    seen: list[Any] = []

    def read() -> None:
        try:
            while True:
                with stores.view("prices").snapshot() as snapshot, snapshot.all() as pairs:
                    values = {value for _, value in pairs}
                    assert len(values) <= 1
                    seen.append(values)
        except StoreClosedError:
            pass
        except BaseException as error:
            seen.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(50):
        say(log, [(each, b"a", b"%d" % number) for each in range(PARTITIONS)])
        stores.follow()
    stores.close()
    for reader in readers:
        reader.join(600)
    assert not any(reader.is_alive() for reader in readers)
    assert not [each for each in seen if isinstance(each, BaseException)]
    assert seen
