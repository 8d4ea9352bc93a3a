"""The order of the files of tests: long ones first, so that no process of ``make test`` ends alone with one.

``make test`` gives whole files to its processes in this order (``--dist loadfile --no-loadscope-reorder``). By default
pytest-xdist begins with the files that have most tests, and the few long tests that start Spark come last.
"""

from __future__ import annotations

from typing import Final

LONG_FILES: Final = (
    "harness/tests/test_iofaults.py",
    "stores/tests/tasks/stores/test_typed_kills.py",
    "harness/tests/test_killed_executors.py",
    "harness/tests/test_throughput_spark.py",
    "harness/tests/test_iofaults_spark.py",
    "harness/tests/test_session.py",
    "harness/tests/test_stateful.py",
    "harness/tests/test_trials_spark.py",
    "harness/tests/test_cli.py",
    "harness/tests/test_events.py",
    "harness/tests/test_iofaults_mutants.py",
    "harness/tests/test_trials.py",
    "harness/tests/test_benchmarks.py",
    "harness/tests/test_scenario.py",
    "harness/tests/test_effects.py",
    "harness/tests/test_report.py",
    "harness/tests/test_readers.py",
    "stores/tests/tasks/stores/test_upgrade_kills.py",
    "stores/tests/tasks/directory/test_layout_change.py",
    "stores/tests/tasks/stores/test_damage.py",
    "stores/tests/tasks/test_kills.py",
    "stores/tests/tasks/stores/test_upgrades.py",
    "stores/tests/tasks/test_memory_budget.py",
)
"""Files of more than about 20 seconds, the longest first. The order need not be exact: the short files even it out."""

_PLACES = {name: place for place, name in enumerate(LONG_FILES)}


def place(nodeid: str) -> int:
    """Return the place of a test's file in the order; that of all short files is the last."""
    return _PLACES.get(nodeid.partition("::")[0], len(LONG_FILES))
