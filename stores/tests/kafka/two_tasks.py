"""Two counting tasks over brokers with faults: each with its own transaction, or both in that of their thread.

``differences`` compares what they leave with the model, as other processes and other instances of the tasks see it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from stores import failpoints
from stores.changelog.kafka import KafkaChangelog
from stores.changelog.producer import BEFORE_COMMIT
from stores.errors import ChangelogError, ChangelogTimeoutError, CommitInDoubtError, TransactionAbortedError
from stores.tasks import StreamTask
from stores.tasks.stores.store_group import AFTER_LOG_COMMIT
from stores.tests.kafka.broker_cluster import BrokerCluster
from stores.tests.kafka.sharing_worker import NO_SETTINGS, SharingWorker, committed_outputs, feed_afresh
from stores.tests.tasks.setup import AT_LEAST_ONCE
from stores.tests.tasks.sharing import KEYS, ROUND, expected, offsets, sharing_task, state

TASK, THREAD = "task", "thread"
"""The owner of a transaction: a task, or the thread of both."""
COMMIT, ABORT = "commit", "abort"
"""The end of the transaction that a fault strikes."""
HIT: Mapping[str, int] = {TASK: 3, THREAD: 2}
"""The transaction that a fault strikes, of all that end: the second one of the first task."""
BEFORE = len(KEYS) * ROUND
"""The outputs of the transactions before it."""
EXPECTED = [expected(keys)[0] for keys in KEYS]
STATES = [expected(keys)[1] for keys in KEYS]
CHANGELOG = "app-counts-changelog"
NUMBER = sum(map(len, KEYS))
LAST = len(KEYS[0])
"""The end of each input."""
SESSION_S = 60
"""Longer than any fault: the group still has its member after it."""
DEADLINE_S = 600.0


def feed_placed(cluster: BrokerCluster, replicas: Sequence[int], settings: Mapping[str, str] = NO_SETTINGS) -> None:
    """Put the input into fresh topics. Outputs and changelogs have these replicas, of which the first one leads."""
    policies: Mapping[str, Mapping[str, str]] = {"output": {}, CHANGELOG: {"cleanup.policy": "compact"}}

    def make_topics() -> None:
        new = [
            NewTopic(name, len(KEYS), replica_assignment=[[*replicas]] * len(KEYS), config={**settings, **policy})
            for name, policy in policies.items()
        ]
        admin = AdminClient({"bootstrap.servers": cluster.address})
        for made in admin.create_topics(new).values():
            made.result(DEADLINE_S)

    feed_afresh(cluster, make_topics)


@contextmanager
def two_tasks(
    folder: Path,
    address: str,
    scope: str,
    *,
    name: str = "one",
    client: Mapping[str, Any] = NO_SETTINGS,
    **settings: Any,
) -> Iterator[Sequence[StreamTask]]:
    """Yield both tasks, opened. An error of the brokers ends a call of theirs at once.

    Instances of another ``name`` have another state directory. ``client`` has further settings of the client, and
    ``settings`` those of the tasks.
    """
    own = {"task_timeout_s": 0, **settings}
    with ExitStack() as opened:
        if scope == THREAD:
            worker = SharingWorker(folder, address, name, session_s=SESSION_S, settings=client)
            opened.enter_context(worker).open_all(**own)
            yield worker.tasks
            return
        log = opened.enter_context(KafkaChangelog({"bootstrap.servers": address, **client}))
        tasks = [sharing_task(folder / name, log, number, None, **own) for number in range(len(KEYS))]
        for task in tasks:
            opened.enter_context(task)
        yield tasks


def shorten(tasks: Sequence[StreamTask], timeout_s: float) -> None:
    """Give the calls of the tasks this much time from now on. Their opening has more: a busy machine may need it."""
    for task in tasks:
        log: Any = task._changelog
        producer: Any = task._context._producer
        log._cluster.timeout_s = producer._writer._timeout_s = timeout_s


def step(tasks: Sequence[StreamTask], end: int = LAST) -> int:
    """Process some records of each task up to ``end``, and commit them; return their number.

    Raises: as ``StreamTask.commit``.
    """
    processed = sum(task.run(min(ROUND, end - at)) for task, at in zip(tasks, offsets(tasks), strict=True))
    for task in tasks:
        task.commit()
    return processed


def work(tasks: Sequence[StreamTask], on_error: Callable[[], object] = lambda: None) -> list[str]:
    """Process and commit the whole input, and compare the committed stores with the model.

    Return the names of the errors that passed. Each calls ``on_error``.
    """
    noted = finish(tasks, on_error=on_error)
    assert [state(task) for task in tasks] == STATES
    return noted


def finish(tasks: Sequence[StreamTask], end: int = LAST, on_error: Callable[[], object] = lambda: None) -> list[str]:
    """As ``work``, up to ``end`` of each input and without the comparison."""
    noted: list[str] = []
    deadline = time.monotonic() + DEADLINE_S
    while True:
        assert time.monotonic() < deadline, noted
        try:
            if not step(tasks, end):
                return noted
        except ChangelogError as error:
            if not is_passing(error):
                raise
            noted.append(type(error).__name__)
            on_error()


def is_passing(error: ChangelogError) -> bool:
    """Return True if an application is to call the task again after the error."""
    return isinstance(error, ChangelogTimeoutError | CommitInDoubtError | TransactionAbortedError)


def gives_up() -> None:
    """Abort the transaction that is about to end."""
    raise ChangelogTimeoutError("the application gives up")


@contextmanager
def striking(actions: Mapping[int, Callable[[], object]], failpoint: str = BEFORE_COMMIT) -> Iterator[None]:
    """Carry out each action when the failpoint is reached for the time that is its key; check that all were."""
    hits = 0

    def reach() -> None:
        nonlocal hits
        hits += 1
        if hits in actions:
            actions[hits]()

    failpoints.arm(failpoint, reach)
    try:
        yield
    finally:
        failpoints.disarm(failpoint)
    assert hits >= max(actions), hits


def differences(folder: Path, address: str, at_least: int = NUMBER) -> dict[str, object]:
    """Return what the tasks have left that is not the model's: input offsets, changelogs or committed outputs.

    A new instance restores the changelogs into an empty state directory. Outputs that become visible a moment later
    are waited for, until there are ``at_least`` so many.
    """
    with two_tasks(folder, address, TASK, name="verifier") as tasks:
        found: dict[str, object] = {"inputs": offsets(tasks), "changelogs": [state(task) for task in tasks]}
    found["outputs"] = committed_outputs(address, at_least)
    model = {"inputs": [len(keys) for keys in KEYS], "changelogs": STATES, "outputs": EXPECTED}
    return {name: value for name, value in found.items() if value != model[name]}


def check_that_repeated_outputs_are_found(
    folder: Path, address: str, fault: Callable[[], object], client: Mapping[str, Any] = NO_SETTINGS
) -> None:
    """Strike tasks without transactions, and let them process again what they had sent: the control of a fault."""

    def strike() -> None:
        fault()
        gives_up()

    at_least_once = two_tasks(folder, address, TASK, client=client, guarantee=AT_LEAST_ONCE)
    with at_least_once as tasks, striking({HIT[TASK]: strike}, AFTER_LOG_COMMIT):
        finish(tasks)
    outputs = differences(folder, address, NUMBER + ROUND)["outputs"]
    assert isinstance(outputs, list)
    assert sum(map(len, outputs)) >= NUMBER + ROUND
