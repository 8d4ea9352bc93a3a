"""Exhaustive fault injection: kills and errors at every I/O operation, power loss, corruption at rest."""
