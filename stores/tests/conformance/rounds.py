"""Readers beside a writer that goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from stores import IsolationLevel, KeyValueStore
from stores.interface import KeyValueView

ROUNDS = range(1, 25)


def read_beside_rounds(
    store: KeyValueStore,
    keys: Sequence[bytes],
    level: IsolationLevel,
    read: Callable[[KeyValueView], None],
    readers: int,
) -> None:
    """Each round puts its number under all ``keys``, in order, and commits; ``readers`` threads ``read`` meanwhile.

    Each has a view of its own, and reads at least once. Raises: what ``read`` raises.
    """
    done = Event()

    def read_on() -> None:
        view = store.read_only(level)
        read(view)
        while not done.is_set():
            read(view)

    with ThreadPoolExecutor(readers) as pool:
        reading = [pool.submit(read_on) for _ in range(readers)]
        try:
            for number in ROUNDS:
                for key in keys:
                    store.put(key, b"%d" % number)
                store.commit()
        finally:
            done.set()
        for each in reading:
            each.result(60)
