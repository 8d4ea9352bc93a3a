"""Seeing and steering what a process does to files: every effect in order, and a fault at any one of them."""
