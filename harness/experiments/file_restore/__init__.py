"""Restores of a store from the files of a snapshot, beside the replay of its changelog and a copy of the files."""
