"""The same input to a topology of Kafka Streams and to ours, both killed at random: outputs, stores and offsets."""
