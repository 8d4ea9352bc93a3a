"""The processes that measure streaming queries, in a JVM that starts quickly, and with one batch to warm up.

What is measured runs in a JVM with both compilers, which takes twice the processor time for a few small batches.
"""

from __future__ import annotations

from typing import Any

from harness.processes.spark_cluster import QUICK_SPARK
from harness.spark import stateful

WARM_BATCHES = 1
MEASURED, RESTARTED = f"{__name__}:measured", f"{__name__}:restarted"


def measured(**arguments: Any) -> dict[str, Any]:
    """Return what ``stateful.measured`` returns."""
    _make_quick()
    return stateful.measured(**arguments)


def restarted(**arguments: Any) -> None:
    """Do what ``stateful.restarted`` does."""
    _make_quick()
    stateful.restarted(**arguments)


def _make_quick() -> None:
    settings = stateful.settings
    stateful.settings = lambda partitions: settings(partitions) | {"spark.driver.extraJavaOptions": QUICK_SPARK}
    stateful.WARM_BATCHES = WARM_BATCHES
