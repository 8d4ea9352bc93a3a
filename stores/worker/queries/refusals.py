"""The refusal of a query: an HTTP status, and a sentence for the person who asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RETRY_AFTER_S = 1
"""The time after which a client asks again, in seconds: that of most rebalances."""


class Refused(Exception):
    """A query that gets no data. ``details`` are further fields of the answer."""

    def __init__(self, status: int, sentence: str, **details: Any) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence
        self.details: Mapping[str, Any] = details


def bad_request(sentence: str) -> Refused:
    """Return the refusal of a query that is wrong in itself."""
    return Refused(400, sentence)


def unavailable(sentence: str, **details: Any) -> Refused:
    """Return the refusal of a query that is to be asked again after ``RETRY_AFTER_S``."""
    return Refused(503, sentence, **details)
