"""How fast a task is on each backend, how soon it is back after a kill, and whether its state is right all the same.

Each measurement runs in a process of its own, which imports neither Spark nor pyarrow.
"""
