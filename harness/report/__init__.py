"""Raw rows of a run, and the report made from them."""

from harness.report.rows import read_rows, write_rows
from harness.report.write import README, RESULTS, write_report

__all__ = ["README", "RESULTS", "read_rows", "write_report", "write_rows"]
