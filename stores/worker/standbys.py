"""The standby copies of a worker: they follow the changelogs on a thread of their own, in turn and in bounded steps.

The group says who has which partitions, and each worker finds its own copies by that (``standby_partitions``).
Another thread asks the group: an answer may take long, and neither a claim nor the worker's end waits for it.
When the worker gets a task of which it has a copy, the task continues with the open stores of the copy, and restores
what they lack. Queries read the copy's last moment until the task runs. A copy that can't be handed over is closed
first. Source: Kafka Streams, which recycles a standby task's stores (KAFKA-10362).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from hashlib import sha256
from heapq import nlargest

from stores.changelog.group import GroupMember, Peer
from stores.errors import ChangelogTimeoutError, StoreError, StoreLockedError
from stores.interface import Position, TopicPartition
from stores.tasks.identifier import TaskId
from stores.tasks.task_resources import OpenCopy
from stores.worker.copy_moment import CopyMoment
from stores.worker.running_task import HandedCopies, MakeTask

_log = logging.getLogger(__name__)

LOOK_S = 1.0
"""The time between two looks at the members of the group."""
CLAIM_S = 10.0
"""The time to wait for a copy to be handed over. If it takes longer, its task waits for the folder's lock."""
_IDLE_S = 0.1
STEP_RECORDS = 10_000
"""The most records that a step writes into each store: a copy is handed over after about one step."""
FOLLOW_S = 0.25
"""The time between two looks for new records, once a copy is at the end."""
POSITION_S = 1.0
"""The time between two looks at the committed offsets of the inputs, which are the position of a queried copy."""
RETRY_S = 5.0
"""The time after which a copy that has failed is opened again."""


class Standbys(HandedCopies):
    """The standby copies of one worker. Methods are for the worker's own thread; ``status`` for any.

    ``make`` makes a task, and ``tasks_of`` returns the tasks of partitions, as far as they have files to keep. Queries
    read the copies if they are ``queried``.
    """

    def __init__(
        self,
        replicas: int,
        make: MakeTask,
        tasks_of: Callable[[Iterable[TopicPartition]], Collection[TaskId]],
        *,
        queried: bool = False,
    ) -> None:
        self.failure: BaseException | None = None
        """An error that ended the thread: a defect, for errors of stores and changelogs do not."""
        self._replicas, self._make, self._tasks_of, self._queried = replicas, make, tasks_of, queried
        self._change = threading.Condition()
        self._copies: dict[TaskId, StandbyCopy] = {}
        self._handed: dict[TaskId, HandedCopy] = {}
        """The copies of claimed tasks, until these run."""
        self._claimed: set[TaskId] = set()
        self._peers: list[Peer] = []
        """The members of the group as of the last look."""
        self._partitions: frozenset[TopicPartition] = frozenset()
        self._own: frozenset[TopicPartition] = frozenset()
        """The partitions of the worker itself, by the same look: their tasks may not be claimed yet."""
        self._told = ""
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self, member: GroupMember) -> None:
        """Begin to keep copies, as a member of the group."""
        self._thread = threading.Thread(target=self._run, name="standby", daemon=True)
        self._thread.start()
        threading.Thread(target=self._look_again, args=(member,), name="standby-look", daemon=True).start()

    def claim(self, task_ids: Collection[TaskId]) -> None:
        """Hand over the copies of these tasks, and keep none until ``unclaim``: the worker owns the tasks now."""
        with self._change:
            self._claimed.update(task_ids)
            self._change.notify_all()
            if not self._change.wait_for(lambda: not self._copies.keys() & set(task_ids), CLAIM_S):
                _log.warning("the standby copies of tasks are not released in time: the tasks wait for them")

    def take(self, task_id: TaskId) -> OpenCopy | None:
        with self._change:
            handed = self._handed.get(task_id)
            return None if handed is None else handed.take()

    def replaced(self, task_id: TaskId) -> None:
        with self._change:
            handed = self._handed.pop(task_id, None)
        if handed is not None:
            handed.close()

    def unclaim(self, task_ids: Collection[TaskId]) -> None:
        """The worker does not own these tasks any more."""
        with self._change:
            self._claimed.difference_update(task_ids)

    def stop(self) -> None:
        """Let the thread end when it has closed its copies."""
        with self._change:
            self._stopping = True
            self._change.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; return False if that takes too long."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def status(self) -> list[StandbyStatus]:
        """Return the state of each copy, in order of the tasks."""
        with self._change:
            return [copy.status for _, copy in sorted(self._copies.items())]

    @property
    def needed(self) -> set[TaskId]:
        """The tasks whose copies are due, opened or not, and those that the worker has claimed."""
        with self._change:
            return {*self._copies, *self._claimed, *self._tasks_of(self._partitions)}

    def moment(self, task_id: TaskId) -> CopyMoment | None:
        """Return what queries read of the copy of a task, to be closed; None if there is none. For any thread."""
        with self._change:
            copy = self._copies.get(task_id) or self._handed.get(task_id)
        return None if copy is None else copy.moment()

    def addresses(self, partition: TopicPartition) -> list[str]:
        """Return the addresses of the other members that keep a copy of ``partition``, as of the last look at them.

        Those that answer no queries are left out, and there are none while it has no owner. For any thread.
        """
        holders = standby_holders(self._peers, partition, self._replicas)
        return [peer.address for peer in holders if peer.address and not peer.is_self]

    def changelog_offsets(self) -> dict[TaskId, Mapping[TopicPartition, int | None]]:
        """Return the changelog offsets of the copies that are open."""
        with self._change:
            return {task_id: offsets for task_id, copy in self._copies.items() if (offsets := copy.changelog_offsets())}

    def _look_again(self, member: GroupMember) -> None:
        try:
            while not self._stopping:
                self._look(member)
                with self._change:
                    self._change.wait_for(lambda: self._stopping, LOOK_S)
        except BaseException as error:
            _log.error("the look for standby copies ends after %s", type(error).__name__)
            self.failure = error

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._close_others()
                if not self._step():
                    with self._change:
                        if not self._stopping and not self._copies.keys() & self._claimed:
                            self._change.wait(_IDLE_S)
        except BaseException as error:
            _log.error("the thread of the standby copies ends after %s", type(error).__name__)
            self.failure = error
        finally:
            for task_id in list(self._copies):
                with suppress(Exception):
                    self._close(task_id)
            for task_id in list(self._handed):
                self.replaced(task_id)

    def _look(self, member: GroupMember) -> None:
        """Find out which copies are due, from the members of the group."""
        try:
            peers = member.peers()
        except StoreError as error:
            if str(error) != self._told and not self._stopping:
                self._told = str(error)
                _log.warning("the standby copies stay as they are: the members of the group are unknown: %s", error)
            return
        self._told = ""
        if peers is not None and self._peers != list(peers):
            # Once for each change: it takes a hash for each partition and member.
            self._peers = list(peers)
            self._own = frozenset().union(*(peer.partitions for peer in peers if peer.is_self))
            self._partitions = standby_partitions(peers, self._replicas, self._partitions)

    def _close_others(self) -> None:
        """Hand over the copies whose tasks come here, close those that are not due, and add those that are due."""
        due, own = set(self._tasks_of(self._partitions)), set(self._tasks_of(self._own))
        with self._change:
            own |= self._claimed
            unclaimed = self._handed.keys() - own
            due -= self._claimed | self._handed.keys()
            for task_id in sorted(due - self._copies.keys()):
                self._copies[task_id] = StandbyCopy(task_id, self._make, queried=self._queried)
            others = sorted(self._copies.keys() - due)
        for task_id in unclaimed:
            self.replaced(task_id)
        for task_id in others:
            self._close(task_id, hand_over=task_id in own)

    def _step(self) -> bool:
        """Make a step of each copy; return True if there is more to do."""
        more = False
        for task_id, copy in list(self._copies.items()):
            if self._stopping or task_id in self._claimed:
                return True
            more |= copy.step()
        return more

    def _close(self, task_id: TaskId, *, hand_over: bool = False) -> None:
        copy, handed = self._copies[task_id], None
        try:
            if hand_over:
                handed = copy.hand_over()
            else:
                copy.close()
        finally:
            with self._change:
                if handed is not None:
                    self._handed[task_id] = handed
                del self._copies[task_id]
                self._change.notify_all()


@dataclass(frozen=True)
class StandbyStatus:
    """The state of one standby copy, as other threads may see it."""

    task_id: TaskId
    lag: int | None
    """The offsets that it lacked at its last step; None while it is not open."""


class HandedCopy:
    """A copy that its task replaces: the open stores until the task takes them, and what queries read until it runs."""

    def __init__(self, stores: OpenCopy, moment: CopyMoment | None) -> None:
        self._stores: OpenCopy | None = stores
        self._moment = moment

    def take(self) -> OpenCopy | None:
        """Return the stores, once."""
        stores, self._stores = self._stores, None
        return stores

    def moment(self) -> CopyMoment | None:
        """Return what queries read, to be closed; None if there is nothing."""
        return None if self._moment is None else self._moment.shared()

    def close(self) -> None:
        """Close the moment, and the stores unless they were taken. An error is logged."""
        stores = self.take()
        try:
            with nullcontext() if stores is None else stores:
                if self._moment is not None:
                    self._moment.close()
        except StoreError as error:
            _log.warning("a standby copy could not be closed in order: %s", error)


class StandbyCopy:
    """The copy of one task. For the thread that owns it; ``status``, ``changelog_offsets`` and ``moment`` for any."""

    def __init__(self, task_id: TaskId, make: MakeTask, *, queried: bool = False) -> None:
        self.task_id = task_id
        self.status = StandbyStatus(task_id, None)
        # The registry of metrics does not keep the task alive.
        self._task = make(task_id, lambda progress: None)
        self._copy = self._task.standby()
        self._open = False
        self._due = 0.0
        self._told = ""
        self._queried = queried
        self._moment: CopyMoment | None = None
        self._position: Position = {}
        self._position_due = 0.0

    def step(self) -> bool:
        """Open the copy, or write some new records of the changelogs; return True if there are more.

        An error does not end the worker, whose tasks do not need the copy: it is logged, and tried again later.
        """
        if time.monotonic() < self._due:
            return False
        try:
            if not self._open:
                self._copy.open()
                self._open = True
            # Before the step: what can be read now is before the ends to which it reads.
            self._look_at_position()
            lag = self._copy.follow(STEP_RECORDS)
            self._show(lag)
        except ChangelogTimeoutError as error:
            self._try_later(error, FOLLOW_S)
            return False
        except StoreError as error:
            self.close(clean=False)
            # Another process that has the folder may be about to close it.
            self._try_later(error, FOLLOW_S if isinstance(error, StoreLockedError) else RETRY_S)
            return False
        self.status = StandbyStatus(self.task_id, lag)
        self._told = ""
        if not lag:
            self._due = time.monotonic() + FOLLOW_S
        return lag > 0

    def changelog_offsets(self) -> Mapping[TopicPartition, int | None]:
        """Return the changelog offsets of the stores; empty while the copy is not open."""
        return self._copy.offsets() if self._open else {}

    def close(self, *, clean: bool = True) -> None:
        """Close the copy: if ``clean``, with a checkpoint. A later ``step`` opens it again."""
        self._open = False
        self.status = StandbyStatus(self.task_id, None)
        self._hide()
        try:
            self._copy.close(clean=clean)
        except StoreError as error:
            _log.warning("the standby copy of task %s could not be closed in order: %s", self.task_id, error)

    def hand_over(self) -> HandedCopy | None:
        """End the copy, and return its open stores with what queries read; None if it could only be closed."""
        try:
            stores = self._copy.hand_over()
        except StoreError as error:
            _log.warning("the standby copy of task %s could not be handed over: %s", self.task_id, error)
            stores = None
        if stores is None:
            self.close()
            return None
        self._open = False
        # This object keeps the moment as well: queries may ask either of the two.
        return HandedCopy(stores, self._moment)

    def moment(self) -> CopyMoment | None:
        """Return what queries read, to be closed; None before the copy was at the end, and while it is closed."""
        moment = self._moment
        return None if moment is None else moment.shared()

    def _look_at_position(self) -> None:
        if self._queried and time.monotonic() >= self._position_due:
            position = self._copy.committed_position()
            if position is not None:
                self._position, self._position_due = position, time.monotonic() + POSITION_S

    def _show(self, lag: int) -> None:
        """Let queries read what the copy has, after a step that leaves ``lag``."""
        if not self._queried:
            return
        offsets, moment = self._copy.offsets(), self._moment
        if lag:
            # The step may have ended within a commit of the task: the former moment stays.
            if moment is not None:
                moment.lacks(offsets, lag)
            return
        if moment is not None and moment.offsets == offsets and moment.is_open:
            moment.position, moment.lag = self._position, 0
            return
        self._hide()
        try:
            self._moment = CopyMoment(self._copy.snapshots(), offsets, self._position)
        except StoreError as error:
            if type(error) is not StoreError:
                raise
            # A store of another package may have no snapshots.
            self._queried = False
            _log.warning("the standby copy of task %s answers no queries: %s", self.task_id, error)

    def _hide(self) -> None:
        moment, self._moment = self._moment, None
        if moment is not None:
            moment.close()

    def _try_later(self, error: StoreError, pause_s: float) -> None:
        if self._moment is not None:
            self._moment.lag = None
        self._due = time.monotonic() + pause_s
        if str(error) != self._told:
            self._told = str(error)
            _log.warning("the standby copy of task %s does not follow, and is tried again: %s", self.task_id, error)


def standby_partitions(
    peers: Collection[Peer], replicas: int, kept: Collection[TopicPartition]
) -> frozenset[TopicPartition]:
    """Return the partitions of which the member that asks keeps copies. ``kept`` are those of which it has them.

    It is a function of the group's members alone, so that nobody coordinates them. Each state directory has a weight
    for each partition, by a hash of both. The directories with the highest weights, other than that of the partition's
    owner, keep the copies. A worker that comes or goes moves no more copies than those that it gets or had. Source:
    Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates" (rendezvous hashing).

    A directory that several members share has one copy, which its first member follows: the other files in it are those
    of the owner or of that copy. A copy stays while its partition has no owner: its member may become that.
    """
    due = {partition for partition in kept if not any(partition in peer.partitions for peer in peers)}
    own = next((peer for peer in peers if peer.is_self), None)
    if own is None:
        return frozenset(kept)
    if own.directory is None or own.name != min(peer.name for peer in peers if peer.directory == own.directory):
        return frozenset(due)
    directories = sorted({peer.directory for peer in peers if peer.directory is not None})
    for owner in peers:
        others = [directory for directory in directories if directory != owner.directory]
        due.update(each for each in owner.partitions if own.directory in _chosen(others, each, replicas))
    return frozenset(due)


def standby_holders(peers: Collection[Peer], partition: TopicPartition, replicas: int) -> list[Peer]:
    """Return the members that keep copies of ``partition`` while it has its owner: see ``standby_partitions``."""
    owner = next((peer for peer in peers if partition in peer.partitions), None)
    if owner is None:
        return []
    first = {peer.directory: peer for peer in sorted(peers, key=lambda peer: peer.name, reverse=True)}
    directories = {peer.directory for peer in peers if peer.directory is not None} - {owner.directory}
    return [first[directory] for directory in _chosen(sorted(directories), partition, replicas)]


def _chosen(directories: Collection[str], partition: TopicPartition, number: int) -> list[str]:
    """Return the directories with the highest weights for the partition, up to ``number`` of them."""

    def weight(directory: str) -> bytes:
        return sha256(f"{directory} {partition.topic}-{partition.partition}".encode()).digest()

    return nlargest(number, directories, key=weight)
