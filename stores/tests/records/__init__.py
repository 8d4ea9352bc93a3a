"""Tests of typed stores that no backend decides; what every backend promises of them is in ``conformance``."""
