"""Ordered collections without input or output: a sorted map, sorted keys, ranges of keys."""
