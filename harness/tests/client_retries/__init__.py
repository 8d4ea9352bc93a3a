"""Trials of what a client's own retries do to its transactions, over a real broker: a bare loop, and tasks of ours."""
