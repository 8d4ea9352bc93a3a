"""The I/O faults: what each is called, its variants, its trials, and the function that explores its points.

A new fault is an entry here and its function. Subsets, commands, tables and the page follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

STRICT = "strict"
"""The persistence model that promises less than file systems in use do."""
TORN_SECTORS = "torn-sectors"
"""The variant of power loss that goes beyond the model of disks."""


class Loss(Enum):
    """The bytes that a fault takes from the files: none, those not synced, or some at rest."""

    NOTHING = "process"
    UNSYNCED = "power"
    AT_REST = "damage"


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A kind of fault. ``explore`` names the function ``module.function`` of this package that explores points.

    That function gets a workshop, ascending points and the trials that a command asks for. It yields a row for each
    trial. ``points_per_subset`` points make a task of some seconds. The first of ``variants`` is the default.
    ``several_at_a_point`` is False if each point is one trial. ``from_recording`` says that the trials are derived from
    a recording. ``promise`` is the fault whose promise at each level it must keep. ``model_suffix`` follows the name of
    the persistence model in tables.
    """

    words: str
    explore: str
    points_per_subset: int
    variants: tuple[str, ...] = ("",)
    loss: Loss = Loss.NOTHING
    promise: str = "kill"
    several_at_a_point: bool = False
    from_recording: bool = False
    model_suffix: str = ""


IO_FAULTS: Mapping[str, InjectedFault] = MappingProxyType(
    {
        "kill": InjectedFault("killed before each I/O operation", "kills.kills", 120),
        "tear": InjectedFault("killed inside a write", "kills.tears", 60, several_at_a_point=True, from_recording=True),
        "kill_twice": InjectedFault(
            "killed, and again in its recovery", "kills.kills_twice", 6, several_at_a_point=True, from_recording=True
        ),
        "error": InjectedFault(
            "a call fails",
            "kills.errors",
            60,
            (
                *(f"{error} {how}" for error in ("EIO", "ENOSPC", "EDQUOT") for how in ("once", "lasting")),
                "SHORT once",
                "SHORT lasting",
            ),
            promise="error",
        ),
        "power": InjectedFault(
            "power lost",
            "power.power_losses",
            96,
            ("names", "journal", STRICT, TORN_SECTORS),
            Loss.UNSYNCED,
            "power",
            several_at_a_point=True,
            from_recording=True,
        ),
        "power_twice": InjectedFault(
            "power lost, and again in its recovery",
            "power.power_losses_twice",
            4,
            ("names",),
            Loss.UNSYNCED,
            "power",
            several_at_a_point=True,
            from_recording=True,
            model_suffix=", twice",
        ),
        "failed_sync": InjectedFault(
            "a sync fails, a kill, and power lost later",
            "failed_syncs.failed_syncs",
            4,
            ("names", STRICT),
            Loss.UNSYNCED,
            "power",
            several_at_a_point=True,
            from_recording=True,
            model_suffix=", a sync failed earlier",
        ),
        "damage": InjectedFault(
            "corrupted at rest",
            "damage.damages",
            60,
            ("flipped", "truncated", "missing"),
            Loss.AT_REST,
            "damage",
            from_recording=True,
        ),
    }
)
"""Every fault by its name, in the order of the tables."""
VARIANTS: Mapping[str, tuple[str, ...]] = MappingProxyType({name: each.variants for name, each in IO_FAULTS.items()})
"""Every fault with its variants."""
