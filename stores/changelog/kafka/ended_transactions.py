"""The ends of transactions whose markers brokers have still to write."""

from __future__ import annotations


class EndedTransactions:
    """The commits and aborts of this process in one partition, until the last stable offset is after them.

    Brokers answer the end of a transaction before they write its marker to each partition. Until then the last stable
    offset stays at its first record, unless an older transaction of another process holds it back before that. For one
    thread at a time. Source: KIP-98, "EndTxnRequest" and "WriteTxnMarkerRequest".
    """

    def __init__(self) -> None:
        self._last_offset = -1
        self._first_offsets: dict[str, int] = {}
        """The first offset of the newest ended transaction, by transactional ID: it has its marker before the next."""
        self.others_were_awaited = False
        """True if the open transactions of others were given their time since the last end."""

    def add(self, transactional_id: str | None, first_offset: int | None, last_offset: int) -> None:
        """Add an end. Records without a transaction have no ID, and no marker."""
        if transactional_id is not None and first_offset is not None:
            self._first_offsets[transactional_id] = first_offset
        self._last_offset = max(self._last_offset, last_offset)
        self.others_were_awaited = False

    def are_before(self, end: int) -> bool:
        """Return True if all of them are before ``end``."""
        return end > self._last_offset

    def hold_back(self, stable_end: int) -> bool:
        """Return True if the last stable offset waits for the marker of one of them."""
        return stable_end in self._first_offsets.values()
