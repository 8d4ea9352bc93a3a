"""Where the files of a trial lie in its work folder, and what its task, stores and topics are called."""

from __future__ import annotations

TRIAL_FILE = "trial.json"
CHANGELOG_FILE = "changelog.sqlite"
STATE_FOLDER = "state"
OTHER_STATE_FOLDER = "state-of-another"
"""The stores of the instance that takes the task over."""
FOUND_FOLDER = "found"
"""A copy of the stores as the last process left them, for the next one to look at."""

APPLICATION = "trial"
STORES = ("left", "right")
INPUT_TOPIC = "trial-input"
OUTPUT_TOPIC = "trial-output"


def changelog_topic(store: str) -> str:
    """The topic that is the changelog of ``store``."""
    return f"{APPLICATION}-{store}-changelog"


def history_file(process: int) -> str:
    """The file in which the ``process``-th process notes its events."""
    return f"history-{process}.jsonl"
