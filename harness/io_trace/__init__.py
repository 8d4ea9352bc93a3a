"""Fault injection: record the I/O operations of a process in order, and inject a fault at any one of them."""
