"""The imports that every process of a test needs, made once: see ``store_process``."""

from contextlib import suppress

import stores.tests.store_process  # noqa: F401
from stores.errors import StoreError
from stores.registry import backends

for backend in backends().values():
    # One of another package may lack what it needs; a test of it says so.
    with suppress(StoreError, ImportError):
        backend.load()
