"""What a task promises about records that it processes again after a failure."""

from __future__ import annotations

from enum import StrEnum


class ProcessingGuarantee(StrEnum):
    """Source: KIP-129, ``processing.guarantee``."""

    AT_LEAST_ONCE = "at_least_once"
    """No record's effect is lost; after a failure some may be there twice, in outputs and in state."""
    EXACTLY_ONCE = "exactly_once"
    """Each record's effects on outputs, state and input offsets are there once, whatever fails."""
