"""The transformation of a DataFrame whose function keeps state in stores of the library."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from stores.changelog.files import Retention, VersionLog
from stores.changelog.files.folder import PutIfAbsent
from stores.config import StoreConfig
from stores.errors import ConfigError, StoreError
from stores.spark.plan import PARTITION_COLUMN, Batch, Plan
from stores.spark.rows import GROUP, REFUSE
from stores.spark.versions import next_version

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from stores.spark.context import Context
    from stores.spark.rows import Rows

SPARK_MIN = (4, 1)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def stateful(
    events: DataFrame,
    *,
    key: str | Sequence[str],
    process: Callable[[Rows, Context], Iterable[Any] | None],
    output: str | StructType,
    stores: Mapping[str, StoreConfig | str],
    partitions: int,
    state: str | os.PathLike[str],
    order_by: str | None = None,
    null_keys: str = REFUSE,
    local: str | os.PathLike[str] | None = None,
    retention: Retention | None = None,
    put_if_absent: PutIfAbsent | None = None,
    version: int | None = None,
) -> DataFrame:
    """Return the rows that ``process`` gives out for ``events``, a streaming or a batch DataFrame.

    All rows of a ``key``, one or more columns, are in one of ``partitions``. For each partition of each batch
    ``process(rows, context)`` is called once, also if it has no rows. It reads and writes ``context.store(name)``, and
    returns or yields rows of the schema ``output``: Arrow batches or tables, tuples, or dictionaries. State and rows
    count exactly once, in any sink, whatever fails and however often Spark computes a batch.

    ``stores`` are configurations by name, or names of backends. ``state`` is a folder that driver and executors share,
    a path or a URI of ``pyarrow.fs``; it holds the state, and ``put_if_absent`` is the conditional put of an object
    store. ``local`` is a folder on each executor for copies that queries open; by default Spark's own, which is removed
    at the end. Rows are in the order of the column ``order_by`` within a batch. ``null_keys`` refuses a key that is
    null, or, with ``group``, lets such rows be a group.

    In a streaming query a batch makes one version of the state. A batch DataFrame makes the next one, each time that
    this function is called. If such a job fails, repeat it with the ``version`` that the error names, over the same
    rows: partitions that have it give out their rows again.

    Raises: ConfigError for a wrong argument; StoreIncompatibleError if the state was created with another key, number
    of partitions, or stores; as ``VersionLog.open_or_create``.
    """
    from pyspark.sql import functions as F

    keys = (key,) if isinstance(key, str) else tuple(key)
    configs = _configs(stores)
    _check(events, keys, process, partitions, order_by, null_keys, version)
    description = {
        "partitions": partitions,
        "key": list(keys),
        "stores": {name: _description(config) for name, config in sorted(configs.items())},
    }
    rule = retention or Retention()
    log = VersionLog.open_or_create(state, description, retention=rule, put_if_absent=put_if_absent)
    batch_id, query = _surrounding_batch(events)
    job = None
    if not events.isStreaming and query is None:
        job = token_hex(8) if version is None else None
        version = next_version(log, version)
    elif version is not None:
        raise ConfigError("a version is given for a batch DataFrame only: a streaming query has its batches")
    plan = Plan(
        location=log.location,
        log_id=log.id,
        stores=configs,
        stores_id=_digest(configs),
        process=process,
        output=_arrow_schema(events, output),
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
    )

    def compute(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        from stores.spark.task import run

        return iter(run(plan, this_batch(plan), batches))

    columns = [F.col(_quoted(name)) for name in keys]
    belongs = F.pmod(F.hash(*columns), F.lit(partitions)).alias(PARTITION_COLUMN)
    return events.select("*", belongs).repartition(partitions, *columns).mapInArrow(compute, output)


def this_batch(plan: Plan) -> Batch:
    """Return the partition and the batch of this process's Spark task. Raises: StoreError outside of a task."""
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:
        raise StoreError("stateful() computes its rows in a Spark task: run the DataFrame by an action or a query")
    if plan.version is not None:
        return Batch(task.partitionId(), None, None)
    if plan.query is not None:
        return Batch(task.partitionId(), plan.batch_id, plan.query)
    number, query = task.getLocalProperty("streaming.sql.batchId"), task.getLocalProperty("sql.streaming.queryId")
    if number is None or query is None:
        raise StoreError(
            "this Spark does not say which batch of which query it computes: run the query in micro-batches, with "
            f"Spark {'.'.join(map(str, SPARK_MIN))} or newer"
        )
    return Batch(task.partitionId(), int(number), query)


def _surrounding_batch(events: DataFrame) -> tuple[int | None, str | None]:
    """Return the batch and the query in whose ``foreachBatch`` a batch DataFrame is made, if there is one."""
    context = getattr(events.sparkSession, "sparkContext", None)
    if events.isStreaming or context is None:
        return None, None
    number = context.getLocalProperty("streaming.sql.batchId")
    query = context.getLocalProperty("sql.streaming.queryId")
    return (None, None) if number is None or query is None else (int(number), str(query))


def _check(
    events: DataFrame,
    keys: tuple[str, ...],
    process: object,
    partitions: object,
    order_by: str | None,
    null_keys: str,
    version: object,
) -> None:
    given = events.sparkSession.version
    if tuple(int(part) for part in given.split(".")[:2]) < SPARK_MIN:
        raise ConfigError(f"Spark {given} is too old: stateful() needs {'.'.join(map(str, SPARK_MIN))} or newer")
    if not callable(process):
        raise TypeError(f"process is a function of rows and a context, not {type(process).__name__}")
    if not isinstance(partitions, int) or isinstance(partitions, bool) or not 1 <= partitions <= 99_999:
        raise ConfigError(f"partitions is a number from 1 to 99999, not {partitions!r}")
    if not keys:
        raise ConfigError("key names no column: name at least one")
    for what, name in [*(("key column", name) for name in keys), *([("order_by", order_by)] if order_by else [])]:
        if name not in events.columns:
            raise ConfigError(
                f"the {what} {name!r} is not in the DataFrame, whose columns are {', '.join(events.columns)}"
            )
    if PARTITION_COLUMN in events.columns:
        raise ConfigError(f"the DataFrame has a column {PARTITION_COLUMN!r}: rename it")
    if null_keys not in (REFUSE, GROUP):
        raise ConfigError(f"null_keys is {REFUSE!r} or {GROUP!r}, not {null_keys!r}")
    if version is not None and (not isinstance(version, int) or version < 0):
        raise ConfigError(f"version is a number from 0, not {version!r}")


def _configs(stores: Mapping[str, StoreConfig | str]) -> dict[str, StoreConfig]:
    if not stores:
        raise ConfigError("stores is empty: give at least one store by its name")
    configs = {}
    for name, config in stores.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is no name of a store: use letters, digits, '_', '-' and '.'")
        if not isinstance(config, (StoreConfig, str)):
            raise TypeError(f"store {name!r} has a StoreConfig or the name of a backend, not {type(config).__name__}")
        configs[name] = StoreConfig(config) if isinstance(config, str) else config
    return configs


def _description(config: StoreConfig) -> dict[str, object]:
    """Return what determines the bytes of a store. Its backend does not: the log has no trace of that."""
    records = config.records
    return {"kind": "bytes"} if records is None else {"kind": records.kind, **records.description()}


def _digest(configs: Mapping[str, StoreConfig]) -> str:
    from pyspark import cloudpickle

    pickled: bytes = cloudpickle.dumps(dict(configs))  # type: ignore[no-untyped-call]
    return sha256(pickled).hexdigest()


def _arrow_schema(events: DataFrame, output: str | StructType) -> pyarrow.Schema:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType, _parse_datatype_string

    try:
        parsed = _parse_datatype_string(output) if isinstance(output, str) else output
    except PySparkException as error:
        raise ConfigError(f"output is no schema: {output!r}. Give one as 'name string, count long'") from error
    if not isinstance(parsed, StructType):
        raise ConfigError(f"output is no schema with named columns: {output!r}. Give one as 'name string, count long'")
    return to_arrow_schema(parsed, timezone="UTC")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
