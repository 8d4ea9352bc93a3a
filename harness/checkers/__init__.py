"""Checkers: pure functions from evidence to verdict. None shares code with the stores that it checks."""
