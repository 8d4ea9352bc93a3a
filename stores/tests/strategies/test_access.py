"""A store of LMDB's own transactions that another thread closes in the middle of one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from stores import KeyValueStore, open_store
from stores.errors import StoreClosedError, StoreLockedError

_SCRIPT = """
import sys
from pathlib import Path
from threading import Thread
from stores import open_store

folder = Path(sys.argv[1])
other = open_store("lmdb-native", folder / "other")
for number in range(3):
    store = open_store("lmdb-native", folder / f"{number}")
    store.put(b"staged", b"1")
    closer = Thread(target=store.close)
    closer.start()
    closer.join()
    other.put(b"key", b"1")
    other.commit()
    other.put(b"key", b"rolled back")
    other.rollback()
    assert other.get(b"key") == b"1"
other.close()
"""


def in_a_thread(work: object) -> None:
    thread = Thread(target=work)  # type: ignore[arg-type]
    thread.start()
    thread.join()


def staged(path: Path) -> KeyValueStore:
    store = open_store("lmdb-native", path)
    store.put(b"committed", b"1")
    store.commit()
    store.put(b"staged", b"1")
    return store


def test_the_writer_goes_on_with_other_stores_after_another_thread_has_closed_one(tmp_path: Path) -> None:
    """The mutex of LMDB's transaction is a thread's own: in the wrong hands it ends the process later."""
    process = subprocess.run([sys.executable, "-P", "-c", _SCRIPT, str(tmp_path)], check=False, timeout=600)
    assert process.returncode == 0


def test_a_store_closed_by_another_thread_is_free_once_its_writer_has_come_by(tmp_path: Path) -> None:
    store = staged(tmp_path / "s")
    in_a_thread(store.close)
    assert not store.is_open
    error_types: list[type[Exception]] = []

    def open_elsewhere() -> None:
        try:
            open_store("lmdb-native", tmp_path / "s").close()
        except StoreLockedError as error:
            error_types.append(type(error))

    in_a_thread(open_elsewhere)
    assert error_types == [StoreLockedError]
    with pytest.raises(StoreClosedError):
        store.put(b"more", b"1")
    in_a_thread(open_elsewhere)
    assert error_types == [StoreLockedError]
    with open_store("lmdb-native", tmp_path / "s") as again:
        assert list(again.all()) == [(b"committed", b"1")]


def test_a_store_whose_writer_has_ended_is_free_when_it_is_closed(tmp_path: Path) -> None:
    stores: list[KeyValueStore] = []
    in_a_thread(lambda: stores.append(staged(tmp_path / "s")))
    stores[0].close()
    with open_store("lmdb-native", tmp_path / "s") as again:
        assert list(again.all()) == [(b"committed", b"1")]
