"""All experiments, in the order in which a bench runs them. A new one is one line here."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from harness.experiment import RATIO, RATIO_COLUMNS, Columns, Described, Experiment
from harness.report.coverage import COVERAGE_KINDS
from harness.scenario import Grid, Scenario, grid_from
from harness.workloads.suggestion import check_known, unknown

_CLASSES = (
    "harness.experiments.amplification.Amplification",
    "harness.experiments.memory.experiment.EarlyCommits",
    "harness.experiments.memory.experiment.LargeSteps",
    "harness.experiments.visibility.Visibility",
    "harness.experiments.latencies.Latencies",
    "harness.experiments.cold_cache.ColdCache",
    "harness.experiments.microbench.experiment.Microbench",
    "harness.experiments.jvm.experiment.Jvm",
    "harness.experiments.kafka.restart.KafkaRestart",
    "harness.experiments.kafka.experiment.Kafka",
    "harness.experiments.stateful.experiment.Stateful",
    "harness.experiments.throughput.experiment.Throughput",
    "harness.experiments.crash.experiment.Crash",
    "harness.experiments.opening.experiment.Opening",
    "harness.experiments.file_restore.experiment.FileRestore",
    "harness.experiments.scale.experiment.Scale",
    "harness.experiments.broker_faults.experiment.BrokerFaults",
    "harness.experiments.query_faults.experiment.QueryFaults",
    "harness.experiments.iofaults.experiment.IoFaults",
    "harness.experiments.readers.experiment.Readers",
)


@functools.cache
def experiments() -> Mapping[str, Experiment[Any]]:
    """Return every experiment by its name, in order. They are imported by the first call."""
    by_name: dict[str, Experiment[Any]] = {}
    for path in _CLASSES:
        module, _, name = path.rpartition(".")
        experiment: Experiment[Any] = getattr(importlib.import_module(module), name)()
        by_name[experiment.name] = experiment
    return MappingProxyType(by_name)


def experiment_named(name: str) -> Experiment[Any]:
    """Return an experiment. Raises: ConfigError for an unknown name."""
    if name not in experiments():
        raise unknown("experiment", name, experiments())
    return experiments()[name]


def grid_of(scenario: Scenario) -> Grid:
    """Return the grid of a scenario. Raises: ConfigError for an unknown experiment, and for a wrong setting."""
    kinds_of_grid = {name: each.grid for name, each in experiments().items() if each.grid is not None}
    check_known("experiment with scenarios called", kinds_of_grid, scenario.experiment)
    return grid_from(kinds_of_grid[scenario.experiment], scenario.settings)


def faults() -> Mapping[str, Mapping[str, Described]]:
    """Return the faults of every experiment that injects some, by the experiment's name and their own."""
    return {name: each.faults for name, each in experiments().items() if each.faults}


def stages() -> tuple[str, ...]:
    """Return the names of the stages of a bench, in order."""
    return tuple(dict.fromkeys(each.stage for each in experiments().values() if each.stage))


@functools.cache
def kinds() -> Mapping[str, Columns]:
    """Return the columns of every kind of rows, by kind."""
    own = {kind: columns for each in experiments().values() for kind, columns in each.columns.items()}
    return MappingProxyType({**own, RATIO: RATIO_COLUMNS, **COVERAGE_KINDS})
