"""Steps that are all taken: the first error is raised at the end, and the others go along with it."""

from __future__ import annotations

import pytest

from stores.errors import CommitFailedError, StoreError
from stores.tasks.first_error import FirstError


def test_every_step_is_taken_and_the_first_error_brings_the_others_along() -> None:
    errors = FirstError()
    taken = []
    for error in (None, CommitFailedError("first"), StoreError("second"), ValueError("third")):
        with errors.step():
            taken.append(error)
            if error is not None:
                raise error
    assert len(taken) == 4
    assert errors.failed
    with pytest.raises(CommitFailedError) as failure:
        errors.reraise()
    assert failure.value is taken[1]
    assert len(failure.value.__notes__) == 2


def test_the_same_error_again_is_not_reported_twice() -> None:
    errors, error = FirstError(), StoreError("of both steps")
    for _ in range(2):
        with errors.step():
            raise error
    with pytest.raises(StoreError):
        errors.reraise()
    assert not hasattr(error, "__notes__")


def test_what_asks_the_whole_process_to_stop_waits_for_no_step() -> None:
    errors = FirstError()
    with pytest.raises(KeyboardInterrupt), errors.step():
        raise KeyboardInterrupt
    assert not errors.failed
    errors.reraise()
