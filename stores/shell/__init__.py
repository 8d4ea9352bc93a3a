"""The commands of ``txstores`` for stores on disk."""
