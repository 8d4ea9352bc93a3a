"""Real file systems in image files, for root, with which the persistence model is compared."""
