"""Faults below the process: kills and errors at every effect on a file, power loss, damage at rest."""
