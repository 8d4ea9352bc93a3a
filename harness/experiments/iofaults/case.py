"""The I/O faults, and one case of them as a plain value: subject, durability level and fault.

``repeat_command`` is the command that repeats the trials of a case. ``is_wrong`` says which of their rows fail a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import replay
from harness.checkers.prefix import Found
from harness.experiments.iofaults.fault import IO_FAULTS, STRICT, TORN_SECTORS
from harness.experiments.iofaults.subjects import check_subject
from harness.experiments.iofaults.workload import COMMITS
from harness.folders import ROOT
from harness.mutants import IO_MUTANTS
from harness.typed_maps import PLAIN
from harness.workloads.suggestion import unknown
from stores.errors import ConfigError

_NUMBER_MAX = (1 << 63) - 1
"""The largest number that the recorder can hold."""
COMMITS_MAX = 10_000
"""The largest number of commits: the states after all commits are kept in memory."""
SILENT = (str(Found.LOST), str(Found.TORN), str(Found.PHANTOM))
"""Wrong content that was not detected."""
NOT_TRIED = "not tried"
"""The result of a mutant that a run has left out. It is no verdict, and fails no run."""
ENOUGH = 0.95
"""The share of runs in which the default profile is to detect each mutant."""
REPORTED_ONLY = (STRICT, TORN_SECTORS)
"""Variants of power loss whose anomalies are only reported; see ``is_promised`` for the exception."""
HELD_STRICTLY = ("power", "DISK")
"""The fault and level at which an anomaly under ``strict`` fails the run: each name that a commit relies on must be
synced by its folder. Elsewhere an anomaly under ``strict`` is only reported."""


@dataclass(frozen=True, slots=True)
class IoFaultCase:
    """The parameters of one case. ``subject`` is the name of a backend or of another subject in ``subjects``.

    ``variant`` is one of the fault's variants; the default is the first. ``recording`` is a file with a recording of
    this subject and level, for faults that need one. Without it, a recording is made. ``records`` is the kind of a
    backend's store: one of ``harness.typed_maps.KINDS``, or empty for bytes. ``mutant`` names a defect that is built in
    on purpose. ``commits`` is the number of commits of the writer process. ``states_per_position`` bounds the crash
    states that are checked at a position of a power loss, and the places of a second kill or power loss: 2 or more, or
    None for all of them.
    """

    subject: str
    level: str
    fault: str
    variant: str = ""
    commits: int = COMMITS
    mutant: str = ""
    recording: str = ""
    records: str = PLAIN
    states_per_position: int | None = None

    def __post_init__(self) -> None:
        if self.fault not in IO_FAULTS:
            raise unknown("I/O fault called", self.fault, IO_FAULTS)
        if not self.variant:
            object.__setattr__(self, "variant", IO_FAULTS[self.fault].variants[0])
        if self.variant not in IO_FAULTS[self.fault].variants:
            raise unknown(f"variant of {self.fault} called", self.variant, IO_FAULTS[self.fault].variants)
        if self.mutant and self.mutant not in IO_MUTANTS:
            raise unknown("mutant", self.mutant, IO_MUTANTS)
        if not 1 <= self.commits <= COMMITS_MAX:
            raise ConfigError(f"a writer makes 1 to {COMMITS_MAX:,} commits, not {self.commits}")
        if self.states_per_position is not None and self.states_per_position < 2:
            raise ConfigError(f"states_per_position is 2 or more, not {self.states_per_position}")
        check_subject(self.subject, self.level, self.records)

    @property
    def fault_and_variant(self) -> str:
        """The fault, with its variant after a blank, if it has some."""
        return f"{self.fault} {self.variant}".rstrip()

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of a row that name the case."""
        return {
            "backend": self.subject,
            "durability": self.level,
            "fault": self.fault,
            "variant": self.variant,
            "records": self.records,
        }


@dataclass(frozen=True, slots=True)
class Asked:
    """The trials that a command asks for: ``only`` at ``point`` of ``case``, all there, or all of the case."""

    case: IoFaultCase
    point: int | None = None
    seed: int = 1
    only: str = ""

    def __post_init__(self) -> None:
        for name in ("point", "seed"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= _NUMBER_MAX:
                raise ConfigError(f"{name} of a trial is a number from 0 to {_NUMBER_MAX}, not {value!r}")
        if self.only and not IO_FAULTS[self.case.fault].several_at_a_point:
            raise ConfigError(f"{self.case.fault} is one trial at each point: leave out only {self.only!r}")


def read_asked(text: str) -> Asked:
    """Parse the JSON of a command. Raises: ConfigError if it describes no trial."""
    asked = replay.from_text(Asked, text)
    if not asked.case.recording:
        return asked
    return replace(asked, case=replace(asked.case, recording=str(_present(Path(asked.case.recording)))))


def _present(recording: Path) -> Path:
    """Return the recording's path, which a command gives from the current folder or from the project's."""
    for place in (recording, ROOT / recording):
        if place.is_file():
            return place.absolute()
    raise ConfigError(f"the recording {recording} is gone: leave it out of the command, and a new one is made")


def repeat_command(case: IoFaultCase, point: int | None, seed: int, only: str = "") -> str:
    """Return the command that repeats one trial of ``case``, or all of its trials if ``point`` is None."""
    return replay.command("iofaults", Asked(case, point, seed, only))


def is_wrong(row: Mapping[str, Any]) -> bool:
    """Return True if a row of kind "operation" or "mutant" fails the run.

    No verdict is always wrong.
    """
    if row["expected"] or row["result"] == NOT_TRIED:
        return False
    if row["result"] == Found.HARNESS_ERROR or row["kind"] == "mutant":
        return True
    return row["variant"] != STRICT or (row["fault"], row["durability"]) == HELD_STRICTLY


def is_promised(figure: Mapping[str, Any]) -> bool:
    """Return True if a figure's anomalies fail the run. For two of the models most anomalies are only reported."""
    strictly = (figure["fault"], figure["durability"]) == HELD_STRICTLY and figure["variant"] == STRICT
    return strictly or figure["variant"] not in REPORTED_ONLY
