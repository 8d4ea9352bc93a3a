"""The profiles: how much of everything a run does. The sizes of an experiment are beside its plan.

``smoke`` is a glance of some minutes. A change is accepted by ``default``. ``night`` plans everything, and tries in 90
minutes what nights before it have not tried. A budget bounds the time of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from stores.errors import ConfigError, nearest

SMOKE, DEFAULT, NIGHT = "smoke", "default", "night"
"""The seeds and points of ``NIGHT`` move on from run to run."""
BUDGETS_S: Mapping[str, float] = MappingProxyType({SMOKE: 600.0, DEFAULT: 600.0, NIGHT: 5_400.0})
"""The time that a bench of each profile takes unless another budget is given, in seconds."""
NAMES = tuple(BUDGETS_S)
WHOLE = (DEFAULT, NIGHT)
"""The profiles whose reports go to ``results/`` if nothing was left out."""


def check_profile(name: str) -> None:
    """Raise ConfigError for an unknown profile."""
    if name not in NAMES:
        raise ConfigError(f"no profile {name!r}: there are {', '.join(NAMES)}{nearest(name, NAMES)}")
