"""The changelog in Apache Kafka. It needs the extra ``kafka``: the client confluent-kafka.

Source: KIP-98 (transactions), KIP-129 (exactly once), KIP-447 (the group's metadata in the transaction).
"""

from stores.extras import check_extra

check_extra("kafka")

from stores.changelog.kafka.changelog import KafkaChangelog, buffer_limits  # noqa: E402

__all__ = ["KafkaChangelog", "buffer_limits"]
