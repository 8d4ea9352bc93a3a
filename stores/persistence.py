"""How much of what a store has committed a killed process would lose, and how to make that less.

Source: KIP-892, "In-memory Transaction Buffers": what has to be restored after a failure is bounded.
"""

from __future__ import annotations


class Persistence:
    """Commits as marks, which never fall: a commit survives a killed process once ``persisted`` has reached its mark.

    This one is that of a store each of whose commits survives at once, or that keeps nothing anyway.
    """

    def mark(self) -> int:
        """The mark of the latest commit or restored piece. On the writer's thread."""
        return 0

    def persisted(self) -> int:
        """The mark up to which a killed process loses nothing. From any thread."""
        return 0

    def begin(self) -> None:
        """Begin to persist what was committed so far, in the background. Nothing where that is going on already.

        An error shows in the next commit.
        """

    def wait(self) -> None:
        """Wait until what ``begin`` began has ended. It may have failed."""


AT_ONCE = Persistence()
"""For stores each of whose commits survives a killed process."""
