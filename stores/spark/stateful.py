"""The transformation of a DataFrame whose function keeps state in stores of the library."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from stores.changelog.files import Retention, VersionLog
from stores.config import StoreConfig
from stores.declarations import Stores
from stores.errors import ChangelogError, ConfigError, StoreError, StoreIncompatibleError
from stores.files.folder import PutIfAbsent
from stores.spark.arguments import (
    SPARK_MIN,
    check_batches,
    check_events,
    check_functions,
    check_idle,
    check_numbers,
    check_records,
    check_timers,
    configs_of,
    description_of,
    parsed_output,
    prepare_python,
)
from stores.spark.context import TIMES
from stores.spark.figures import figures_of, observed, with_column, with_figures
from stores.spark.plan import PARTITION_COLUMN, Plan, QueryBatch
from stores.spark.record_wise import BatchWise, RecordWise, checked_output, topics_by_name
from stores.spark.rows import REFUSE
from stores.spark.watermark import absolute
from stores.tasks.settings import BATCH_MAX_BYTES, BATCH_MAX_RECORDS

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from stores.changelog.interface import Record
    from stores.spark.context import Context
    from stores.spark.rows import Rows
    from stores.tasks.record_batch import Batch
    from stores.topic import Topic


def stateful(
    events: DataFrame,
    *,
    key: str | Sequence[str],
    process: Callable[[Rows, Context], Iterable[Any] | None] | None = None,
    process_record: Callable[[Record[Any, Any], Any], None] | None = None,
    process_batch: Callable[[Batch[Any, Any], Any], None] | None = None,
    batch_max_records: int = BATCH_MAX_RECORDS,
    batch_max_bytes: int = BATCH_MAX_BYTES,
    topics: Sequence[Topic[Any, Any]] = (),
    output: str | StructType | None = None,
    stores: Stores,
    state: str | os.PathLike[str],
    partitions: int | None = None,
    on_timer: Callable[[Any, int, Any], Iterable[Any] | None] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    fire_when_idle: bool = False,
    order_by: str | None = None,
    null_keys: str = REFUSE,
    local: str | os.PathLike[str] | None = None,
    retention: Retention | None = None,
    put_if_absent: PutIfAbsent | None = None,
    version: int | None = None,
) -> DataFrame:
    """Return the rows that a function gives out for ``events``, a streaming or a batch DataFrame.

    All rows of a ``key``, one or more columns, are in one of ``partitions``; the default is that of the state, or, for
    a new one, the number of cores. For each partition of each batch ``process(rows, context)`` is called once, also if
    it has no rows. It reads and writes ``context.store(name)``, and returns or yields rows of the schema ``output``:
    Arrow batches or tables, tuples, or dictionaries. State and rows count exactly once, in any sink, whatever fails and
    however often Spark computes a batch.

    ``process_record(record, context)``, instead of ``process``, is the function of a ``StreamTask``: see
    ``stores.spark.record_wise``. The columns ``key`` and ``value`` are those of the record, and ``topic``,
    ``partition``, ``offset``, ``timestamp`` (or ``timestamp_ms``) and ``headers`` if they are there. The rows are what
    it forwards, with these columns. Within a batch they are in the order of ``offset`` if there is no ``order_by``.
    Records of ``topics`` have what the serdes of the ``Topic`` read, and all others bytes. The exception about one that
    they can't read fails the batch, as those of the function do.

    ``process_batch(batch, context)``, instead of these, gets a ``Batch`` of up to ``batch_max_records`` such records of
    one input partition, whose keys and values have up to ``batch_max_bytes``; a larger record is alone. Without
    ``order_by``, the order among several inputs is any.

    ``stores`` are declared as those of a ``StreamTask``. ``state`` is a folder that driver
    and executors share, a path or a URI of ``pyarrow.fs``; it holds the state, and ``put_if_absent`` is the conditional
    put of an object store. ``local`` is a folder on each executor for copies that queries open; by default Spark's own,
    which is removed at the end. Rows are in the order of the column ``order_by`` within a batch. ``null_keys`` refuses
    a key that is null, or, with ``group``, lets such rows be a group.

    ``on_timer(key, time_ms, context)`` is called after the rows of a batch for each timer of ``context.timers`` that
    the watermark has reached, and gives out rows as ``process`` does. For that ``events`` have a watermark, and
    ``checkpoint`` is the query's checkpointLocation, which executors can read. With ``fire_when_idle`` a batch without
    rows follows when the watermark has advanced and no more data comes. This adds a source to the query, so it stays as
    it was in the query's first batch.

    In a streaming query a batch makes one version of the state. A batch DataFrame makes the next one, each time that
    this function is called. If such a job fails, repeat it with the ``version`` that the error names, over the same
    rows: partitions that have it give out their rows again. Timers do not fire in such a job.

    The state can be read as a table from then on in this session: ``format("txstores")``.

    Raises: ConfigError and TypeError for a wrong argument; StoreIncompatibleError if the state was created with another
    key, number of partitions, or stores, or the folder is not one of a state; as ``VersionLog.open_or_create`` and
    ``prepare_python``.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import to_arrow_schema

    from stores.spark.sources import StateTable, with_idle_batches

    keys = (key,) if isinstance(key, str) else tuple(key)
    checkpoint = None if checkpoint is None else absolute(os.fspath(checkpoint))
    check_events(events, keys, order_by, null_keys)
    functions = {"process": process, "process_record": process_record, "process_batch": process_batch}
    check_functions(functions, on_timer, topics)
    of_records = process is None
    schema = parsed_output(output, records=of_records)
    if of_records:
        check_records(events, keys)
        check_batches(batch_max_records, batch_max_bytes)
        arguments = (keys[0], checked_output(schema), on_timer, topics_by_name(topics, events.columns))
        record_wise = (
            RecordWise(process_record, *arguments)
            if process_record is not None
            else BatchWise(
                process_batch,  # type: ignore[arg-type]
                *arguments,
                max_records=batch_max_records,
                max_bytes=batch_max_bytes,
                in_order=order_by is not None,
            )
        )
        process, on_timer = record_wise, None if on_timer is None else record_wise.on_timer
        order_by = "offset" if order_by is None and "offset" in events.columns else order_by
    configs = configs_of(stores, times=on_timer is not None or of_records)
    partitions = _default_partitions(events, state) if partitions is None else partitions
    check_numbers(partitions, version)
    batch_id, query = _surrounding_batch(events)
    if on_timer is not None:
        check_timers(events, checkpoint, streaming=events.isStreaming or query is not None)
    check_idle(fire_when_idle, streaming=events.isStreaming, timers=on_timer is not None)
    prepare_python(events.sparkSession)
    description = {
        "partitions": partitions,
        "key": list(keys),
        "stores": {name: description_of(name, config) for name, config in sorted(configs.items())},
    }
    rule = retention or Retention()
    # State without timers may gain the timer store at any version.
    log = VersionLog.open_or_create(state, description, retention=rule, put_if_absent=put_if_absent, may_add=(TIMES,))
    job = None
    if not events.isStreaming and query is None:
        version, repeated = next_version(log, version)
        job = None if repeated else token_hex(8)
    elif version is not None:
        raise ConfigError("a version is given for a batch DataFrame only: a streaming query has its batches")
    plan = Plan(
        location=log.location,
        log_id=log.id,
        stores=configs,
        stores_id=_digest(configs),
        process=process,  # type: ignore[arg-type]
        output=to_arrow_schema(schema, timezone="UTC"),
        key=keys,
        order_by=order_by,
        null_keys=null_keys,
        retention=rule,
        put_if_absent=put_if_absent,
        local=None if local is None else os.path.abspath(os.fspath(local)),
        version=version,
        job=job,
        batch_id=batch_id,
        query=query,
        on_timer=on_timer,
        checkpoint=checkpoint,
    )

    shown = with_column(schema)
    given_out = to_arrow_schema(shown, timezone="UTC")

    def compute(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        from stores.spark.task import run

        result = run(plan, this_batch(plan), batches)
        return with_figures(result.rows, given_out, figures_of(result.version, result.commit_ms))

    if query is None:
        events.sparkSession.dataSource.register(StateTable)
    if fire_when_idle:
        events = with_idle_batches(events, checkpoint)  # type: ignore[arg-type]
    columns = [F.col(_quoted(name)) for name in keys]
    belongs = F.pmod(F.hash(*columns), F.lit(partitions)).alias(PARTITION_COLUMN)
    computed = events.select("*", belongs).repartition(partitions, *columns).mapInArrow(compute, shown)
    return observed(computed, f"txstores:{log.location}")


def this_batch(plan: Plan) -> QueryBatch:
    """Return the partition and the batch of this process's Spark task. Raises: StoreError outside of a task."""
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:
        raise StoreError("stateful() computes its rows in a Spark task: run the DataFrame by an action or a query")
    if plan.version is not None:
        return QueryBatch(task.partitionId(), None, None)
    if plan.query is not None:
        return QueryBatch(task.partitionId(), plan.batch_id, plan.query)
    number, query = task.getLocalProperty("streaming.sql.batchId"), task.getLocalProperty("sql.streaming.queryId")
    if number is None or query is None:
        raise StoreError(
            "this Spark does not say which batch of which query it computes: run the query in micro-batches, with "
            f"Spark {'.'.join(map(str, SPARK_MIN))} or newer"
        )
    return QueryBatch(task.partitionId(), int(number), query)


def _surrounding_batch(events: DataFrame) -> tuple[int | None, str | None]:
    """Return the batch and the query in whose ``foreachBatch`` a batch DataFrame is made, if there is one."""
    context = getattr(events.sparkSession, "sparkContext", None)
    if events.isStreaming or context is None:
        return None, None
    number = context.getLocalProperty("streaming.sql.batchId")
    query = context.getLocalProperty("sql.streaming.queryId")
    return (None, None) if number is None or query is None else (int(number), str(query))


def _default_partitions(events: DataFrame, state: str | os.PathLike[str]) -> int:
    """Return the number of partitions of the state; for a new one the number of cores."""
    try:
        return VersionLog.open(state).partitions
    except ChangelogError:
        context = getattr(events.sparkSession, "sparkContext", None)
        return 2 if context is None else int(context.defaultParallelism)


def _digest(configs: Mapping[str, StoreConfig]) -> str:
    from pyspark import cloudpickle

    pickled: bytes = cloudpickle.dumps(dict(configs))  # type: ignore[no-untyped-call]
    return sha256(pickled).hexdigest()


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def next_version(log: VersionLog, wanted: int | None) -> tuple[int, bool]:
    """Return ``wanted``, or the version after the newest; and True if the log has it already, so that it is repeated.

    Each partition must have the one before.

    Without ``wanted``, the newest must not be that of a streaming query, which could not continue after the job.

    Raises: StoreError if an earlier job has left a version in some partitions only, unless ``wanted`` is that one;
    StoreIncompatibleError for the state of a streaming query; ConfigError if ``wanted`` is neither the newest version
    nor the next.
    """
    newest = [log.partition(number).listing().newest for number in range(log.partitions)]
    reached = [-1 if version is None else version for version in newest]
    last = max(reached)
    complete = sum(version == last for version in reached)
    if min(reached) < last - 1:
        raise StoreError(
            f"the partitions in {log.location} are at versions {min(reached)} to {last}: bring the folder back from a "
            "copy"
        )
    if complete < len(reached):
        if wanted == last:
            return last, True
        raise StoreError(
            f"only {complete} of {len(reached)} partitions in {log.location} have version {last}, because the batch "
            f"did not finish: repeat it with version={last} over the same rows, or let its streaming query go on"
        )
    if wanted is None:
        query = None if last < 0 else log.partition(0).header(last).query
        if query is not None:
            raise StoreIncompatibleError(
                f"the state in {log.location} belongs to the streaming query {query}, which can't continue after a "
                f"batch job: give another folder, or version={last + 1} if that query has ended for good"
            )
        return last + 1, False
    if wanted not in (last, last + 1):
        raise ConfigError(
            f"version {wanted} can't be made in {log.location}, whose newest is {last}: give {last} to repeat it, "
            f"{last + 1} for the next, or none"
        )
    return wanted, wanted == last
