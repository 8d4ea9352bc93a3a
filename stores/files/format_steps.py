"""Migration of an older store to the present format when it is opened, one step after the other.

A step's changes are synced before ``store.json`` names the new version. That file is replaced atomically. After an
interruption the next opening finds the older version and repeats the step. Only opening a store migrates it.

Source: KIP-892, "Upgrading"; KIP-258, ``upgrade``.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from stores.engines.engine import Engine
from stores.errors import CommitFailedError, StoreError, StoreUnavailableError
from stores.failpoints import Part, declare, reach
from stores.files.identity import STEPS, OpenEngine, present_version
from stores.files.plain_files import translated_system_errors
from stores.files.store_directory import StoreDirectory

STEP_DONE = declare(
    "migration.step_done", "a store's files have the next format, its identity names the one before", part=Part.CHANGE
)
STEP_NOTED = declare("migration.step_noted", "a store's identity names the next format", part=Part.CHANGE)
FAILPOINTS = (STEP_DONE, STEP_NOTED)
"""The failpoints in the opening of an older store, reached once for each step."""


def migrate(directory: StoreDirectory, open_engine: OpenEngine) -> None:
    """Bring the store in ``directory``, which is locked and not newer than this release, to the present format.

    Raises: StoreUnavailableError on a disk error, after which the next opening continues; the errors of the steps.
    """

    def verified(folder: Path) -> Engine:
        # Damaged data must not be rewritten with a new, valid checksum.
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
            with translated_system_errors(directory.path):
                STEPS[version - 1](directory.path, verified)
                reach(STEP_DONE)
                directory.identify(directory.identity._replace(format_version=version + 1))
        except CommitFailedError as error:
            raise StoreUnavailableError(
                f"{directory.path} could not be migrated from format version {version} to {version + 1}: {error}. "
                "Correct the cause and open the store again"
            ) from error
        reach(STEP_NOTED)
