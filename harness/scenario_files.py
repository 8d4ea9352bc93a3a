"""The files of scenarios: each has a claim as its docstring, and a scenario under the name ``SCENARIO``."""

from __future__ import annotations

import inspect
import runpy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Self, cast, get_args, get_origin, get_type_hints

from harness import profiles
from harness.experiment import Failure, Figures
from harness.folders import SCENARIOS
from harness.workloads.event_log import EventLog
from stores.errors import ConfigError, nearest


class Scenario(ABC):
    """A claim about stores as a plain value, which one experiment checks.

    The constructor validates nothing, so that a mistake is reported and not raised while the file is read; ``plan``
    validates everything.
    """

    experiment: ClassVar[str]
    """The name of the experiment whose trials check it."""

    @abstractmethod
    def plan(self, seed: int) -> list[Any]:
        """Return every trial; ``seed`` is the first of its seeds.

        Raises: ConfigError for an unknown name, and if there is nothing to do.
        """

    def scaled(self, profile: str) -> Self:
        """Return the scenario, which must be valid, in the size of a profile; ``default`` is what its file says."""
        scale = profiles.profile(profile).scale
        return self if scale is None else self.at_scale(scale)

    @abstractmethod
    def at_scale(self, scale: profiles.Scale) -> Self:
        """Return the scenario in another size than its file says."""

    def expected(self, trial: Any) -> str:
        """Return the result that a trial should have."""
        return "valid"

    def check_events(self, log: EventLog | None) -> None:
        """Raise ConfigError if the scenario needs events of the user's own that are not given or not readable."""

    def missed(self, figures: Figures) -> list[Failure]:
        """Return each claim of the scenario's own, beside its trials, that the figures do not reach."""
        return []

    def check_types(self) -> None:
        """Raise ConfigError if a setting has another type than declared: a mistake in a file."""
        hints = get_type_hints(type(self))
        for setting in fields(cast("Any", self)):
            value = getattr(self, setting.name)
            if not _has_type(value, hints[setting.name]):
                example = "; a tuple of one item is (item,)" if "tuple" in str(setting.type) else ""
                raise ConfigError(f"{setting.name} of a scenario is {setting.type}, not {value!r}{example}")


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
        raise ConfigError(
            f"{file} is no scenario: it needs SCENARIO, a CrashScenario, a ThroughputScenario, an IoFaultScenario, a "
            "ReadersScenario, a QueryScenario, a ScaleScenario, a KafkaScenario, a BrokerScenario or a "
            "KafkaRestartScenario"
        )
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
