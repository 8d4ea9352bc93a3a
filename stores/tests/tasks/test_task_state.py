"""The states of a task without any store: each transition and each call in each state."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from stores.errors import (
    ChangelogTimeoutError,
    ProducerFencedError,
    StoreClosedError,
    StoreError,
    StoreRestoringError,
)
from stores.tasks.identifier import TaskId
from stores.tasks.task_state import TABLE, Call, TaskEvent, TaskLifecycle, TaskState

CREATED, RESTORING, RUNNING, ROLLING_BACK, ROLLBACK_PENDING, FAILED, FENCED, CLOSED = TaskState
OPEN, RUN, ROLL_BACK, TIME_OUT, FAIL, FENCE, CLOSE = TaskEvent

CAUSE = ChangelogTimeoutError("the changelog does not answer")
FAILURE = ValueError("the disk is full")
FENCING = ProducerFencedError("a newer producer has taken the ID")

APPLY: Mapping[TaskEvent, Callable[[TaskLifecycle], None]] = {
    OPEN: TaskLifecycle.open,
    RUN: TaskLifecycle.run,
    ROLL_BACK: TaskLifecycle.roll_back,
    TIME_OUT: lambda lifecycle: lifecycle.time_out(CAUSE, in_doubt=True),
    FAIL: lambda lifecycle: lifecycle.fail(FAILURE),
    FENCE: lambda lifecycle: lifecycle.fail(FENCING),
    CLOSE: TaskLifecycle.close,
}
WAYS: Mapping[TaskState, list[TaskEvent]] = {
    CREATED: [],
    RESTORING: [OPEN],
    RUNNING: [OPEN, RUN],
    ROLLING_BACK: [OPEN, RUN, ROLL_BACK],
    ROLLBACK_PENDING: [OPEN, RUN, ROLL_BACK, TIME_OUT],
    FAILED: [OPEN, RUN, FAIL],
    FENCED: [OPEN, RUN, FENCE],
    CLOSED: [OPEN, RUN, CLOSE],
}
"""The events that take a new task to each state."""

EXPECTED_TRANSITIONS = {
    (CREATED, OPEN): RESTORING,
    (CREATED, CLOSE): CLOSED,
    (RESTORING, RUN): RUNNING,
    (RESTORING, CLOSE): CLOSED,
    (RUNNING, ROLL_BACK): ROLLING_BACK,
    (RUNNING, FAIL): FAILED,
    (RUNNING, FENCE): FENCED,
    (RUNNING, CLOSE): CLOSED,
    (ROLLING_BACK, RUN): RUNNING,
    (ROLLING_BACK, TIME_OUT): ROLLBACK_PENDING,
    (ROLLING_BACK, FAIL): FAILED,
    (ROLLING_BACK, FENCE): FENCED,
    (ROLLING_BACK, CLOSE): CLOSED,
    (ROLLBACK_PENDING, ROLL_BACK): ROLLING_BACK,
    (ROLLBACK_PENDING, CLOSE): CLOSED,
    (FAILED, CLOSE): CLOSED,
    (FENCED, OPEN): RESTORING,
    (FENCED, CLOSE): FENCED,
    (CLOSED, OPEN): RESTORING,
    (CLOSED, FAIL): CLOSED,
    (CLOSED, FENCE): CLOSED,
    (CLOSED, CLOSE): CLOSED,
}
EXPECTED_ERRORS: Mapping[TaskState, Mapping[Call, type[StoreError] | None]] = {
    # In the order of Call: OPEN, WORK, READ, CLOSE.
    state: dict(zip(Call, errors, strict=True))
    for state, errors in {
        CREATED: (None, StoreClosedError, StoreClosedError, None),
        RESTORING: (StoreError, StoreRestoringError, StoreRestoringError, None),
        RUNNING: (StoreError, None, None, None),
        ROLLING_BACK: (StoreError, StoreRestoringError, StoreRestoringError, None),
        ROLLBACK_PENDING: (StoreError, ChangelogTimeoutError, ChangelogTimeoutError, None),
        FAILED: (StoreError, StoreError, StoreError, None),
        FENCED: (None, ProducerFencedError, ProducerFencedError, None),
        CLOSED: (None, StoreClosedError, StoreClosedError, None),
    }.items()
}


def lifecycle_in(state: TaskState) -> TaskLifecycle:
    lifecycle = TaskLifecycle(TaskId(0, 0))
    for event in WAYS[state]:
        APPLY[event](lifecycle)
    assert lifecycle.state is state
    return lifecycle


def refused(lifecycle: TaskLifecycle, call: Call) -> BaseException | None:
    try:
        lifecycle.check(call)
    except Exception as error:
        return error
    return None


def test_the_table_has_every_state() -> None:
    assert set(TABLE) == set(TaskState)


@pytest.mark.parametrize("event", TaskEvent)
@pytest.mark.parametrize("state", TaskState)
def test_an_event_has_the_expected_transition_or_is_refused_and_changes_nothing(
    state: TaskState, event: TaskEvent
) -> None:
    lifecycle = lifecycle_in(state)
    before = [lifecycle.ready, lifecycle.pending_rollback, *(str(refused(lifecycle, call)) for call in Call)]
    following = EXPECTED_TRANSITIONS.get((state, event))
    assert lifecycle.allows(event) is (following is not None)
    if following is not None:
        APPLY[event](lifecycle)
        assert lifecycle.state is following
        return
    with pytest.raises(StoreError) as error:
        APPLY[event](lifecycle)
    assert type(error.value) is StoreError
    assert lifecycle.state is state
    after = [lifecycle.ready, lifecycle.pending_rollback, *(str(refused(lifecycle, call)) for call in Call)]
    assert after == before


@pytest.mark.parametrize("state", TaskState)
def test_a_task_is_rebuilt_in_the_states_in_which_it_may_be_opened(state: TaskState) -> None:
    lifecycle = lifecycle_in(state)
    if EXPECTED_ERRORS[state][Call.OPEN] is None:
        lifecycle.rebuild()
        assert lifecycle.state is RESTORING
        return
    with pytest.raises(StoreError):
        lifecycle.rebuild()
    assert lifecycle.state is state


@pytest.mark.parametrize("call", Call)
@pytest.mark.parametrize("state", TaskState)
def test_a_call_is_legal_or_raises_the_error_of_the_state(state: TaskState, call: Call) -> None:
    lifecycle = lifecycle_in(state)
    for _ in range(2):
        error = refused(lifecycle, call)
        expected = EXPECTED_ERRORS[state][call]
        assert error is None if expected is None else type(error) is expected
        assert lifecycle.state is state


@pytest.mark.parametrize("state", TaskState)
def test_only_a_running_task_is_ready_for_records_and_commits_when_it_is_closed(state: TaskState) -> None:
    lifecycle = lifecycle_in(state)
    assert lifecycle.ready is (state is RUNNING)
    assert lifecycle.commits_on_close is (state is RUNNING)


@pytest.mark.parametrize("call", [Call.WORK, Call.READ])
@pytest.mark.parametrize(("state", "cause"), [(ROLLBACK_PENDING, CAUSE), (FAILED, FAILURE)])
def test_the_error_of_a_stopped_task_has_its_cause(state: TaskState, cause: BaseException, call: Call) -> None:
    error = refused(lifecycle_in(state), call)
    assert error is not None
    assert error.__cause__ is cause


def test_a_rollback_is_pending_from_its_timeout_until_it_is_tried_again_or_the_task_is_closed() -> None:
    for event in (ROLL_BACK, CLOSE):
        lifecycle = lifecycle_in(ROLLING_BACK)
        assert lifecycle.pending_rollback is None
        lifecycle.time_out(CAUSE, in_doubt=True)
        assert lifecycle.pending_rollback == (CAUSE, True)
        APPLY[event](lifecycle)
        assert lifecycle.pending_rollback is None


@pytest.mark.parametrize("rebuilt", [False, True])
@pytest.mark.parametrize(("failure", "error"), [(FAILURE, StoreError), (FENCING, ProducerFencedError)])
def test_a_closed_task_reports_what_stopped_it_until_it_is_opened_again(
    failure: BaseException, error: type[StoreError], rebuilt: bool
) -> None:
    lifecycle = lifecycle_in(RUNNING)
    lifecycle.fail(failure)
    lifecycle.close()
    if rebuilt:
        lifecycle.rebuild()
        assert lifecycle.state is RESTORING
        assert type(refused(lifecycle, Call.READ)) is StoreRestoringError
        lifecycle.close()
        assert lifecycle.state is CLOSED
    for call in (Call.WORK, Call.READ):
        assert type(refused(lifecycle, call)) is error
    lifecycle.open()
    lifecycle.close()
    for call in (Call.WORK, Call.READ):
        assert type(refused(lifecycle, call)) is StoreClosedError


@pytest.mark.parametrize("state", [RUNNING, FAILED, FENCED])
def test_a_deferred_error_is_raised_by_the_next_work_only_and_only_once(state: TaskState) -> None:
    lifecycle, deferred = lifecycle_in(state), ValueError("deferred")
    lifecycle.defer(deferred)
    assert not lifecycle.ready
    assert lifecycle.commits_on_close
    for call in (Call.OPEN, Call.READ, Call.CLOSE):
        error, expected = refused(lifecycle, call), EXPECTED_ERRORS[state][call]
        assert error is None if expected is None else type(error) is expected
    assert refused(lifecycle, Call.WORK) is deferred
    assert lifecycle.ready is (state is RUNNING)
    error, expected = refused(lifecycle, Call.WORK), EXPECTED_ERRORS[state][Call.WORK]
    assert error is None if expected is None else type(error) is expected


def test_a_deferred_error_waits_for_a_pending_rollback() -> None:
    lifecycle, deferred = lifecycle_in(ROLLBACK_PENDING), ValueError("deferred")
    lifecycle.defer(deferred)
    assert lifecycle.commits_on_close
    assert type(refused(lifecycle, Call.WORK)) is ChangelogTimeoutError
    lifecycle.roll_back()
    lifecycle.run()
    assert lifecycle.state is RUNNING
    assert not lifecycle.ready
    assert refused(lifecycle, Call.WORK) is deferred
    assert lifecycle.ready


@pytest.mark.parametrize("state", [RUNNING, ROLLBACK_PENDING, FAILED, FENCED])
def test_a_closed_task_has_dropped_its_deferred_error(state: TaskState) -> None:
    lifecycle, deferred = lifecycle_in(state), ValueError("deferred")
    lifecycle.defer(deferred)
    lifecycle.close()
    assert not lifecycle.commits_on_close
    assert refused(lifecycle, Call.WORK) not in (None, deferred)
    lifecycle.open()
    lifecycle.run()
    assert lifecycle.ready
    assert refused(lifecycle, Call.WORK) is None
