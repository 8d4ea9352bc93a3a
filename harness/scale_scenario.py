"""A claim about stores of many records as a plain value; one of the kinds of scenario beside ``harness.scenario``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.experiments.scale.scale import ScaleTrial
from harness.profiles import Scale
from harness.scenario_files import Scenario
from stores.errors import ConfigError
from stores.registry import backend_named, backends


@dataclass(frozen=True)
class ScaleScenario(Scenario):
    """Stores of ``records`` show what was put, in order, also when they are opened again or restored.

    ``backends`` None means all that have files. Those of ``large_backends`` also have the sizes ``large_records``,
    which the profile night replaces by ``night_records``. They are also filled with ``limited_records`` records of
    ``limited_value_bytes`` by processes that can have ``memory_max_bytes`` of memory (0: without this).
    """

    experiment = "scale"
    records: tuple[int, ...] = (1_000_000,)
    backends: tuple[str, ...] | None = None
    value_bytes: int = 100
    large_backends: tuple[str, ...] = ()
    large_records: tuple[int, ...] = ()
    limited_records: int = 0
    limited_value_bytes: int = 4_000
    memory_max_bytes: int = 0
    night_records: tuple[int, ...] = ()

    def plan(self, seed: int) -> list[ScaleTrial]:
        """Return every trial. Raises: ConfigError for an unknown name, and for a senseless size."""
        self._check()
        known = backends()
        names = [name for name, each in known.items() if each.persistent] if self.backends is None else self.backends
        chosen = list(dict.fromkeys(backend_named(name).name for name in names))
        large = list(dict.fromkeys(backend_named(name).name for name in self.large_backends))
        trials = [ScaleTrial(name, records, seed, self.value_bytes) for records in self.records for name in chosen]
        if self.memory_max_bytes:
            limited = (self.limited_records, seed, self.limited_value_bytes, self.memory_max_bytes)
            trials += [ScaleTrial(name, *limited) for name in large]
        trials += [ScaleTrial(name, each, seed, self.value_bytes) for each in self.large_records for name in large]
        if not trials:
            raise ConfigError("this scenario has nothing to do: it has no backends or no sizes")
        return trials

    def at_scale(self, scale: Scale) -> ScaleScenario:
        """Return the scenario with the number of records of a profile."""
        if scale.events_max is None:
            return replace(self, large_records=self.night_records)
        # A process alone takes more memory than these records.
        return replace(self, records=tuple(min(each, scale.events_max) for each in self.records), memory_max_bytes=0)

    def _check(self) -> None:
        self.check_types()
        for name in ("records", "large_records", "night_records"):
            if any(each < 1 for each in getattr(self, name)):
                raise ConfigError(f"{name} of a scenario are numbers above 0, not {getattr(self, name)!r}")
        for name in ("value_bytes", "limited_records", "limited_value_bytes", "memory_max_bytes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} of a scenario is a number of 0 or more, not {getattr(self, name)!r}")
