"""The settings of a task, and the things that it shares with other tasks: both are checked when they are made."""

# Without postponed annotations: a subclass in another module, which lacks their names, inherits the types of fields.

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from stores.changelog.partitioners import partitioner_named
from stores.config import StoreConfig
from stores.contract.arguments import check_function, check_number, check_seconds, check_type
from stores.errors import ConfigError
from stores.interface import ProcessingGuarantee, TopicPartition
from stores.registry import member
from stores.snapshots import Snapshots
from stores.tasks.context import OutputPartitioner
from stores.tasks.global_stores import GlobalStores, check_apart
from stores.tasks.memory_budget import BudgetShare
from stores.tasks.offset_reset import OffsetReset, checked_offset_reset
from stores.tasks.on_error import DeadLetterTopic, OnError, checked_on_error
from stores.tasks.stores.log_follower import OnRestore
from stores.tasks.stores.store_metrics import RecordingLevel
from stores.tasks.task_transaction import ThreadTransaction
from stores.tasks.timing import TASK_TIMEOUT_S, Clock, checked_commit_interval_ms
from stores.tasks.topology import Topology

BATCH_MAX_RECORDS = 1_000
BATCH_MAX_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """The settings that a task may have besides its stores and its inputs. Raises: ConfigError, TypeError."""

    guarantee: ProcessingGuarantee | None = None
    """None takes that of the stores' configurations (``processing.guarantee``), else exactly once."""
    commit_interval_ms: int | None = None
    """The time between two commits: None for 100 under exactly once and 30,000 else, ``NO_INTERVAL`` (-1) for none."""
    commit_every_records: int | None = None
    """The number of records after which a task commits; None for no such limit."""
    batch_max_records: int = BATCH_MAX_RECORDS
    """The most records that ``process_batch`` gets at a time."""
    batch_max_bytes: int = BATCH_MAX_BYTES
    """The most bytes of keys and values that it gets at a time. A larger record is a batch by itself."""
    task_timeout_s: float = TASK_TIMEOUT_S
    """The time for which ``run`` retries if the changelog does not answer in time; 0 for no retry."""
    on_error: OnError | DeadLetterTopic | str = OnError.RAISE
    """The effect of an exception of the function. "raise" rolls back to the last commit and raises it. "skip" undoes
    the record alone, counts it (``skipped_total``) and continues with the next one. ``DeadLetterTopic(topic)`` also
    sends the record there, in the same transaction. A batch is halved until the records that fail stand alone.

    Undone are its writes to all stores, its outputs and its request for a commit; the position and the stream time
    advance. This costs a lookup for each key that a record writes, and memory for the record's old values, outputs and
    changelog records. Errors of the library, and exceptions of punctuators, are always raised.
    """
    on_deserialization_error: OnError | DeadLetterTopic | str | None = None
    """The effect of a record that the serdes of its ``Topic`` can't read, as ``on_error``, which None takes. The
    function does not get such a record."""
    partitioner: OutputPartitioner | str = "murmur2"
    """The partition of an output by its key's bytes, also that of a dead letter: a name of
    ``stores.changelog.partitioners``, or a function of these and the number of partitions (``TaskContext.forward``)."""
    auto_offset_reset: OffsetReset | str | None = None
    """The place at which an input begins that has no committed offset, or no longer has the next one: "earliest",
    "latest", or "none" for an error. With None it begins at its first offset, and an offset that is gone is an error.
    """
    topology: Topology | None = None
    """The topology of the whole application, the same for all tasks that are open in a directory. When a task opens,
    stores in the folder of another sub-topology are moved to their tasks, without a replay
    (``stores.tasks.directory.relocation``)."""
    automatic_state_relocation: bool = True
    """True if these stores are moved; if False, no task opens while a store lies in the wrong place."""
    verify_stores: bool = False
    """True verifies each store when the task opens (``StateStore.verify``), and wipes and restores a corrupt one. It
    takes the time of a few scans of all data."""
    snapshots: Snapshots | None = None
    """Snapshots of the stores by files, from which a task begins that has lost them, or that is new on a machine. They
    need exactly once, and backends that isolate uncommitted writes and keep offsets."""
    on_restore: OnRestore | None = None
    """A function that is called with the progress of a restore."""
    recording_level: RecordingLevel | str = RecordingLevel.INFO
    """DEBUG records the latencies of the stores in histograms (``operation_latency_seconds``), which costs about a
    microsecond for each call. With INFO the function gets the stores themselves."""

    def __post_init__(self) -> None:
        if self.guarantee is not None:
            member(ProcessingGuarantee, "processing guarantee", self.guarantee)
        checked_commit_interval_ms(self.commit_interval_ms, ProcessingGuarantee.EXACTLY_ONCE)
        if self.commit_every_records is not None:
            check_number("commit_every_records", self.commit_every_records, "1 or more, or None", 1)
        check_number("batch_max_records", self.batch_max_records, "1 or more", 1)
        check_number("batch_max_bytes", self.batch_max_bytes, "1 or more", 1)
        check_seconds("task_timeout_s", self.task_timeout_s, "0 (never try again) or more seconds")
        self.checked_on_errors(())
        checked_partitioner(self.partitioner)
        checked_offset_reset(self.auto_offset_reset)
        check_type(self.topology, Topology | None, "a topology is a Topology")
        check_type(self.automatic_state_relocation, bool, "automatic_state_relocation is a bool")
        check_type(self.verify_stores, bool, "verify_stores is True or False")
        check_type(self.snapshots, Snapshots | None, "snapshots is a Snapshots or None")
        if self.on_restore is not None:
            check_function("on_restore", self.on_restore, "the progress")
        member(RecordingLevel, "recording level", self.recording_level)

    def checked_on_errors(
        self, inputs: Iterable[TopicPartition]
    ) -> tuple[OnError | DeadLetterTopic, OnError | DeadLetterTopic]:
        """Return the choices for errors of the function, and for records that can't be read, of a task with ``inputs``.

        Raises: TypeError, ConfigError.
        """
        of_function = checked_on_error(self.on_error, inputs)
        if self.on_deserialization_error is None:
            return of_function, of_function
        return of_function, checked_on_error(self.on_deserialization_error, inputs, "on_deserialization_error")

    def guarantee_over(self, stores: Iterable[StoreConfig]) -> ProcessingGuarantee:
        """Return the guarantee of a task with these stores. Raises: ConfigError if theirs differ."""
        if self.guarantee is not None:
            return member(ProcessingGuarantee, "processing guarantee", self.guarantee)
        guarantees = {config.processing_guarantee for config in stores if config.processing_guarantee is not None}
        if len(guarantees) > 1:
            raise ConfigError(
                "the stores' configurations have different guarantees, and a task has one: give all of them the same "
                "processing_guarantee"
            )
        return ProcessingGuarantee(next(iter(guarantees), ProcessingGuarantee.EXACTLY_ONCE))


def check_process(process: object, process_batch: object) -> None:
    """Check that there is a function, of records or of batches. Raises: ConfigError, TypeError."""
    if process is not None and process_batch is not None:
        raise ConfigError("a task has one function: give process for single records, or process_batch for batches")
    if process_batch is not None:
        check_function("process_batch", process_batch, "the batch", "the context")
    else:
        check_function("process", process, "the record", "the context")


def check_functions(stores: Mapping[str, StoreConfig], guarantee: ProcessingGuarantee) -> None:
    """Check that a task under ``guarantee`` calls each function of its stores' descriptions once. Raises: ConfigError.

    A changelog under at least once may have the stream time that has closed a window, and not the window's output.
    """
    calling = [name for name, config in stores.items() if config.records is not None and config.records.needs_task]
    if calling and guarantee is not ProcessingGuarantee.EXACTLY_ONCE:
        raise ConfigError(
            f"the functions of store {calling[0]!r} are called exactly once, and the task is at-least-once: drop "
            "processing.guarantee, or the functions"
        )


@dataclass(frozen=True, kw_only=True)
class SharedResources:
    """The things that a task shares with other tasks of its process; by default nothing. Raises: TypeError."""

    memory: BudgetShare | None = None
    """The limit on memory of all tasks of the thread (``MemoryBudget.share``): before it is exceeded, all of them
    commit. None is the lowest ``uncommitted_max_bytes`` of the task's stores."""
    transaction: ThreadTransaction | None = None
    """The transaction of all tasks of the thread, which then commit and roll back together. It needs exactly once. An
    error in one task rolls back the others: ``run`` continues by itself, and other calls raise
    TransactionAbortedError once."""
    global_stores: GlobalStores | None = None
    """Open global stores. The function gets a view of each by ``context.store``, which cannot write."""
    clock: Clock | None = None
    """The clock of commit intervals and punctuators; None for the system's."""

    def __post_init__(self) -> None:
        check_type(self.memory, BudgetShare | None, "memory is what MemoryBudget.share() returns, or None")
        check_type(self.transaction, ThreadTransaction | None, "transaction is a ThreadTransaction or None")
        check_type(self.global_stores, GlobalStores | None, "global_stores is a GlobalStores or None")
        methods = ("monotonic_ns", "epoch_ms", "sleep")
        lacking = [name for name in methods if not callable(getattr(self.clock, name, None))]
        if self.clock is not None and lacking:
            raise TypeError(
                f"clock is an object with the methods of Clock; {type(self.clock).__name__} lacks {lacking[0]}()"
            )

    def check_task(self, stores: Iterable[str], guarantee: ProcessingGuarantee) -> None:
        """Check that a task with these stores and this guarantee can share them. Raises: ConfigError."""
        if self.global_stores is not None:
            check_apart(self.global_stores.names, list(stores))
        if self.transaction is not None and guarantee is not ProcessingGuarantee.EXACTLY_ONCE:
            raise ConfigError(
                "a task that shares a transaction is exactly-once: at least once there are no transactions"
            )


NOTHING_SHARED = SharedResources()


def checked_partitioner(partitioner: object) -> OutputPartitioner:
    """Return the partitioner for a name or a function of a key and a number. Raises: TypeError, ConfigError."""
    if isinstance(partitioner, str):
        return partitioner_named(partitioner)
    check_function("partitioner", partitioner, "the key", "the number of partitions")
    return cast("OutputPartitioner", partitioner)
