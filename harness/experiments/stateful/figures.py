"""The figures and the ratios of stateful queries, as queries over rows."""

from __future__ import annotations

from types import MappingProxyType

from harness.experiments.stateful.trial import APPLY, JVM, OURS, OURS_IN_ARROW, PANDAS, ROWS
from harness.report.database import busy, interval_ends, medians, ratio_columns

GOAL_KEYS = 100_000
"""The number of keys for which the goals hold."""
GOALS = {APPLY: 10.0, PANDAS: 3.0, ROWS: 3.0, JVM: 0.7}
"""The least ratio of the time of a batch over that of ``OURS``."""
_CELL = "keys, batch_events, partitions, seed"
_TIMES = f"iif(one.subject = '{OURS}', null, one.seconds / ours.seconds)"
# A process that ends in a batch takes all of its CPU time away, which is then unknown.
_CPU_TIMES = f"iif(one.subject <> '{OURS}' and one.cpu_s > 0 and ours.cpu_s > 0, one.cpu_s / ours.cpu_s, null)"
QUERIES = MappingProxyType(
    {
        "stateful": f"""select {_CELL}, one.subject as subject, count(*) as repeats, sum({busy("one")}) as busy,
                median(one.seconds) as seconds, {interval_ends("seconds", "one.seconds")},
                median(iif(one.cpu_s > 0, one.cpu_s, null)) as cpu_s,
                median({_TIMES}) as seconds_ratio, {interval_ends("seconds_ratio", _TIMES)},
                median({_CPU_TIMES}) as cpu_s_ratio, {interval_ends("cpu_s_ratio", _CPU_TIMES)},
                batch_events / median(one.seconds) as events_per_s
            from stateful as one left join (select * from stateful where subject = '{OURS}') as ours
                using ({_CELL}, round)
            group by {_CELL}, one.subject""",
        "stateful_restart": f"""select subject, keys, copies, batch_events, seed, count(*) as repeats,
                {medians("ready_s", "start_s", "first_batch_s")}, {interval_ends("ready_s")}
            from stateful_restart group by subject, keys, copies, batch_events, seed""",
    }
)
"""Medians of each subject, keys and batch size, with the ratios of its times over those of ``OURS``, and of restarts.
"""
_GOAL = " ".join(f"when '{yardstick}' then {goal}" for yardstick, goal in GOALS.items())
RATIOS = f"""select 'a batch of ' || exact(batch_events) || ' events, with ' || exact(keys) || ' keys' as claim,
        ours.subject as subject, theirs.subject as yardstick, null as durability, batch_events as records_per_commit,
        iif(keys = {GOAL_KEYS}, case theirs.subject {_GOAL} end, null) as at_least, '' as reason,
        {ratio_columns("theirs.seconds / ours.seconds", f"{busy('theirs')} or {busy('ours')}")}
    from stateful as ours join stateful as theirs using ({_CELL}, round)
    where case theirs.subject {_GOAL} end is not null
        and (ours.subject = '{OURS}' or (ours.subject, theirs.subject) = ('{OURS_IN_ARROW}', '{JVM}'))
    group by {_CELL}, ours.subject, theirs.subject"""
"""Times of Spark's own ways over ours in the same round, with the goals."""
