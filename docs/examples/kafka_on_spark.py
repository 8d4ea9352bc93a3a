"""Add up payments by card on Spark, from Kafka to Kafka. Run it again after a kill: no payment counts twice.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 kafka_on_spark.py BROKERS FOLDER

The topics ``payments`` and ``totals`` exist. A payment has the card as its key, and its value is the cents, as eight
bytes (``INT64``). FOLDER has the state and the checkpoint of the query. After a kill Spark's sink for Kafka may repeat
rows of a batch, but never others: the last total of a card is right, and a total that comes twice is the same one.
``total`` is the function of a task: a worker would run it as it is. Needs the extra ``spark``, and Java. The number
4.2.0 is that of your Spark, or the newest one before it.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from stores.changelog import Record
from stores.records import INT64, STR, KeyValue
from stores.spark import stateful
from stores.tasks import TaskContext
from stores.worker import Topic

PAYMENTS = Topic("payments", key=STR, value=INT64)
"""The cents of each payment, by card."""
TOTALS = Topic("totals", key=STR, value=INT64)
"""The cents that a card has spent so far."""
SPENT = KeyValue(key=STR, value=INT64, name="spent")


def total(record: Record[str, int], context: TaskContext) -> None:
    """Add a payment to the total of its card, and forward that."""
    if record.key is not None and record.value is not None:
        cents = record.value
        spent = context.store(SPENT).update(record.key, lambda before: before + cents, 0)
        context.forward(TOTALS, record.key, spent)


def main(brokers: str, folder: str) -> None:
    """Process what is in the topic, at most 500 payments in a batch; print the totals."""
    spark = SparkSession.builder.appName("payments").getOrCreate()
    kafka = {"kafka.bootstrap.servers": brokers}
    source = {"subscribe": PAYMENTS.name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "500"}
    payments = spark.readStream.format("kafka").options(**kafka, **source).load()
    totals = stateful(
        payments,
        key="key",
        process_record=total,
        topics=[PAYMENTS],
        output="topic string, key binary, value binary",
        stores=[SPENT],
        state=f"{folder}/state",
    )
    sink = totals.writeStream.format("kafka").options(**kafka, checkpointLocation=f"{folder}/checkpoint")
    sink.trigger(availableNow=True).start().awaitTermination()
    rows = spark.read.format("txstores").load(f"{folder}/state").collect()
    print(sorted((row["key"], int(row["value"])) for row in rows if row["store"] == SPENT.name))


if __name__ == "__main__":
    main(*sys.argv[1:])
