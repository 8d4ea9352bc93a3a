"""Scenarios: each file has a claim as its docstring, and a scenario under the name ``SCENARIO``.

A scenario knows no experiment. Its settings are those of the grid of the experiment that it names.
"""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.folders import SCENARIOS
from stores.errors import ConfigError, nearest
from stores.failpoints import Part

__all__ = [
    "AtLeast",
    "KillAtEach",
    "Part",
    "Scenario",
    "ScenarioFile",
    "read_scenario",
    "scenario_file",
    "scenario_names",
]


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
