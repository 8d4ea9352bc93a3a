"""Bringing an older store to the present format when it is opened, one step after the other.

A step's changes are synced before ``store.json`` names the version that they lead to, and that file is replaced in one
move: whenever it is cut short, the next opening finds the older version and repeats the step. Only opening migrates: it
is what writes, readers never do. Source: KIP-892, "Upgrading"; KIP-258, ``upgrade``.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from stores.directory import StoreDirectory
from stores.engines.engine import Engine
from stores.errors import CommitFailedError, StoreError, StoreUnavailableError
from stores.failpoints import declare, reach
from stores.files import system_errors_told
from stores.identity import STEPS, OpenEngine, present_version

STEP_DONE = declare("migration.step_done", "a store's files have the next format, its identity names the one before")
STEP_NOTED = declare("migration.step_noted", "a store's identity names the next format")
FAILPOINTS = (STEP_DONE, STEP_NOTED)
"""What opening an older store reaches, once for each step."""


def migrate(directory: StoreDirectory, open_engine: OpenEngine) -> None:
    """Bring the store in ``directory``, which is locked and not newer than this release, to the present format.

    Raises: StoreUnavailableError where the disk refuses: the next opening goes on; and what the steps raise.
    """

    def verified(folder: Path) -> Engine:
        # What is not sound must not be taken for data, written anew, and sound from then on.
        engine = open_engine(folder)
        try:
            engine.verify()
        except BaseException:
            with suppress(StoreError):
                engine.close()
            raise
        return engine

    while (version := directory.identity.format_version) < present_version():
        try:
            with system_errors_told(directory.path):
                STEPS[version - 1](directory.path, verified)
                reach(STEP_DONE)
                directory.identify(directory.identity._replace(format_version=version + 1))
        except CommitFailedError as error:
            raise StoreUnavailableError(
                f"{directory.path} could not be brought from format version {version} to {version + 1}: {error}. Mend "
                "that and open the store again"
            ) from error
        reach(STEP_NOTED)
