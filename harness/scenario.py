"""Scenarios: each file has a claim as its docstring, and a scenario under the name ``SCENARIO``.

A scenario knows no experiment. Its settings are those of the grid of the experiment that it names.
"""

from __future__ import annotations

import inspect
import runpy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

from harness.budget import check_profile
from harness.folders import SCENARIOS
from harness.report.ratios import undecided_sentence
from harness.workloads.event_log import EventLog
from harness.workloads.suggestion import check_known, unknown
from stores.errors import ConfigError, nearest
from stores.failpoints import Part
from stores.interface import Durability
from stores.registry import backend_named, backends


class Scenario:
    """A claim about stores as a plain value: an experiment by its name, and the settings of its grid.

    Nothing is validated here, so that a mistake is reported and not raised while the file is read.
    """

    def __init__(self, experiment: str, **settings: Any) -> None:
        self.experiment = experiment
        self.settings: Mapping[str, Any] = settings


@dataclass(frozen=True)
class KillAtEach:
    """A kill at each failpoint that a backend reaches in one part of its life, as in the crash matrix.

    The seed chooses which hit of the failpoint kills. If a part comes only after a crash, there is one before it.
    """

    part: Part


@dataclass(frozen=True)
class AtLeast:
    """``subject`` processes at least ``ratio`` times as many records per second as ``yardstick``, with all else equal.

    The medians of their repeats are compared.
    """

    subject: str
    yardstick: str
    ratio: float


@dataclass(frozen=True)
class ScenarioFile:
    """The content of a scenario's file: its name, the claim in its docstring, and the scenario."""

    name: str
    text: str
    scenario: Scenario


def read_scenario(file: Path) -> ScenarioFile:
    """Return the scenario of a Python file. Raises: ConfigError if the file does not exist or contains none."""
    if not file.is_file():
        raise ConfigError(f"there is no scenario in {file}: the file does not exist")
    try:
        content: Mapping[str, Any] = runpy.run_path(str(file))
    except (Exception, SystemExit) as error:  # Whatever a user's file may do.
        raise ConfigError(f"{file} cannot be read as a scenario: {type(error).__name__}: {error}") from error
    scenario = content.get("SCENARIO")
    if not isinstance(scenario, Scenario):
        raise ConfigError(f"{file} is no scenario: it needs SCENARIO, a harness.scenario.Scenario")
    return ScenarioFile(file.stem, inspect.cleandoc(content.get("__doc__") or ""), scenario)


def scenario_names() -> list[str]:
    """Return the names of the project's scenarios."""
    return sorted(file.stem for file in SCENARIOS.glob("[a-z]*.py"))


def scenario_file(name: str) -> Path:
    """Return the file of one of the project's scenarios, or the path of a user's own. Raises: ConfigError."""
    if name.endswith(".py"):
        return Path(name)
    names = scenario_names()
    if name not in names:
        raise ConfigError(f"no scenario {name!r}: there are {', '.join(names)}{nearest(name, names)}")
    return SCENARIOS / f"{name}.py"


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

    def undecided(self, figures: Figures) -> str:
        """Return a sentence about what the figures leave open of the claim; "" if they decide it."""
        return undecided_sentence(figures)

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
    settings_of = {each.name: each for each in fields(kind)}
    for name in settings:
        if name not in settings_of:
            raise unknown("setting of a scenario called", name, settings_of)
    for name, each in settings_of.items():
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
