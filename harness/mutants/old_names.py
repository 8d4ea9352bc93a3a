"""Names that mutants of crash trials had in releases up to 0.1, for trials and scenarios that still use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness import faults
from harness.faults import Fault

_RENAMED = {
    "offsets_before_data": "offsets-before",
    "segments_apart": "segments-one-by-one",
    "kept_beyond_reach": "kept-past-truncation",
}
_OLD_PREFIX, _PREFIX = "sabotage.", "mutant."


def present_name(old: str) -> str:
    """Return the present name of a mutant that had the name ``old``."""
    return _RENAMED.get(old, old.replace("_", "-"))


def present_failpoint(name: str) -> str:
    """Return the present name of a mutant's failpoint; other failpoints as they are."""
    return _PREFIX + name.removeprefix(_OLD_PREFIX) if name.startswith(_OLD_PREFIX) else name


def present_fault(fault: Any) -> Any:
    """Return a fault that names the present failpoints of mutants; anything else as it is."""
    return faults.from_json(_present(faults.to_json(fault))) if isinstance(fault, Fault) else fault


def present_trial(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON of a trial with the old key ``sabotage`` as it is written today; other trials as they are."""
    if "sabotage" not in row:
        return row
    old = row["sabotage"]
    made = {name: _present(value) for name, value in row.items() if name != "sabotage"}
    return {**made, "mutant": present_name(old) if isinstance(old, str) else old}


def _present(value: Any) -> Any:
    """Return JSON with the present names of failpoints, at any depth."""
    if isinstance(value, list):
        return [_present(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: present_failpoint(item) if name == "failpoint" and isinstance(item, str) else _present(item)
        for name, item in value.items()
    }
