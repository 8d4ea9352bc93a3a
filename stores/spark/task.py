"""One partition of one batch: the state brought up, the rows computed, the version in the log, the rows given out.

The order of a commit:

1. rows into their file, whose name no other attempt has;
2. the version into the log: the changes of all stores, and the name of the rows. The first attempt wins;
3. each store commits the version;
4. the rows of the version are given out. An attempt that was not first gives out those of the one that was.

So a version in the log is final: its rows come from the log whenever Spark asks for the batch again, whatever failed
and whatever the function would answer now. A version that is not in the log leaves nothing. No batch is ever computed
from another state than that of the version before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from secrets import token_hex
from typing import TYPE_CHECKING

from stores.changelog.files import Header, PartitionLog, VersionLog
from stores.errors import ChangelogLostError, ProducerFencedError, StoreError, StoreIncompatibleError
from stores.records.handles import StoreTable
from stores.spark.context import TIMES, Context, PartitionState, rows_of_timers
from stores.spark.local_state import LocalState
from stores.spark.plan import Plan, QueryBatch
from stores.spark.rows import Rows, checked_batches, output_batches
from stores.spark.watermark import watermark_of

if TYPE_CHECKING:
    import pyarrow

ROWS_IN_MEMORY_BYTES = 32 << 20
"""Rows of a batch up to this size are given out from memory, larger ones from their file."""
OPEN_MAX = 64
"""The partitions whose stores stay open in one Python worker, and are at hand for its next batch."""

_open: dict[tuple[str, int], tuple[Plan, LocalState]] = {}
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchResult:
    """The rows of one partition of one batch: iterate over them, once."""

    rows: Iterator[pyarrow.RecordBatch]
    version: Header
    """The header of the version that the batch has in the log."""
    commit_ms: int = 0
    """The time that this attempt's commit took, in the log and in the stores.

    It is 0 if the log had the version already, or the local copy could not commit it.
    """

    def __iter__(self) -> Iterator[pyarrow.RecordBatch]:
        return self.rows


def run(plan: Plan, batch: QueryBatch, batches: Iterable[pyarrow.RecordBatch]) -> BatchResult:
    """Return the rows of one partition of one batch. Everything is done before the first one is given out.

    Raises: exceptions of the function, with a note about the row; as ``PartitionLog``; StoreIncompatibleError for
    another query; ChangelogLostError if versions before this batch are missing; ProducerFencedError for an old batch.
    """
    log = plan.open_log()
    if log.id != plan.log_id:
        raise ChangelogLostError(
            f"the state in {plan.location} is another one than on the driver: give a folder that driver and executors "
            "share"
        )
    if not batch.partition < log.partitions:
        raise StoreError(
            f"task {batch.partition} runs a partition of {log.partitions}: the query has changed the tasks of "
            "stateful(). Put its result through repartition() before coalesce() or union(), or write it first"
        )
    partition = log.partition(batch.partition)
    checked = checked_batches(batches, batch.partition, log.partitions, plan.key, plan.null_keys)
    first = next(checked, None)
    newest = partition.listing().newest
    before = None if newest is None else partition.header(newest)
    version, query_first = version_of(plan, batch, before, log.location)
    if before is not None and version == before.version:
        _check_job(plan, before, log.location)
        if before.has_input != (first is not None):
            raise StoreError(
                f"version {version} of partition {batch.partition} in {log.location} was made from "
                f"{'some rows' if before.has_input else 'no rows'}, and now there are "
                f"{'none' if before.has_input else 'some'}: the query has changed between two attempts at a batch"
            )
        return BatchResult(_again(partition, before, plan), before)
    if before is not None and before.has_times and TIMES not in plan.stores:
        raise StoreIncompatibleError(
            f"version {before.version} of partition {batch.partition} in {log.location} has the store of timers, and "
            "this query has none: give stateful() its on_timer, or a function of records or batches, again"
        )
    header = Header(
        "version",
        token_hex(8),
        batch.partition,
        version,
        newest,
        previous_id=None if before is None else before.id,
        query=batch.query,
        job=plan.job,
        first=query_first,
        has_input=first is not None,
        has_times=TIMES in plan.stores,
    )
    rows = Rows(checked if first is None else chain([first], checked), plan.order_by)
    return _compute(plan, batch, log, partition, header, {} if before is None else before.figures, rows)


def version_of(plan: Plan, batch: QueryBatch, newest: Header | None, location: str) -> tuple[int, int]:
    """Return the version that ``batch`` makes, and that of its query's batch 0. Raises: StoreError if it is not due."""
    if plan.version is not None or batch.number is None:
        version = first = plan.version or 0
    else:
        if newest is None:
            first = 0
        elif newest.query == batch.query:
            first = newest.first
        elif newest.query is None:
            first = newest.version + 1
        else:
            raise StoreIncompatibleError(
                f"the state in {location} belongs to the streaming query {newest.query}, and this is {batch.query}: "
                "start the query with its old checkpoint, or give another folder"
            )
        version = first + batch.number
    reached = -1 if newest is None else newest.version
    if version > reached + 1:
        raise ChangelogLostError(
            f"batch {batch.number} follows version {version - 1}, and partition {batch.partition} in {location} has "
            f"{'none' if newest is None else f'{reached} as its newest'}: bring the folder back from a copy, or start "
            "the query with a new checkpoint and a new folder"
        )
    if version < reached:
        raise ProducerFencedError(
            f"batch {batch.number} is version {version} in {location}, and partition {batch.partition} is at "
            f"{reached}: its checkpoint is older than the state. Bring both back from the same copy"
        )
    return version, first


def _check_job(plan: Plan, in_log: Header, location: str) -> None:
    """Check that the version in the log is of this job or query. Raises: StoreIncompatibleError."""
    if plan.version is not None and (in_log.query is not None or plan.job not in (None, in_log.job)):
        other = f"the streaming query {in_log.query}" if in_log.query is not None else "another batch job"
        raise StoreIncompatibleError(
            f"{other} has made version {in_log.version} of partition {in_log.partition} in {location} at the same "
            "time: let one job or query after the other use a state"
        )


def _compute(
    plan: Plan,
    batch: QueryBatch,
    log: VersionLog,
    partition: PartitionLog,
    header: Header,
    figures: Mapping[str, Mapping[str, int]],
    rows: Rows,
) -> BatchResult:
    """Compute a batch and commit it as the version of ``header``, after a version with ``figures``."""
    state = _state_of(plan, batch.partition)
    row_file = partition.write_rows(replace(header, kind="rows"), plan.output)
    in_memory: list[pyarrow.RecordBatch] | None = []
    kept_bytes = 0
    try:
        restored = state.bring_to(partition, header.previous, header.previous_id)
        context = _context(plan, batch, header, state)
        for output in _results(plan, context, rows):
            row_file.write(output)
            kept_bytes += output.nbytes
            if kept_bytes > ROWS_IN_MEMORY_BYTES:
                in_memory = None
            if in_memory is not None:
                in_memory.append(output)
        changes = state.take_changes()
        header = replace(
            header,
            rows=row_file.finish(),
            num_rows=row_file.num_rows,
            figures=state.figures(changes, figures),
            restored=restored,
            previous_commit_ms=state.commit_ms,
        )
        began_s = time.perf_counter()
        in_log = partition.append(header, changes)
        if in_log.id != header.id:
            _log.warning("another attempt has written version %d of partition %d", header.version, batch.partition)
            _forget(plan, batch.partition)
            _check_job(plan, in_log, log.location)
            return BatchResult(_again(partition, in_log, plan), in_log)
    except BaseException as error:
        _forget(plan, batch.partition)
        row_file.discard(error)
        raise
    commit_ms = 0
    try:
        state.commit(header.version, header.id)
        commit_ms = state.commit_ms = round((time.perf_counter() - began_s) * 1000)
        _maintain(partition, header, state)
    except StoreError as error:
        # The log has the version, so the batch is done. The local copy is brought up from there.
        _log.warning("after version %d of partition %d: %s", header.version, batch.partition, error)
        _forget(plan, batch.partition)
    return BatchResult(partition.read_rows(header) if in_memory is None else iter(in_memory), header, commit_ms)


def _context(plan: Plan, batch: QueryBatch, header: Header, state: LocalState) -> Context:
    watermark = None
    if plan.checkpoint is not None and batch.number is not None and batch.query is not None:
        # A function may ask for it with each row.
        watermark = cache(partial(watermark_of, plan.checkpoint, batch.number, batch.query))
    stores = StoreTable(
        "the query",
        {name: store for name, store in state.stores.items() if name != TIMES},
        {name: config.records for name, config in plan.stores.items()},
    )
    times = PartitionState(state.stores.get(TIMES), watermark, state.record_time)
    return Context(batch.partition, header.version, batch.number, batch.query, stores, times)


def _results(plan: Plan, context: Context, rows: Rows) -> Iterator[pyarrow.RecordBatch]:
    try:
        yield from output_batches(plan.process(rows, context), plan.output)
        rows.forget()
        if plan.on_timer is not None:
            yield from output_batches(rows_of_timers(plan.on_timer, context), plan.output)
    except Exception as error:
        where = f"batch {context.batch_id}, " if context.batch_id is not None else ""
        note = f"{where}version {context.version}, partition {context.partition}"
        if rows.row is not None:
            key = ", ".join(f"{name} {rows.value(name)!r}" for name in plan.key)
            note += f", row {rows.row_number} with the key {key}: {tuple(rows.row)!r}"
        error.add_note(f"The function of stateful() failed in {note}. Nothing of this batch is committed here.")
        raise


def _again(partition: PartitionLog, header: Header, plan: Plan) -> Iterator[pyarrow.RecordBatch]:
    """Give out the rows of a version that is in the log."""
    for batch in partition.read_rows(header):
        if not batch.schema.equals(plan.output, check_metadata=False):
            raise StoreIncompatibleError(
                f"version {header.version} gave out rows with other columns, {', '.join(batch.schema.names)}, than are "
                f"declared now, {', '.join(plan.output.names)}: finish that batch with the declaration of before"
            )
        yield batch


def _maintain(partition: PartitionLog, header: Header, state: LocalState) -> None:
    listing = partition.listing()
    if partition.snapshot_due(listing):
        partition.write_snapshot(replace(header, kind="snapshot", rows=None, num_rows=0), state.records())
        listing = partition.listing()
    partition.remove_old(listing)


def _state_of(plan: Plan, partition: int) -> LocalState:
    """Return the open stores of a partition, from the last batch in this process if they fit."""
    key = (plan.log_id, partition)
    entry = _open.pop(key, None)
    if entry is not None and entry[0].stores_id == plan.stores_id and entry[0].local_folder() == plan.local_folder():
        _open[key] = (plan, entry[1])
        return entry[1]
    if entry is not None:
        entry[1].close()
    state = LocalState(plan.local_folder() / plan.log_id, partition, plan.stores)
    while len(_open) >= OPEN_MAX:
        _open.pop(next(iter(_open)))[1].close()
    _open[key] = (plan, state)
    return state


def _forget(plan: Plan, partition: int) -> None:
    """Close the stores of a partition, whose staged writes count for nothing."""
    entry = _open.pop((plan.log_id, partition), None)
    if entry is not None:
        entry[1].close()
