"""Mutants: known defects that a trial must detect, and the way to build one into a process."""
