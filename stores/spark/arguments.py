"""Checks on the driver before a query: the arguments of ``stateful`` by their names, and the Python of executors."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stores.config import StoreConfig
from stores.contract.arguments import check_function, check_number, check_type
from stores.declarations import Stores, configurations
from stores.errors import ConfigError
from stores.extras import install_command
from stores.records.timestamped import TTL
from stores.registry import backend_named
from stores.spark.context import TIMES, TIMES_KIND
from stores.spark.plan import PARTITION_COLUMN
from stores.spark.record_columns import FORWARDED, VALUE
from stores.spark.rows import GROUP, REFUSE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


SPARK_MIN = (4, 1)
_PARTITIONS_MAX = 99_999
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_DELAY = "spark.watermarkDelayMs"
"""The metadata by which Spark marks a column with a watermark."""


def check_events(events: DataFrame, keys: tuple[str, ...], order_by: str | None, null_keys: str) -> None:
    """Check the DataFrame and the columns that it must have. Raises: ConfigError."""
    version = events.sparkSession.version
    if tuple(int(part) for part in version.split(".")[:2]) < SPARK_MIN:
        raise ConfigError(f"Spark {version} is too old: stateful() needs {'.'.join(map(str, SPARK_MIN))} or newer")
    if not keys:
        raise ConfigError("key names no column: name at least one")
    for what, name in [*(("key column", name) for name in keys), *([("order_by", order_by)] if order_by else [])]:
        if name not in events.columns:
            raise ConfigError(
                f"the {what} {name!r} is not in the DataFrame, whose columns are {', '.join(events.columns)}"
            )
    for name in keys:
        kind = events.schema[name].dataType.simpleString()
        if " collate " in kind:
            # Spark sends rows to tasks by the collation, and its function hash() goes by bytes, as stores do.
            raise ConfigError(
                f"the key column {name!r} is a {kind}, in which different texts are equal, and stores tell keys apart "
                f"by their bytes: give it as collate({name}, 'UTF8_BINARY'), or lower() of that"
            )
    if PARTITION_COLUMN in events.columns:
        raise ConfigError(f"the DataFrame has a column {PARTITION_COLUMN!r}: rename it")
    if null_keys not in (REFUSE, GROUP):
        raise ConfigError(f"null_keys is {REFUSE!r} or {GROUP!r}, not {null_keys!r}")


FUNCTIONS = {"process": "the rows", "process_record": "the record", "process_batch": "the batch"}
"""The functions, of which a query has one, and what each is called with."""


def check_functions(functions: Mapping[str, object], on_timer: object, topics: object) -> None:
    """Check the functions: one of ``FUNCTIONS`` is not None. That of rows has no ``topics``.

    Raises: TypeError, ConfigError.
    """
    given = [name for name, function in functions.items() if function is not None]
    if len(given) != 1:
        raise ConfigError(
            f"give one function, and not {' and '.join(given) or 'none'}: of rows as process, of records as "
            "process_record, or of many records as process_batch"
        )
    [name] = given
    check_function(name, functions[name], FUNCTIONS[name], "the context")
    if name == "process" and topics:
        raise ConfigError(
            "a function of rows reads no topics: leave topics out, or give process_record or process_batch"
        )
    if on_timer is not None:
        check_function("on_timer", on_timer, "the key", "the time", "the context")


def check_numbers(partitions: object, version: object) -> None:
    """Check the number of partitions, and the version of a batch job. Raises: TypeError, ConfigError."""
    check_number("partitions", partitions, f"a number from 1 to {_PARTITIONS_MAX}", 1, _PARTITIONS_MAX)
    if version is not None:
        check_number("version", version, "a number from 0", 0)


def check_records(events: DataFrame, keys: tuple[str, ...]) -> None:
    """Check the columns that become records. Raises: ConfigError."""
    if len(keys) != 1:
        raise ConfigError(f"a record has one key, and key names {', '.join(keys)}: give a function of rows as process")
    for name in (*keys, VALUE):
        kind = events.schema[name].dataType.typeName() if name in events.columns else None
        if kind not in ("string", "binary"):
            raise ConfigError(
                f"a record needs the columns {keys[0]!r} and {VALUE!r} as binary or string, and {name!r} is "
                f"{kind or 'missing'}: select them so, or give a function of rows as process"
            )


def check_batches(max_records: object, max_bytes: object) -> None:
    """Check the bounds of a batch of records. Raises: TypeError, ConfigError."""
    check_number("batch_max_records", max_records, "1 or more", 1)
    check_number("batch_max_bytes", max_bytes, "1 or more", 1)


def check_timers(events: DataFrame, checkpoint: object, *, streaming: bool) -> None:
    """Check that timers can fire. Raises: ConfigError."""
    if streaming and checkpoint is None:
        raise ConfigError("timers need the watermark: give the query's checkpointLocation as checkpoint as well")
    if events.isStreaming and not any(_DELAY in field.metadata for field in events.schema.fields):
        raise ConfigError(
            "timers need a watermark: call withWatermark(COLUMN, DELAY) on the events, and keep that column"
        )


def check_idle(fire_when_idle: object, *, streaming: bool, timers: bool) -> None:
    """Check that batches without rows have a use. Raises: TypeError, ConfigError."""
    check_type(fire_when_idle, bool, "fire_when_idle is a bool")
    if fire_when_idle and not (streaming and timers):
        raise ConfigError(
            "fire_when_idle is for the timers of a streaming query: give stateful() a streaming DataFrame and on_timer"
        )


def configs_of(stores: Stores, *, times: bool) -> dict[str, StoreConfig]:
    """Return the configurations by name, with that of the store for ``times`` if there is to be one.

    Raises: ConfigError, TypeError.
    """
    configs = configurations(stores, StoreConfig())
    if not configs:
        raise ConfigError("stores is empty: give at least one store by its name")
    for name in configs:
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name == TIMES:
            raise ConfigError(f"{name!r} is no name of a store: use letters, digits, '_', '-' and '.', not {TIMES!r}")
    for name, config in configs.items():
        if config.records is not None and config.records.needs_task:
            raise ConfigError(f"store {name!r} calls a function of its description, which needs a task: leave it out")
        if not backend_named(config.backend).transactional:
            raise ConfigError(
                f"store {name!r} has the backend {config.backend}, which can't take back what a failed batch has "
                "written: choose another one, such as rocksdb-indexed-batch"
            )
    if times:
        configs[TIMES] = StoreConfig(next(iter(configs.values())).backend)
    return configs


def description_of(name: str, config: StoreConfig) -> dict[str, object]:
    """Return what determines the bytes of a store. Its backend does not: the log has no trace of that."""
    if name == TIMES:
        return {"kind": TIMES_KIND}
    records = config.records
    if records is None:
        return {"kind": "bytes"}
    # The time to live may change, and each version has its own: see stores.spark.local_state.
    return {"kind": records.kind, **{key: value for key, value in records.description().items() if key != TTL}}


def parsed_output(output: Any, *, records: bool) -> StructType:
    """Return the schema; that of records is the default for ``records``. Raises: ConfigError."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType, _parse_datatype_string

    schema = FORWARDED if output is None and records else output
    try:
        struct = _parse_datatype_string(schema) if isinstance(schema, str) else schema
    except PySparkException as error:
        raise ConfigError(f"output is no schema: {schema!r}. Give one as 'name string, count long'") from error
    if not isinstance(struct, StructType):
        raise ConfigError(f"output is no schema with named columns: {schema!r}. Give one as 'name string, count long'")
    twice = sorted({name for name in struct.names if struct.names.count(name) > 1})
    if twice:
        raise ConfigError(f"output has the column {twice[0]!r} more than once: give each another name")
    return struct


VARIABLE = "PYSPARK_PYTHON"
"""The variable that names the Python of executors; without it Spark starts ``python3`` of PATH there."""
_MODULES = ("pyarrow", "pandas", "stores.spark.task")
_checked: set[str] = set()
"""The applications of Spark whose Python was found to have all that it needs."""


def prepare_python(session: SparkSession) -> None:
    """Let Spark run functions in the driver's Python on a local master; check that a Python named otherwise can.

    The check is one small job for each application. Raises: ConfigError if that Python does not start, is of another
    version, or lacks a package.
    """
    context = getattr(session, "sparkContext", None)
    if context is None or context.applicationId in _checked:
        return
    if context.master.startswith("local") and not os.environ.get(VARIABLE):
        context.pythonExec = sys.executable
    if context.pythonExec != sys.executable or not context.master.startswith("local"):
        _check(context)
    _checked.add(context.applicationId)


def _check(context: Any) -> None:
    """Import what a query needs in one task. Raises: ConfigError."""
    modules = _MODULES

    def import_modules(_: object) -> Iterator[str]:
        # Sent as code, so that it runs where the library is missing.
        import importlib

        for module in modules:
            try:
                importlib.import_module(module)
            except ImportError as error:
                yield str(error)

    try:
        problems = context.parallelize([0], 1).mapPartitions(import_modules).collect()
    except Exception as error:
        raise ConfigError(f"{_cannot_run(context.pythonExec)}: {_reason(error)}") from error
    if problems:
        raise ConfigError(f"{_cannot_run(context.pythonExec)}: {problems[0]}. {_advice()}")


def _cannot_run(python: str) -> str:
    return f"the Python of Spark's executors, {python!r} ({_origin()}), cannot run stateful()"


def _origin() -> str:
    return f"from {VARIABLE}" if os.environ.get(VARIABLE) else f"Spark's default, because {VARIABLE} is not set"


def _advice() -> str:
    return (
        f"Set {VARIABLE} to a Python {sys.version_info[0]}.{sys.version_info[1]} that has txstores[spark] on each "
        f"executor; the driver's was installed by {install_command('spark')}"
    )


def _reason(error: Exception) -> str:
    """Return what went wrong in the job, in one sentence, with what to do."""
    text = str(error)
    for mark in ("PYTHON_VERSION_MISMATCH", "Cannot run program"):
        if mark in text:
            line = next(line for line in text.splitlines() if mark in line)
            return f"{line[line.index(mark) :].strip()}. {_advice()}"
    return f"the job that tries it failed, {text.strip().splitlines()[0]} {_advice()}"
