"""Promises of every changelog, tested on each embedded one, and those of the one in a file alone."""
