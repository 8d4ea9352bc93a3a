"""Streaming queries that count events by key, with the state in a store of this library or in Spark's own."""
