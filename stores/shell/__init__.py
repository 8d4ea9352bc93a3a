"""The shell tool for stores on disk: ``python -m stores``."""
