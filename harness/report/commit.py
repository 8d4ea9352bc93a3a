"""The commit of the code that a run measures."""

from __future__ import annotations

import subprocess
from pathlib import Path

CHANGED = "+"
_WRITTEN = (":!results", ":!README.md")
"""The files that a bench writes itself: they are no changes of the code."""


def commit_of(root: Path) -> str:
    """Return the hash of the commit that is checked out in ``root``, with a plus if tracked files differ from it.

    It is "" if ``root`` is not the top of a clone, or there is no git.
    """
    if _git(root, "rev-parse", "--show-cdup") != "":
        return ""
    commit = _git(root, "rev-parse", "HEAD") or ""
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", *_WRITTEN)
    return f"{commit}{CHANGED if changed else ''}" if commit else ""


def _git(root: Path, *arguments: str) -> str | None:
    """Return what git prints; None if it fails."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
