"""The subjects that a mutant is built into for I/O faults, and their durability level."""

from __future__ import annotations

from harness.experiments.iofaults.subjects import subjects
from harness.mutants.registry import IO_FAULTS

LEVEL = "DISK"
"""The level at which mutants are tried: the one that promises most."""


def subjects_with(mutant: str) -> list[str]:
    """Return the names of the subjects in which ``mutant`` is a defect, in the order of ``subjects``."""
    return [name for name, level in subjects() if level == LEVEL and IO_FAULTS[mutant].fits(name)]
