"""Steps that are all taken: the first error is raised at the end, and the others go along with it."""

from __future__ import annotations

import pytest

from stores.errors import CommitFailedError, StoreError
from stores.tasks.attempts import Attempts


def test_every_step_is_taken_and_the_first_error_brings_the_others_along() -> None:
    attempts = Attempts()
    taken = []
    for error in (None, CommitFailedError("first"), StoreError("second"), ValueError("third")):
        with attempts.one():
            taken.append(error)
            if error is not None:
                raise error
    assert len(taken) == 4
    assert attempts.failed
    with pytest.raises(CommitFailedError) as raised:
        attempts.end()
    assert raised.value is taken[1]
    assert len(raised.value.__notes__) == 2


def test_the_same_error_again_is_not_told_twice() -> None:
    attempts, error = Attempts(), StoreError("of both steps")
    for _ in range(2):
        with attempts.one():
            raise error
    with pytest.raises(StoreError):
        attempts.end()
    assert not hasattr(error, "__notes__")


def test_what_asks_the_whole_process_to_stop_waits_for_no_step() -> None:
    attempts = Attempts()
    with pytest.raises(KeyboardInterrupt), attempts.one():
        raise KeyboardInterrupt
    assert not attempts.failed
    attempts.end()
