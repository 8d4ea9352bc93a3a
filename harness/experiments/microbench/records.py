"""The cost of typed stores: puts and lookups with times or through serdes, and of plain bytes of the same size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.experiments.microbench.case import GET, GET_RECENT, PUT, Case
from harness.experiments.microbench.load import Load, Pairs, batches
from stores import KeyValueStore
from stores.records import BYTES, INT64, STR, KeyValue, TimestampedKeyValue

_TIME_MS = 1_700_000_000_000


@dataclass(frozen=True)
class RecordForm:
    """The conversion of pairs of 16 and 100 bytes to the arguments of a ``put``."""

    over: Callable[[KeyValueStore], Any]
    arguments: Callable[[bytes, bytes], tuple[Any, ...]]


FORMS: Mapping[str, RecordForm] = {
    "bytes": RecordForm(lambda store: store, lambda key, value: (key, value)),
    "timestamped": RecordForm(
        TimestampedKeyValue(BYTES, BYTES).over, lambda key, value: (key, value[:-8], _TIME_MS + value[7])
    ),
    "short-bytes": RecordForm(lambda store: store, lambda key, value: (key.hex()[:16].encode(), value[:8])),
    "text-to-number": RecordForm(
        KeyValue(STR, INT64).over, lambda key, value: (key.hex()[:16], int.from_bytes(value[:8]))
    ),
}
"""The forms by the name in ``Case.form``. On disk, a record of the second has the size of one of the first, and one of
the fourth that of one of the third."""


def time_records(case: Case, store: KeyValueStore, load: Load, benchmark: Any) -> None:
    """Time a case of the suites ``record-put``, ``record-get`` and ``record-get-recent``."""
    form = FORMS[case.form]
    typed = form.over(store)

    def made(pairs: Pairs) -> list[tuple[Any, ...]]:
        return [form.arguments(key, value) for key, value in pairs]

    if case.suite == PUT:

        def setup() -> Any:
            return (typed, batches(made(load.fresh(case.records)), case.records_per_commit)), {}

        benchmark.pedantic(put_records, setup=setup, rounds=case.rounds, warmup_rounds=1)
        return
    known = commit_known(case, typed, load)
    drawn = made(load.of([key for key, _ in known], case.records, case.distribution))
    keys = [arguments[0] for arguments in drawn]
    benchmark.pedantic(get_records, args=(typed, keys), rounds=case.rounds, warmup_rounds=1)


def commit_known(case: Case, typed: Any, load: Load) -> Pairs:
    """Commit the records that are looked up, and return them as pairs of bytes."""
    assert case.suite in (GET, GET_RECENT)
    form = FORMS[case.form]
    known = load.fresh(case.keys)
    # In ``record-get``, one more commit replaces the last one that an indexed batch keeps in memory.
    for batch in (known,) if case.suite == GET_RECENT else (known, load.fresh(1)):
        put_records(typed, [[form.arguments(key, value) for key, value in batch]])
    return known


def put_records(typed: Any, work: Sequence[Sequence[tuple[Any, ...]]]) -> None:
    """Put every record, and commit after each batch."""
    put = typed.put
    for batch in work:
        if len(batch[0]) == 3:
            for key, value, timestamp_ms in batch:
                put(key, value, timestamp_ms)
        else:
            for key, value in batch:
                put(key, value)
        typed.commit()


def get_records(typed: Any, keys: Sequence[Any]) -> None:
    """Look up every key; all of them exist."""
    get = typed.get
    missing = 0
    for key in keys:
        missing += get(key) is None
    assert not missing
