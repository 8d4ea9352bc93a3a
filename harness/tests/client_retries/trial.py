"""A trial of a client's own retry, and the table of all of them.

Source: KIP-890; librdkafka, issue 5423.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from harness.experiments.broker_faults.kafka_proxy import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)

REQUESTS: Mapping[str, int] = MappingProxyType(
    {
        "InitProducerId": INIT_PRODUCER_ID,
        "AddPartitionsToTxn": ADD_PARTITIONS_TO_TXN,
        "Produce": PRODUCE,
        "AddOffsetsToTxn": ADD_OFFSETS_TO_TXN,
        "TxnOffsetCommit": TXN_OFFSET_COMMIT,
        "EndTxn": END_TXN,
    }
)
CUT, SILENT = "request late, connection cut", "request late, no answer in time"
"""The faults of requests. With the second the connection stays, and the client gives up waiting for the answer."""
LOST, UNHEARD = "answer lost, connection cut", "answer lost, no answer in time"
TWICE, DELAYED = "answer twice", "answer late"
BEGUN, SENT, ENDING, ENDED = "begun", "sent", "ending", "ended"
_OF_OWNER = "next owner's "
MOMENTS = (BEGUN, SENT, ENDING, ENDED, *(f"{_OF_OWNER}{moment}" for moment in (SENT, ENDING, ENDED)))
"""The moments at which a late request arrives, by the next transaction: ``BEGUN`` has its first records at the brokers,
``SENT`` all of them, ``ENDING`` its input offsets, too. The owner takes over after that of the request.
"""
COMMIT, ABORT = "commit", "abort"
TASK, THREAD = "task", "thread"
"""The tasks of a transaction: one with a transactional ID, or two, whose group fences them by its generation."""
BARE, OURS = "bare client", "ours"
_DELAYS_MS = {CUT: (0, 100), SILENT: (0,), LOST: (0,), UNHEARD: (0,), TWICE: (0,), DELAYED: (50, 1_400)}
"""The times after which the client goes on once the request has arrived, or the delays of an answer. The last one is
longer than ``GIVES_UP_MS``. With none, the brokers may not have written their markers yet.
"""
GIVES_UP_MS = 1_000
"""The time for which a client waits for an answer, where the network gives none."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A transaction one of whose requests or answers ``fault`` strikes; it ends by ``end``.

    A request arrives at ``moment``, and its client goes on ``delay_ms`` later. An answer has no moment, and comes
    ``delay_ms`` late.
    """

    request: str
    fault: str
    moment: str
    end: str
    scope: str
    delay_ms: int

    @property
    def is_of_owner(self) -> bool:
        """True if another instance takes over before the moment."""
        return self.moment.startswith(_OF_OWNER)

    @property
    def stage(self) -> str:
        """The moment, without its owner."""
        return self.moment.removeprefix(_OF_OWNER)

    @property
    def gives_up(self) -> bool:
        """True if the client is to wait for ``GIVES_UP_MS`` only."""
        return self.fault in (SILENT, UNHEARD, DELAYED)


def trials() -> list[Trial]:
    """Return all trials, in an order in which those that differ much come first."""
    found = [
        Trial(request, fault, moment, end, scope, delay_ms)
        for fault, delays in _DELAYS_MS.items()
        for delay_ms in delays
        for moment in (MOMENTS if fault in (CUT, SILENT) else ("",))
        for scope in (TASK, THREAD)
        for end in (COMMIT, ABORT)
        for request in REQUESTS
    ]
    # Nothing of a transaction is decided yet where the first request of all is lost: how it ends makes no difference.
    return [trial for trial in found if trial.request != "InitProducerId" or trial.end == COMMIT]


_BY = ("request", "fault", "moment", "end")
_BY_REQUEST = sorted(trials(), key=lambda trial: list(REQUESTS).index(trial.request))
_PLACES = {tuple(getattr(trial, name) for name in _BY): place for place, trial in enumerate(_BY_REQUEST)}


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the table, in Markdown, by request. A cell has the number of trials for each result."""
    cells: dict[tuple[str, ...], dict[str, Counter[str]]] = {}
    for row in rows:
        cell = cells.setdefault(tuple(row[name] for name in _BY), {BARE: Counter(), OURS: Counter()})
        cell[row["kind"]][_in_short(row)] += 1
    lines = [f"| {' | '.join((*_BY, BARE, OURS))} |", f"|{' --- |' * (len(_BY) + 2)}"]
    for names, kinds in sorted(cells.items(), key=lambda item: _PLACES[item[0]]):
        lines.append(f"| {' | '.join((*names, *map(_text, kinds.values())))} |")
    return "\n".join(lines)


def _in_short(row: Mapping[str, Any]) -> str:
    """Return the result without the numbers of records, which depend on the size of the trial."""
    parts = [part.lstrip("0123456789 ") for part in str(row["result"]).split("; ")]
    return ", ".join("offsets" if part.startswith("offsets") else part for part in parts)


def _text(results: Counter[str]) -> str:
    return ", ".join(f"{number} {result}" for result, number in sorted(results.items()))
