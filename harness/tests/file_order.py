"""The order of the files of tests: long ones first, so that no process of ``make test`` ends alone with one.

``make test`` gives whole files to its processes in this order (``--dist loadfile --no-loadscope-reorder``). By default
pytest-xdist begins with the files that have most tests, and the few long tests that start Spark come last.
"""

from __future__ import annotations

from typing import Final

LONG_FILES: Final = (
    "harness/tests/test_throughput_spark.py",
    "harness/tests/test_stateful.py",
    "harness/tests/test_cli.py",
    "harness/tests/test_iofaults.py",
    "harness/tests/test_session.py",
    "harness/tests/test_refusals.py",
    "harness/tests/test_browser_page.py",
    "harness/tests/test_opening.py",
    "harness/tests/test_stateful_bench.py",
    "harness/tests/test_third_party_strategy.py",
    "harness/tests/test_iofaults_spark.py",
    "harness/tests/test_trials_spark.py",
    "stores/tests/tasks/stores/test_typed_kills.py",
    "stores/tests/tasks/stores/test_damage.py",
    "harness/tests/test_iofaults_mutants.py",
    "harness/tests/test_events.py",
    "harness/tests/test_benchmarks.py",
    "harness/tests/test_throughput_processes.py",
    "harness/tests/test_workloads_expected.py",
    "harness/tests/test_workloads.py",
    "harness/tests/test_comparison.py",
    "harness/tests/test_strace_sample.py",
    "harness/tests/test_jvm.py",
    "harness/tests/test_scenario.py",
    "stores/tests/conformance/test_kills.py",
    "stores/tests/conformance/test_full_disk.py",
    "stores/tests/conformance/test_snapshots.py",
    "stores/tests/conformance/test_threads.py",
    "stores/tests/conformance/test_upgrades.py",
    "stores/tests/conformance/test_model.py",
    "stores/tests/test_third_party_backend.py",
    "harness/tests/test_trials.py",
    "harness/tests/test_readers.py",
    "stores/tests/tasks/test_change_kills.py",
    "stores/tests/tasks/test_memory_budget.py",
    "stores/tests/tasks/test_kills.py",
    "stores/tests/tasks/test_on_error.py",
    "stores/tests/strategies/test_spills.py",
    "stores/tests/strategies/test_dual_store.py",
    "harness/tests/test_killed_executors.py",
    "harness/tests/test_real_filesystems.py",
    "harness/tests/test_examples.py",
)
"""Files of more than about ten seconds, the longest first, and then those with tests of ``make test-long``.

The order need not be exact: the short files even it out."""

_PLACES = {name: place for place, name in enumerate(LONG_FILES)}


def place(nodeid: str) -> int:
    """Return the place of a test's file in the order; that of all short files is the last."""
    return _PLACES.get(nodeid.partition("::")[0], len(LONG_FILES))
