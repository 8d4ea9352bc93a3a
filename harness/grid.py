"""A grid of cases: the settings of a scenario, from which an experiment plans trials and their expected results.

An experiment that scenarios can be about has a subclass: a frozen dataclass with a field for each setting.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from types import MappingProxyType, UnionType
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

from harness.profiles import check_profile
from harness.workloads.event_log import EventLog
from harness.workloads.suggestion import check_known, unknown
from stores.errors import ConfigError
from stores.interface import Durability
from stores.registry import backend_named, backends

Figures = Mapping[str, Any]
Resize = Callable[[Any], Any]
"""The value of a setting in another profile, from its value in ``default``. None stands for all there is."""


def cut_to(bound: float) -> Resize:
    """Return the smaller one; of a tuple each item has the bound."""

    def resize(value: Any) -> Any:
        return tuple(map(resize, value)) if isinstance(value, tuple) else bound if value is None else min(value, bound)

    return resize


def raised_to(bound: float) -> Resize:
    """Return the larger one."""
    return lambda value: max(value, bound)


def times(factor: int) -> Resize:
    """Return so many times the value; all of them stay all."""
    return lambda value: value and factor * value


def set_to(other: Any) -> Resize:
    """Return ``other``, whatever the value is."""
    return lambda _: other


@dataclass(frozen=True, kw_only=True)
class Grid(ABC):
    """The trials of each of ``seeds`` seeds, and those in which each of ``mutants`` must be detected.

    Raises: ConfigError for a setting of another type than declared, an unknown level, and a number that is too small.
    """

    seeds: int = 1
    mutants: tuple[str, ...] = ()

    sizes: ClassVar[Mapping[str, Mapping[str, Resize]]] = MappingProxyType({})
    """The settings that a profile changes, by its name. In ``default`` a grid is what its scenario says."""
    above_0: ClassVar[tuple[str, ...]] = ("seeds",)
    """The settings that are numbers above 0, or None, or tuples of such numbers."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for setting in fields(self):
            value = getattr(self, setting.name)
            if not _has_type(value, hints[setting.name]):
                example = "; a tuple of one item is (item,)" if "tuple" in str(setting.type) else ""
                raise ConfigError(f"{setting.name} of a scenario is {setting.type}, not {value!r}{example}")
        for name in self.above_0:
            value = getattr(self, name)
            numbers = value if isinstance(value, tuple) else () if value is None else (value,)
            if any(number <= 0 for number in numbers):
                raise ConfigError(f"{name} of a scenario counts from 1, not {value!r}")
        check_known("durability", list(Durability), *getattr(self, "durabilities", ()))

    @abstractmethod
    def trials(self, seed: int) -> Iterable[Any]:
        """Return the trials of one seed. Raises: ConfigError for an unknown name."""

    def mutant_trials(self, mutant: str, seeds: range) -> Iterable[Any]:
        """Return the trials that must detect a mutant; most experiments try them with the first seed.

        Raises: ConfigError for a mutant that is unknown or does not fit.
        """
        raise ConfigError(f"no mutant can be built into these trials: leave out {mutant!r}")

    def plan(self, seed: int) -> list[Any]:
        """Return every trial; ``seed`` is the first of its seeds.

        Raises: ConfigError for an unknown name, and if there is nothing to do.
        """
        seeds = range(seed, seed + self.seeds)
        trials = [trial for each in seeds for trial in self.trials(each)]
        trials += [trial for mutant in self.mutants for trial in self.mutant_trials(mutant, seeds)]
        if not trials:
            raise ConfigError("this scenario has nothing to do: no combination of its settings is a trial")
        return trials

    def scaled(self, profile: str) -> Self:
        """Return the grid, which must be valid, in the size of a profile. Raises: ConfigError for an unknown one."""
        check_profile(profile)
        resized = {name: resize(getattr(self, name)) for name, resize in self.sizes.get(profile, {}).items()}
        if self.mutants and "seeds" in resized:
            # A mutant may show with some of its seeds only.
            resized["seeds"] = max(resized["seeds"], self.seeds)
        return replace(self, **resized)

    def expected(self, trial: Any) -> str:
        """Return the result that a trial should have."""
        return "anomaly" if getattr(trial, "mutant", "") else "valid"

    def check_events(self, log: EventLog | None) -> None:
        """Raise ConfigError if the trials need events of the user's own that are not given or not readable."""

    def missed(self, figures: Figures) -> list[str]:
        """Return a sentence for each claim, beside those about single trials, that the figures do not reach."""
        return [self.missed_ratio(figure) for figure in figures["ratio"] if figure["met"] is False]

    def missed_ratio(self, figure: Mapping[str, Any]) -> str:
        """Return the sentence for a ratio that misses its threshold."""
        return (
            f"{figure['claim']}: {figure['subject']} has {figure['ratio']:.2f} of the speed of {figure['yardstick']}, "
            f"not {figure['at_least']:g}"
        )


def full_names(names: Iterable[str] | None) -> list[str]:
    """Return the full names of backends, each once; None means all. Raises: ConfigError for an unknown one."""
    return list(dict.fromkeys(backend_named(name).name for name in (backends() if names is None else names)))


def grid_from(kind: type[Grid], settings: Mapping[str, Any]) -> Grid:
    """Return a grid with these settings. Raises: ConfigError for an unknown setting, and for one that is missing."""
    known = {each.name: each for each in fields(kind)}
    for name in settings:
        if name not in known:
            raise unknown("setting of a scenario called", name, known)
    for name, each in known.items():
        if name not in settings and each.default is MISSING and each.default_factory is MISSING:
            raise ConfigError(f"this scenario needs the setting {name}, which is {each.type}")
    return kind(**settings)


def _has_type(value: Any, hint: Any) -> bool:
    items = get_args(hint)
    if isinstance(hint, UnionType):
        return any(_has_type(value, each) for each in items)
    if get_origin(hint) is tuple:
        each = items[:1] * len(value) if isinstance(value, tuple) and items[-1] is ... else items
        return isinstance(value, tuple) and len(value) == len(each) and all(map(_has_type, value, each))
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, int | float if hint is float else hint)
