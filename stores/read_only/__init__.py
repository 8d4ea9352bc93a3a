"""Read a store on disk without opening it: beside the process that writes to it, or while none does."""

from stores.read_only.store_view import ReadOnlyStore, open_read_only

__all__ = ["ReadOnlyStore", "open_read_only"]
