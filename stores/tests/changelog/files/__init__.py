"""Tests of the changelog of files."""
