"""When a task commits by itself: after a number of records."""

from __future__ import annotations

from stores.errors import ConfigError


def check_commit_every(records: object) -> None:
    """Refuse what is no number of records per commit. Raises: TypeError, ConfigError."""
    if not isinstance(records, int) or isinstance(records, bool):
        raise TypeError(f"commit_every_records is an int or None, not {type(records).__name__}")
    if records < 1:
        raise ConfigError(f"commit_every_records is 1 or more, or None, not {records}")
