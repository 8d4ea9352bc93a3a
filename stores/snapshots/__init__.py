"""Snapshots of stores by files, in a folder that other machines reach: a lost store begins there, not at its changelog.

``Snapshots`` says where they are and when they are taken. Tasks take them and begin from them. This package knows
no task: it has the index of a snapshot, its objects, their way there and back, and what is removed.
"""

from stores.snapshots.settings import Snapshots

__all__ = ["Snapshots"]
