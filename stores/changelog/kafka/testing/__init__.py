"""A real Apache Kafka broker on this machine, for tests: one node, on loopback, with a data folder of its own."""
