"""The cases that time one store: a suite, a subject, the amount of work, and the records that are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from harness.workloads.ycsb import CORE_WORKLOADS, OperationKind, Source, uniform, zipfian
from stores import Durability

PLAIN = "plain"
"""The prefix of the yardsticks: an engine without a store around it, used as well as plain code can."""
WRITER_WAITS, READER_WAITS = "writer-waits", "reader-waits"
"""Suites whose seconds are not the time of their work, but the longest wait of another thread."""
YCSB = "ycsb-"
"""The prefix of the suites that are YCSB's core workloads."""
PUT, GET, GET_RECENT = "record-put", "record-get", "record-get-recent"
"""Suites of typed stores."""
READ_WRITE = "read-write"
"""The suite that reads and writes the same records."""
FETCH, EXPIRE = "fetch", "expire"
"""Suites of window stores."""
OPEN = "open"
"""The suite of openings."""
ITERATORS, FIRST_STEPS = "iterators", "first-steps"
"""Suites of scans over staged records."""
SHARING = (ITERATORS, FIRST_STEPS, WRITER_WAITS, READER_WAITS)
"""Suites that read staged records: those of one process may share a store with them."""


@dataclass(frozen=True)
class Case:
    """One case to time. Each round processes ``records``. One round warms up before those that are timed."""

    suite: str
    """The suite, which names the work of a round:

    * ``commit``: put and commit of new keys. ``update``: read, change and write of existing keys.
    * ``scan``: all pairs in order, committed and staged. ``read``: lookups of committed data by a reader, with a writer
      beside it if ``commits_beside``.
    * ``iterators``: the creation of iterators over ``staged`` uncommitted records. ``first-steps``: their creation and
    the first hundred records of each; ``records`` counts the iterators.
    * ``ranges``: ``records`` range deletes of one transaction, each between two writes.
    * ``writer-waits`` and ``reader-waits``: the longest wait of the writer, or of a reader on another thread, while a
    scan of ``staged`` uncommitted records is created and makes its first step.
    * ``watch``: as ``commit``, with all metrics collected at the same time if ``watched``.
    * ``step``: as ``commit``, with an offset and the position of an input partition in each commit, as in a task. With
    0 records per commit there is nothing else, and ``records`` counts the commits.
    * ``record-put``: put and commit, in the form ``form``. ``record-get``, ``record-get-recent``: the writer's lookups
    of committed data in that form. The engine answers the first; the second are of keys of the last commit, which an
    indexed batch answers from memory.
    * ``read-write``: lookups of committed keys and puts of new values for them, in the form ``form``; the commit is not
    timed. There is one ``get_many`` and one ``put_many`` if ``at_once``, otherwise a call for each record.
    * ``fetch``: scans of the 100 windows, or with the form ``prefix`` of the 100 pairs, of each of ``keys`` keys.
    * ``expire``: the commit in which a segment of ``staged`` windows expires; ``records`` counts the segments.
    * ``open``: openings as a timestamped store of ``staged`` records in the form ``form``.
    * ``ycsb-a`` to ``ycsb-f``: operations of YCSB's core workloads on ``keys`` records of 1,000 bytes; ``records``
    counts the operations.
    """
    subject: str
    """A backend, or a yardstick such as ``plain-rocksdb``."""
    durability: Durability = Durability.CHANGELOG
    records_per_commit: int = 1_000
    distribution: str = "uniform"
    keys: int = 0
    """The number of keys that an update draws from. 1,000 is YCSB's own default (``recordcount``)."""
    commits_beside: bool = False
    """True if a writer commits ``records_per_commit`` records every tenth of a second at the same time."""
    watched: bool = False
    """True if all metrics of the store are collected every tenth of a second at the same time."""
    checksums: bool = True
    """True if an engine with optional checksums of its records keeps them."""
    scan_checksums: bool = True
    """True if scans check the checksums."""
    at_once: bool = False
    """True if one call reads or writes all records of a round."""
    staged: int = 0
    """The number of records in the open transaction, in the segment that expires, or in the store that is opened."""
    form: str = "bytes"
    """The form of the records: one of ``FORMS`` in the module ``records``, or ``windows`` or ``prefix``."""
    records: int = 20_000
    rounds: int | None = None
    """The number of rounds, if it has its own, see ``rounds_of``."""

    @property
    def works_alone(self) -> bool:
        """True if no other thread of its process works at the same time, so that its CPU time is that of its work."""
        return not self.commits_beside and not self.watched

    @property
    def warm_up_rounds(self) -> int:
        """The rounds before the clock runs: none for a single long one, for which a new store is filled."""
        return 0 if self.rounds == 1 else 1

    @property
    def fill(self) -> tuple[str, Durability, int] | None:
        """The staged records that cases with the same value may share; None if it needs a store of its own."""
        return (self.subject, self.durability, self.staged) if self.suite in SHARING else None

    @property
    def id(self) -> str:
        """The name of the case, unique within a profile."""
        distribution = f"{self.distribution}{self.keys or ''}"
        marks = (
            ("beside", self.commits_beside),
            ("watched", self.watched),
            ("unchecked", not self.checksums),
            ("scans-unchecked", not self.scan_checksums),
            ("at-once", self.at_once),
        )
        special = [name for name, is_so in marks if is_so]
        special = [*special, *([f"staged{self.staged}"] if self.staged else [])]
        if self.suite in (PUT, GET, GET_RECENT, READ_WRITE, FETCH, OPEN):
            special.append(self.form)
        words = (self.suite, self.subject, self.durability.lower(), distribution, str(self.records_per_commit))
        return "-".join([*words, *special])


INDEXED, DIRECT = "rocksdb-indexed-batch", "rocksdb-direct"
CURVE = (100, 1_000, 10_000, 100_000)
"""Records per commit of the curve of every backend."""
STEPS = (1, 10, 100, 10_000)
"""Records per commit, over which the fixed cost of a commit is spread."""
ENGINES = ("rocksdb", "lmdb", "sqlite")
"""Engines that have a yardstick."""
CHECKED = ("lmdb", "sqlite")
"""Engines whose records have checksums of the library."""
STAGED = (100, 1_000, 10_000, 100_000, 1_000_000)
"""Sizes of an open transaction over which iterators are created."""
WAITED = (1_000, 1_000_000)
"""Sizes of an open transaction over which a scan makes its first step while others wait."""
RANGES = (1_000, 10_000, 100_000, 1_000_000)
"""Numbers of range deletes in one transaction."""
OPENED = (200_000, 1_000_000)
"""Numbers of records of a store that is opened. The last one is for the profile night alone."""
EXPIRED = (1_000, 100_000, 1_000_000)
"""Numbers of records in a segment that expires. The last one is for the profile night alone."""
LARGEST = 200_000
"""The records of the largest commit."""
_SLOW = 10_000
"""The records of a round in slow cases."""


def commits_of(subject: str, records_per_commit: int, durability: Durability = Durability.CHANGELOG) -> Case:
    """Return the case of commits of so many records."""
    records = max(records_per_commit, 20_000 if "rocksdb" in subject else _SLOW)
    return Case("commit", subject, durability, records_per_commit, records=records,
                rounds=1 if records >= LARGEST else None)  # fmt: skip


def updates_of(subject: str, distribution: str, keys: int) -> Case:
    """Return the case of reads and writes of so many keys, in one commit."""
    return Case("update", subject, records_per_commit=100_000, distribution=distribution, keys=keys, records=100_000,
                rounds=2 if keys < 100_000 else 1)  # fmt: skip


def steps(subject: str, records_per_commit: int) -> Case:
    """Return the case of commits of so many records, or of none, each with an offset and a position."""
    records = 20_000 if records_per_commit >= 10 else 2_500
    return Case("step", subject, records_per_commit=records_per_commit, records=records)


def iterators_over(staged: int) -> Case:
    """Return the case that creates iterators over so many staged records."""
    return Case(ITERATORS, INDEXED, staged=staged, records=2_000)


def first_steps_over(staged: int) -> Case:
    """Return the case of the first hundred steps of iterators over so many staged records."""
    return Case(FIRST_STEPS, INDEXED, staged=staged, records=200)


def waits_over(suite: str, staged: int) -> Case:
    """Return the case of the longest wait of the writer, or of a reader, for a scan's first step."""
    return Case(suite, INDEXED, staged=staged, records=1, rounds=3)


def range_deletes(count: int) -> Case:
    """Return the case of so many range deletes in one transaction."""
    return Case("ranges", INDEXED, records_per_commit=count, records=count, rounds=1)


def reads(subject: str, *, commits_beside: bool) -> Case:
    """Return the case of lookups by a reader of committed data, alone or beside a writer."""
    # Each round must contain some commits: it takes half a second or more.
    records = 100_000 if subject.startswith("sqlite") else 400_000
    return Case("read", subject, commits_beside=commits_beside, keys=20_000, records=records, rounds=2)


def records_as(suite: str, form: str, engine: str = "rocksdb") -> Case:
    """Return the case of puts or lookups of records in one form."""
    return Case(suite, f"{engine}-indexed-batch", form=form, keys=10_000, records=20_000)


def read_and_written(subject: str, form: str = "bytes", *, at_once: bool) -> Case:
    """Return the case of 1,000 records that are read and written, by one call for all or for each."""
    return Case(READ_WRITE, subject, at_once=at_once, form=form, keys=10_000, records=1_000, rounds=60)


def fetches(engine: str, form: str) -> Case:
    """Return the case of scans of a key's windows, or of a prefix's pairs."""
    return Case(FETCH, f"{engine}-indexed-batch", form=form, keys=200, records=20_000)


def expiries(engine: str, records: int) -> Case:
    """Return the case of commits in which a segment of so many records expires."""
    # Commits with few records are short, so there are many: a flush must not decide the median.
    return Case(EXPIRE, f"{engine}-indexed-batch", staged=records, records=1, rounds=3 if records > 10_000 else 15)


def openings(engine: str, form: str, records: int) -> Case:
    """Return the openings of a timestamped store whose records are plain ("bytes"), or have timestamps."""
    return Case(OPEN, f"{engine}-indexed-batch", form=form, staged=records, records=1, rounds=5)


def commits_counted(*, watched: bool) -> Case:
    """Return the case of commits of 1,000 records, with or without a collection of the store's metrics."""
    # Each round must contain some collections.
    return Case("watch", INDEXED, watched=watched, records=60_000, rounds=2)


def with_checksums(suite: str, engine: str, *, checksums: bool) -> Case:
    """Return the case of commits of 1,000 records, or of a scan, with or without checksums of the records."""
    return Case(suite, f"{engine}-indexed-batch", Durability.PROCESS, checksums=checksums, records=_SLOW)


def with_unchecked_scans(engine: str) -> Case:
    """Return the case of a scan of records with checksums, which the scan does not check."""
    return Case("scan", f"{engine}-indexed-batch", Durability.PROCESS, scan_checksums=False, records=_SLOW)


def scans_of(subject: str) -> Case:
    """Return the case of a scan of committed and staged records."""
    return Case("scan", subject, records_per_commit=10_000, records=50_000)


def ycsb_of(subject: str, letter: str) -> Case:
    """Return the case of a core workload of YCSB."""
    workload = CORE_WORKLOADS[letter]
    # An operation of E reads about fifty records, one of the other workloads one.
    records = 1_000 if OperationKind.SCAN in workload.mix else 10_000
    return Case(f"{YCSB}{letter.lower()}", subject, distribution=workload.distribution, keys=10_000, records=records)


KEY_BYTES, VALUE_BYTES = 16, 100
"""The sizes in a load, which is generated before the clock runs."""
_AT_ONCE = 10_000

Pairs = list[tuple[bytes, bytes]]
Item = TypeVar("Item")


class Load:
    """A stream of records. All values differ, so that no engine can skip a write."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._draws = Source(seed)
        self._made = 0

    def fresh(self, count: int) -> Pairs:
        """Return ``count`` records with new keys in random order."""
        return list(zip(self._pieces(count, KEY_BYTES), self._values(count), strict=True))

    def of(self, keys: Sequence[bytes], count: int, distribution: str) -> Pairs:
        """Return ``count`` new values for keys drawn ``uniform`` or ``zipfian`` (constant 0.99) from ``keys``."""
        draw = {"uniform": uniform, "zipfian": zipfian}[distribution]
        places = draw(self._draws, len(keys), count).tolist()
        return list(zip([keys[at] for at in places], self._values(count), strict=True))

    def _values(self, count: int) -> list[bytes]:
        numbers = range(self._made + 1, self._made + 1 + count)
        self._made += count
        filling = self._pieces(count, VALUE_BYTES - 8)
        return [number.to_bytes(8, "big") + rest for number, rest in zip(numbers, filling, strict=True)]

    def _pieces(self, count: int, size: int) -> list[bytes]:
        pieces: list[bytes] = []
        for begin in range(0, count, _AT_ONCE):
            # One call for many: otherwise records take longer to make than to write.
            block = self._random.randbytes(size * min(_AT_ONCE, count - begin))
            pieces += [block[at : at + size] for at in range(0, len(block), size)]
        return pieces


def batches(pairs: list[Item], size: int) -> list[list[Item]]:
    """Divide ``pairs`` into batches of ``size``."""
    return [pairs[at : at + size] for at in range(0, len(pairs), size)]
