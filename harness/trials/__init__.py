"""Crash trials: a process works, dies, and is followed by one that tells what is left."""
