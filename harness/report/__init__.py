"""Raw rows of a run, and the report made from them."""

from harness.report.write import publish

__all__ = ["publish"]
