"""The names of a trial's files in its work folder, and of its task, stores and topics."""

from __future__ import annotations

TRIAL_FILE = "trial.json"
CHANGELOG_FILE = "changelog.sqlite"
STATE_FOLDER = "state"
OTHER_STATE_FOLDER = "state-of-another"
"""The stores of the instance that takes over the task."""
FOUND_FOLDER = "found"
"""A copy of the stores as the last process left them, which the next process reads."""

APPLICATION = "trial"
STORES = ("left", "right")
INPUT_TOPIC = "trial-input"
OUTPUT_TOPIC = "trial-output"


def changelog_topic(store: str) -> str:
    """Return the changelog topic of ``store``."""
    return f"{APPLICATION}-{store}-changelog"


def history_file(process: int) -> str:
    """Return the name of the file in which the ``process``-th process notes its events."""
    return f"history-{process}.jsonl"
