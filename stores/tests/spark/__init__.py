"""Tests of the library on Spark."""
