"""The adapters of the storage libraries."""
