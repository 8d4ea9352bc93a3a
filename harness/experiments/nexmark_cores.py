"""The shared parts of pages about Nexmark: the events that a query reads, and the published figures of Flink."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from harness.workloads.batches import SUFFIX
from harness.workloads.nexmark_queries import QUERIES

FLINK_PER_CORE: Mapping[str, int] = MappingProxyType(
    {
        "nexmark_q3": 152_120,
        "nexmark_q4": 34_330,
        "nexmark_q5": 22_140,
        "nexmark_q7": 12_330,
        "nexmark_q8": 146_140,
        "nexmark_q11": 39_700,
        "nexmark_q17": 116_800,
        "nexmark_q18": 53_700,
        "nexmark_q19": 44_040,
    }
)
"""Events per second and core. Source: nexmark-flink, README, "Benchmark Results"."""


_ROWS = ", ".join(f"('{query.name}', {query.share}, {FLINK_PER_CORE[query.name]})" for query in QUERIES)
OF_QUERIES = f"""join (select column1 as query, column2 as share, column3 as flink from (values {_ROWS}))
    on query = replace(workload, '{SUFFIX}', '')"""
"""The join of figures with ``query``, ``share`` (of the events that it reads) and ``flink``, by their workload."""
BY_NUMBER = "cast(substr(query, 10) as integer)"
"""The order of queries."""


METHOD = """
Events of Nexmark that a query does not read are left out at the source. Its events per second and core are those of the
task's process, with its changelog, and count the events that were left out as well. Flink's figures are published in
the README of `nexmark/nexmark` on GitHub: Flink 1.13, 100,000,000 events, three machines with eight cores, CPU time of
the cluster and its source. They say in which range an engine on the JVM is, no more.
"""
