"""A trial of tasks or workers over a Kafka broker under a fault, as a plain value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from stores.config import StoreConfig

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly_once", "at_least_once"
PLACES_UNDER_LOAD: Mapping[str, str] = MappingProxyType(
    {"transactions of tasks": "task", "transactions of threads": "thread"}
)
"""The places of faults under load: they strike at any moment. The values are those of ``transaction.scope``."""
RECORDS_PER_ROUND = 500
"""The records that each partition gets before a fault under load strikes."""
SHORT_S, LONG_S = 4.0, 90.0
"""The timeout of a changelog that is to report that no answer comes, and of one that is not to."""
ROUND_S = 6
"""The time of a round of a fault under load, about."""
ROUNDS_MIN = 3


@dataclass(frozen=True, slots=True)
class BrokerTrial:
    """Counting tasks over a broker of their own, with ``fault`` at ``place``.

    ``seed`` determines the input, and which commit the fault strikes. ``mutant`` is built into the processes that the
    fault strikes. ``jars`` is the folder with Kafka's jars; empty for that of this clone. ``seconds`` is the time of a
    load, about; the input grows with it. ``faults.checked`` refuses unknown names.
    """

    fault: str
    place: str
    backend: str = StoreConfig().backend
    guarantee: str = EXACTLY_ONCE
    seed: int = 1
    mutant: str = ""
    jars: str = ""
    seconds: int = 30

    @property
    def rounds(self) -> int:
        """The number of rounds of a fault under load; 0 for another one."""
        return max(ROUNDS_MIN, self.seconds // ROUND_S) if self.place in PLACES_UNDER_LOAD else 0
