"""The indexed batch."""
