"""Crash trials: a process works and dies, and the next one reports the state that is left."""
