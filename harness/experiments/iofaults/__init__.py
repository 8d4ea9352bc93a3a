"""Exhaustive fault injection: kills and errors at every I/O operation, power loss, corruption at rest."""

# isort: off
# In the order of the tables: each declares its faults.
from harness.experiments.iofaults import kills  # noqa: F401
from harness.experiments.iofaults import power  # noqa: F401
from harness.experiments.iofaults import damage  # noqa: F401
