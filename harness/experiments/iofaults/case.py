"""One case of fault injection as a plain value: subject, durability level and fault; and the command to repeat it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from harness.experiments.iofaults.subjects import check_subject
from harness.experiments.iofaults.workload import COMMITS
from harness.faults.registry import unknown
from harness.mutants.registry import IO_FAULTS
from harness.typed_maps import PLAIN
from stores.errors import ConfigError

VARIANTS: Mapping[str, tuple[str, ...]] = {
    "kill": ("",),
    "tear": ("",),
    "kill_twice": ("",),
    "error": (
        *(f"{error} {how}" for error in ("EIO", "ENOSPC", "EDQUOT") for how in ("once", "lasting")),
        "SHORT once",
        "SHORT lasting",
    ),
    "power": ("gate", "journal", "strict", "beyond"),
    "power_twice": ("gate",),
    "failed_sync": ("gate", "strict"),
    "damage": ("flipped", "truncated", "missing"),
}
"""Every fault with its variants. The first variant is the default."""
COMMITS_MAX = 10_000
"""The largest number of commits: the states after all commits are kept in memory."""


@dataclass(frozen=True, slots=True)
class Case:
    """The parameters of one case. ``subject`` is the name of a backend or of another subject in ``subjects``.

    ``variant`` is one of the fault's variants; the default is the first. ``recording`` is a file with a recording of
    this subject and level, for faults that need one. Without it, a recording is made. ``records`` is the kind of a
    backend's store: one of ``harness.typed_maps.KINDS``, or empty for bytes. ``mutant`` names a defect that is built in
    on purpose. ``commits`` is the number of commits of the writer process. ``states_per_position`` bounds the crash
    states that are checked at a position of a power loss: 2 or more, or None for all of them.
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
        self._check_types()
        if self.fault not in VARIANTS:
            raise unknown("fault of a sweep called", self.fault, VARIANTS)
        if not self.variant:
            object.__setattr__(self, "variant", VARIANTS[self.fault][0])
        if self.variant not in VARIANTS[self.fault]:
            raise unknown(f"variant of {self.fault} called", self.variant, VARIANTS[self.fault])
        if self.mutant and self.mutant not in IO_FAULTS:
            raise unknown("mutant", self.mutant, IO_FAULTS)
        if not 1 <= self.commits <= COMMITS_MAX:
            raise ConfigError(f"a writer makes 1 to {COMMITS_MAX:,} commits, not {self.commits}")
        if self.states_per_position is not None and self.states_per_position < 2:
            raise ConfigError(f"states_per_position is 2 or more, not {self.states_per_position}")
        check_subject(self.subject, self.level, self.records)

    def _check_types(self) -> None:
        for name in ("subject", "level", "fault", "variant", "mutant", "recording", "records"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise ConfigError(f"{name} of a case is a text, not {value!r}")
        for name in ("commits", "states_per_position"):
            value = getattr(self, name)
            if not (isinstance(value, int) or (value is None and name != "commits")) or isinstance(value, bool):
                raise ConfigError(f"{name} of a case is a number, not {value!r}")


def to_json(case: Case) -> dict[str, Any]:
    """Return a case as plain JSON values. Settings at their defaults are left out."""
    defaults = {setting.name: setting.default for setting in fields(Case)}
    return {name: value for name, value in asdict(case).items() if value != defaults[name]}


def from_json(row: object) -> Case:
    """Return the case that ``to_json`` wrote. Raises: ConfigError for an unknown or missing setting."""
    if not isinstance(row, Mapping):
        raise ConfigError(f"a case is a JSON object, not {row!r}")
    known = [setting.name for setting in fields(Case)]
    for name in row:
        if name not in known:
            raise unknown("setting of a case called", name, known)
    try:
        return Case(**row)
    except TypeError as error:
        raise ConfigError(f"case: {error}") from error


def repeat_command(case: Case, point: int | None, seed: int, only: str = "") -> str:
    """Return the command that repeats one trial of ``case``, or all of its trials if ``point`` is None."""
    asked: dict[str, Any] = {"case": to_json(case), "seed": seed}
    asked |= ({} if point is None else {"point": point}) | ({"only": only} if only else {})
    return f"python -m harness effect {shlex.quote(json.dumps(asked, separators=(',', ':')))}"
