"""The experiment that breaks processes, the broker and the network under tasks over Kafka."""
