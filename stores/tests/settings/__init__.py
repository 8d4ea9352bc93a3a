"""Kafka's property names."""
