"""The columns of fault injection's rows, by kind."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_CASE: Mapping[str, type] = {
    "scenario": str,
    "slice": int,
    "backend": str,
    "durability": str,
    "fault": str,
    "variant": str,
    "records": str,
    "seed": int,
}
KINDS: Mapping[str, Mapping[str, type]] = MappingProxyType(
    {
        "effect": {
            **_CASE,
            "point": int,
            "only": str,
            "description": str,
            "digest": str,
            "states": int,
            "acknowledged": int,
            "state": int,
            "attempted": int,
            "result": str,
            "noticed": str,
            "unverified": str,
            "detail": str,
            "expected": bool,
            "repeat": str,
        },
        "effect_slice": {
            **_CASE,
            "points": int,
            "points_in_all": int,
            "states": int,
            "trials": int,
            "seconds": float,
            "blind_spots": str,
        },
        "mutant": {
            **_CASE,
            "mutant": str,
            "meaning": str,
            "states": int,
            "wanted": str,
            "by_gate": bool,
            "result": str,
            "description": str,
            "detail": str,
            "expected": bool,
            "repeat": str,
            "seconds": float,
        },
    }
)
"""A trial with its crash state; a slice of trials with its cost and the number of points of its case; a mutant and its
result."""
