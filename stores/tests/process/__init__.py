"""Forks and file descriptors."""
