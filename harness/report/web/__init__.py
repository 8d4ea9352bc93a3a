"""The page for browsers: one file with its data, its charts and its scripts, which needs no network."""
