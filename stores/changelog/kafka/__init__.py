"""The changelog in Apache Kafka."""
