"""The figures, the ratios and the table about restarts over Kafka."""

from __future__ import annotations

from harness.experiments.kafka.trial import READY_S, RECORDS, STREAMS
from harness.processes.load import LOAD_COLUMNS
from harness.report import text
from harness.report.database import busy, medians, ratio_columns
from harness.report.listing import Column, Listing

KIND = "kafka_restart"
PROMISED = "one second"
"""The yardstick that is a time, not a subject."""

METHOD = f"""
For restarts, a worker of ours and an instance of Kafka Streams (`exactly_once_v2`) each keep the latest value of every
key in a store, both with a commit every 100 ms. Each is killed (SIGKILL) after its last commit, 1,000 more records are
put into the topic, and it is started again. *Ready* is the time from the assignment of its partitions to its first
processed record. *From the start* is the time from the start of its process, in which it also waits until the session
of the killed one is over (6 s). The worker opens its store, and replays the tail that the kill has cost. After the
first kill, the checkpoint file of Kafka Streams has no offset: it removes the store and restores all of it (*worst*).
That restore leaves a checkpoint, and after the later kills Kafka Streams restores the rest alone. The promise is
{READY_S:g} s with {RECORDS:,} records; smaller stores decide nothing.
"""


QUERY = f"""select records, subject, count(*) as repeats, median(ready_s) as ready_s, min(ready_s) as best_s,
        max(ready_s) as worst_s, {medians("start_s", "replayed", *LOAD_COLUMNS)}
    from {KIND} group by records, subject order by best_s"""


RATIOS = f"""with pair as (
        select records, subject, '{PROMISED}' as yardstick, {READY_S} / ready_s as faster, {busy(KIND)} as is_busy
        from {KIND}
        union all
        select records, ours.subject, theirs.subject, theirs.ready_s / ours.ready_s, {busy("ours")} or {busy("theirs")}
        from {KIND} as ours join {KIND} as theirs using (records, seed, repeat) where theirs.subject = '{STREAMS}'
    )
    select 'ready over Kafka after a kill, with ' || exact(records) || ' records' as claim, subject, yardstick,
        'CHANGELOG' as durability, null as records_per_commit,
        iif(yardstick = '{PROMISED}' and records >= {RECORDS}, 1.0, null) as at_least,
        {ratio_columns("faster", "is_busy")}
    from pair where subject <> '{STREAMS}' group by records, subject, yardstick"""
"""The promised time, and that of Kafka Streams, over that of each backend."""


RESTARTS = Listing(
    "From the assignment to the first processed record, after a kill: medians over the rounds",
    f"{KIND}_figure",
    (
        Column("records", "records", text.exact),
        Column("subject"),
        Column("ready", "ready_s", text.duration),
        Column("best", "best_s", text.duration),
        Column("worst", "worst_s", text.duration),
        Column("from the start", "start_s", text.duration),
        Column("replayed", "replayed", text.count),
        Column("repeats", "repeats", text.exact),
        Column("load", "load_average", text.count),
    ),
)
