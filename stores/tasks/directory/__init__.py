"""The state directory: the places of each task's stores, its locks, offsets beside stores, and relocation."""
