"""Tests of what watches stores and tasks."""
