"""Settings of stores and tasks: Kafka's property names, and the upgrade of a typed store to a new format."""
