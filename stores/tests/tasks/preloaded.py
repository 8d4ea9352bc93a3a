"""The imports of the processes that work on tasks until they are killed, made once: see ``store_process``."""

import stores.tests.tasks.directory.relocating
import stores.tests.tasks.upgrading  # noqa: F401
