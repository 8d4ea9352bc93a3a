"""The throughput of a task on each backend, its time to open after a kill, and a check of its final state.

Each measurement runs in its own process, which imports neither Spark nor pyarrow.
"""
