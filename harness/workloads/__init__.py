"""Workloads: the events that a task processes, its function, and the state that must come out of it."""
