"""The commits that a killed process would lose, and how a store makes them persistent.

Source: KIP-892, "In-memory Transaction Buffers": what has to be restored after a failure is bounded.
"""

from __future__ import annotations


class Persistence:
    """Marks of commits, which never decrease: a commit survives a kill when ``persisted`` has reached its mark.

    This class is for a store whose commits survive a kill at once, and for one that keeps nothing.
    """

    def mark(self) -> int:
        """The mark of the latest commit or restored piece. On the writer's thread."""
        return 0

    def persisted(self) -> int:
        """The mark up to which a killed process loses nothing. From any thread."""
        return 0

    def begin(self) -> bool:
        """Begin to persist all commits so far in the background; return False if an earlier call is still under way.

        After a failure the next commit raises an error.
        """
        return False

    def wait(self) -> None:
        """Wait for the end of what ``begin`` has started, whether or not it succeeds."""


AT_ONCE = Persistence()
"""For stores whose commits all survive a killed process."""
