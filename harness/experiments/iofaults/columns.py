"""The columns of fault injection's rows, by kind."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pyarrow as pa

_TEXT, _COUNT, _REAL, _TRUTH = pa.string(), pa.int64(), pa.float64(), pa.bool_()

_CASE: Mapping[str, pa.DataType] = {
    "scenario": _TEXT,
    "slice": _COUNT,
    "backend": _TEXT,
    "durability": _TEXT,
    "fault": _TEXT,
    "variant": _TEXT,
    "records": _TEXT,
    "seed": _COUNT,
}
KINDS: Mapping[str, Mapping[str, pa.DataType]] = MappingProxyType(
    {
        "effect": {
            **_CASE,
            "point": _COUNT,
            "only": _TEXT,
            "description": _TEXT,
            "digest": _TEXT,
            "states": _COUNT,
            "acknowledged": _COUNT,
            "state": _COUNT,
            "attempted": _COUNT,
            "result": _TEXT,
            "noticed": _TEXT,
            "unverified": _TEXT,
            "detail": _TEXT,
            "expected": _TRUTH,
            "repeat": _TEXT,
        },
        "effect_slice": {
            **_CASE,
            "points": _COUNT,
            "points_in_all": _COUNT,
            "states": _COUNT,
            "trials": _COUNT,
            "seconds": _REAL,
            "blind_spots": _TEXT,
        },
        "mutant": {
            **_CASE,
            "mutant": _TEXT,
            "meaning": _TEXT,
            "states": _COUNT,
            "wanted": _TEXT,
            "by_gate": _TRUTH,
            "result": _TEXT,
            "description": _TEXT,
            "detail": _TEXT,
            "expected": _TRUTH,
            "repeat": _TEXT,
            "seconds": _REAL,
        },
    }
)
"""A trial with its crash state; a slice of trials with its cost and the number of points of its case; a mutant and its
result."""
