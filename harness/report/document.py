"""The report as Markdown: the picks with their reasons, then all figures, then the method and the machine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from harness.report import text
from harness.report.choice import choices
from harness.report.crash_tables import crash_tables
from harness.report.effect_section import effect_section
from harness.report.figures import Figure, crash_trials
from harness.report.memory_sections import memory_sections
from harness.report.outcome import outcome, ratios_reached
from harness.report.rows import Row
from harness.report.store_tables import (
    amplification_table,
    benchmark_tables,
    latency_tables,
    opening_tables,
    visibility_tables,
    ycsb_tables,
)
from harness.report.table import ROWS_SHOWN, Table
from harness.report.tables import choice_table, ratio_table, summary_table, throughput_tables

Figures = Mapping[str, Sequence[Figure]]

_LEVELS = """\
| level | a commit survives by itself |
| --- | --- |
| CHANGELOG | nothing: after a crash the store is at some earlier commit, whole, and the changelog's tail is replayed |
| PROCESS | a killed process |
| DISK | power loss, by fsync in every commit |
"""

_READERS = """\
A reader at READ_COMMITTED sees a write when it is committed, so after one commit interval at most. A reader at
READ_UNCOMMITTED sees it at once.
"""

_METHOD = """\
* Throughput: Spark partitions a workload's events by key and gives each partition to one task, with stores and a
  changelog of its own. Every measurement runs in a fresh process, in an order shuffled by the seed; repeats of one
  configuration are not adjacent. A commit is the whole of it: changelog, then stores. After the last record the
  process is killed with a transaction open, and a fresh one opens the task. Its state is compared, key by key, with the
  state that Spark SQL computes from the same events.
* Store-level figures: a store alone, no task, changelog or Spark, timed with pytest-benchmark, each case in a fresh
  process. YCSB: each core workload on 10,000 records of 1,000 bytes, with a commit after 1,000 operations.
* Amplification: counted at the engines of a store alone, in a transaction that fits into a buffer of 256 KiB and in
  one that does not, where a strategy has such a buffer. The bytes that engines make of this, in logs, flushes and
  compactions, are part of what a task's process has written.
* Memory: one task of `count` over 50,000 records, with no commit interval. It commits only because of the limit on
  staged writes: before a record that would exceed it (`PREDICTED`), else after it (`EXCEEDED`). If a limit is exceeded,
  the run fails.
* A large step: one record whose function puts pairs of 8,000 bytes through a task. It includes its commit, which the
  limit causes immediately. Memory is anonymous memory above what the process had before, sampled every millisecond by
  another process. RocksDB's write buffers and every cache are set to 4 MiB here, a copied part to 1 MiB. By default
  they are 48 MiB and 50 MiB per engine, so that a step may take up to twice that more. A bound is computed beforehand.
  It is the sum of the limit, twice the engine's buffers and caches (a spill has its own engine), four parts, 8 MiB for
  the changelog's producer, 200 bytes for each pair, and 16 MiB of freed memory that allocators keep. If a bound is
  exceeded, or a step is not one commit, the run fails.
* Readers: a writer numbers its writes to one key, about a hundred a second, and commits once per interval. A reader at
  each level looks the key up all the time. Lookups beside commits and the cost of iterators are among the ratios and
  suites of a store by itself.
* Opening: a store is filled, and ten commits of 1,000 records follow. The process is killed in one more commit, when
  the changelog has it and the store does not. A fresh process opens the store. At level CHANGELOG an engine whose WAL
  is disabled may lose the ten commits as well.
* Crash trials: a task works through a seeded input over two stores and is killed with SIGKILL at a named failpoint;
  fresh processes recover (some are killed again) and finish the input. Checkers that share no code with the stores
  check atomicity, durability, visibility of uncommitted writes, convergence with the changelog, exactly-once outputs
  and the length of the restore. *Unknown* fails as *anomaly* does. Stores of bytes, of timestamped values, of windows
  and of sessions take turns.
* Figures are compared within one durability level only. Medians; spreads are the lowest and the highest repeat.
"""


_LATENCIES = """\
A store by itself, with random keys of 16 bytes and values of 100. A store that stages its writes does less in a put
and more in a commit than one that writes at once (KIP-892, "Compatibility"). A commit writes all staged records, so its
time grows with their number.
"""


def document(
    figures: Figures,
    rows: Mapping[str, Sequence[Row]],
    facts: Mapping[str, Any],
    environment: Mapping[str, Any],
    plots: Sequence[str],
) -> str:
    """Return the whole report. ``facts`` are the settings of the run, ``plots`` the files beside the report."""
    backends = environment["backends"]
    chosen = choice_table(choices(figures, backends))
    body = [
        chosen.markdown(),
        "Each pick has the best figure among the backends that can do it and kept every promise at that level in this "
        "run. What the levels mean:\n",
        _LEVELS,
        "## What came of it\n",
        outcome(figures),
        "## All backends side by side\n",
        summary_table(figures, backends).markdown(),
        *_plot(plots, "throughput", "Records per second of a task against records per commit"),
        "## Ratios\n",
        f"{ratios_reached(figures)}\n",
        *_told(ratio_table(figures)),
        "## Throughput of a task\n",
        *_told(*throughput_tables(figures)),
        *_plot(plots, "commit-latency", "Milliseconds per commit against records per commit"),
        "## Throughput of a store by itself\n",
        *_plot(plots, "store-throughput", "Records per second of a store against records per commit"),
        *_told(*benchmark_tables(figures), *ycsb_tables(figures)),
        "## Read and write amplification of a store by itself\n",
        *_told(amplification_table(figures)),
        *memory_sections(figures),
        "## Latency of puts and commits\n",
        *([_LATENCIES] if figures["latency"] else []),
        *_plot(plots, "put-and-commit-latency", "Percentiles of the time that a put takes, and a commit"),
        *_told(*latency_tables(figures)),
        "## Readers on other threads\n",
        *([_READERS] if figures["visibility"] else []),
        *_told(*visibility_tables(figures)),
        "## Time to open after a kill\n",
        *_plot(plots, "opening", "Seconds until a store is ready after a kill, against the records in it"),
        *_told(*opening_tables(figures)),
        "## Crashes\n",
        *_plot(plots, "crash-matrix", "Backends by failpoints: how many trials ended valid"),
        _failures(rows),
        *_told(*crash_tables(figures, expected="valid")),
        *_defects(figures),
        effect_section(figures, [*rows.get("effect", ()), *rows.get("mutant", ())], facts),
        "## What was measured, how, and on what\n",
        _METHOD,
        _machine(facts, environment),
    ]
    told = [part for part in body if part]
    head = ["# Which backend, and why\n", f"{_origin(facts, environment)}\n", _contents(told)]
    return "\n".join([*head, *told])


def failure_lines(rows: Sequence[Row]) -> list[str]:
    """Return a sentence and a command for every crash trial with an unexpected result."""
    return [
        f"{trial['backend']} at {trial['durability']}, {trial['failpoint'] or trial['fault']}, seed {trial['seed']}: "
        f"{trial['result']}, not {trial['expected']} ({'; '.join(trial['found']) or 'nothing found'})\n"
        f"  repeat it with: {trial['repeat_command']}"
        for trial in crash_trials(rows)
        if not trial["as_expected"]
    ]


def wrong_end_lines(throughput: Sequence[Figure]) -> list[str]:
    """Return a sentence for every configuration whose end state is not the one that Spark SQL computes."""
    return [
        f"{figure['backend']} at {figure['durability']}, {figure['workload']}, {figure['records_per_commit']:,} "
        f"records per commit, {figure['partitions']} partitions: the end state is not what Spark SQL computes"
        for figure in throughput
        if figure["end_state"] == "different"
    ]


def _told(*tables: Table) -> list[str]:
    return [table.folded() for table in tables] or [f"{text.NOT_MEASURED.capitalize()}.\n"]


def _contents(parts: Sequence[str]) -> str:
    """Return the list of sections. Each is a link to the anchor that code hosts derive from its title."""
    titles = [part.partition("\n")[0].removeprefix("## ") for part in parts if part.startswith("## ")]
    links = (f"[{title}](#{re.sub('[^a-z ]', '', title.lower()).replace(' ', '-')})" for title in titles)
    return f"Contents: {', '.join(links)}. Tables of more than {ROWS_SHOWN} rows are folded.\n"


def _plot(plots: Sequence[str], name: str, title: str) -> list[str]:
    return [f"![{title}]({file})\n" for file in plots if file.startswith(f"{name}.")]


def _origin(facts: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    cpu, disk = environment["cpu"], environment["disk"]
    return (
        f"Written by `make bench` from the rows of one run: profile {facts['profile']}, seed {facts['seed']}, "
        f"{facts['started']}, on {cpu['cores']} cores ({cpu['model']}), {text.size(environment['memory_bytes'])} of "
        f"memory, {disk['file_system']}. Nothing in it is written by hand."
    )


def _failures(rows: Mapping[str, Sequence[Row]]) -> str:
    crashes = rows.get("crash", ())
    if not crashes:
        return ""
    lines = failure_lines(crashes)
    if not lines:
        return "Every trial ended as expected.\n"
    return text.failures("Trials that did not end as expected", lines)


def _defects(figures: Figures) -> list[str]:
    tables = crash_tables(figures, expected="anomaly")
    if not tables:
        return []
    return [
        "### Mutants in crash trials\n",
        "Each of these must be detected: here `anomaly` is the expected result.\n",
        *_told(*tables),
    ]


def _machine(facts: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    cpu, disk = environment["cpu"], environment["disk"]
    libraries = ", ".join(f"{name} {version}" for name, version in environment["libraries"].items())
    packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
    return (
        text.table(
            ("what", "is"),
            [
                ("processor", f"{cpu['model']}, {cpu['cores']} cores, {cpu['architecture']}"),
                ("memory", text.size(environment["memory_bytes"])),
                ("disk", f"{disk['kind']}, {disk['file_system']} ({disk['mount_options']})"),
                ("kernel", environment["kernel"]),
                ("Python, Java", f"{environment['python']}, {environment['java']}"),
                ("engines", libraries),
                ("packages", packages),
                ("took", text.duration(facts.get("seconds"))),
            ],
        )
        + "\nEvery backend's options are in `environment.json`.\n"
    )
