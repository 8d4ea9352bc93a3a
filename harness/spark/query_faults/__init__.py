"""Stateful queries under faults: their functions, which break on purpose, and the process that runs them."""
