"""A reader beside a change in several steps is shown the value before it, what stands for it, or the value after."""

from __future__ import annotations

from contextlib import suppress
from threading import Lock

from stores.strategies.batch_staging import Seqlock


def test_without_a_change_a_read_is_settled_and_takes_no_lock() -> None:
    lock = Lock()
    seqlock = Seqlock(lock)
    with lock:
        assert seqlock.read(lambda: "settled", lambda: "changing") == "settled"
    with seqlock.change():
        pass
    assert seqlock.read(lambda: "settled", lambda: "changing") == "settled"


def test_a_read_during_a_change_holds_the_lock_and_gets_the_changing_state() -> None:
    lock = Lock()
    seqlock = Seqlock(lock)
    with seqlock.change():
        assert seqlock.read(lambda: False, lock.locked)
    assert not lock.locked()


def test_a_change_that_raises_goes_on() -> None:
    seqlock = Seqlock(Lock())
    with suppress(OSError), seqlock.change():
        raise OSError
    assert seqlock.read(lambda: "settled", lambda: "changing") == "changing"


def test_a_read_that_a_change_overtakes_is_made_again() -> None:
    seqlock = Seqlock(Lock())
    reads = iter(range(3))

    def settled() -> int:
        number = next(reads)
        if number < 2:
            with seqlock.change():
                pass
        return number

    assert seqlock.read(settled, lambda: -1) == 2
