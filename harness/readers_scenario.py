"""A claim about readers beside a writer as a plain value; one of the kinds of scenario beside ``harness.scenario``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.experiments.crash.trial import DURABILITIES
from harness.experiments.readers.trial import ReadersTrial
from harness.mutants.registry import fitting
from harness.profiles import Scale
from harness.scenario_files import Scenario
from harness.workloads.suggestion import check_known
from stores.errors import ConfigError
from stores.registry import backend_named, backends


@dataclass(frozen=True)
class ReadersScenario(Scenario):
    """Readers at each level, beside a writer that commits and rolls back, see nothing that their level does not show.

    ``backends`` None means all; a durability level that one of them does not carry is left out for it. Each is read for
    about ``seconds``, by ``readers`` readers at each level, once for each of ``seeds``. Each of ``mutants`` is built
    into a backend with a strategy that it fits, and must be detected.
    """

    experiment = "readers"
    backends: tuple[str, ...] | None = None
    durabilities: tuple[str, ...] = ("CHANGELOG",)
    seconds: float = 2.0
    readers: int = 4
    seeds: int = 1
    mutants: tuple[str, ...] = ()

    def plan(self, seed: int) -> list[ReadersTrial]:
        """Return every trial; ``seed`` is the first of its seeds. Raises: ConfigError for an unknown name."""
        self._check()
        names = tuple(backends()) if self.backends is None else self.backends
        chosen = [backend_named(name) for name in names]
        trials = [
            ReadersTrial(backend.name, durability, self.seconds, number, self.readers)
            for number in range(seed, seed + self.seeds)
            for backend in chosen
            for durability in self.durabilities
            if durability in backend.durabilities
        ]
        for mutant in self.mutants:
            first = fitting(mutant, chosen)[0]
            level = sorted(first.durabilities)[0]
            trials.append(ReadersTrial(first.name, level, 10 * self.seconds, seed, self.readers, mutant))
        if not trials:
            raise ConfigError("this scenario has nothing to do: none of its backends carries its durabilities")
        return trials

    def at_scale(self, scale: Scale) -> ReadersScenario:
        """Return the scenario with the seconds of a profile."""
        return replace(self, seconds=scale.seconds or scale.seconds_times * self.seconds)

    def _check(self) -> None:
        self.check_types()
        for name in ("seconds", "readers", "seeds"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} of a scenario is a number above 0, not {getattr(self, name)!r}")
        check_known("durability", DURABILITIES, *self.durabilities)
