"""Rows of a run that never was: every kind, several levels and backends, a missed ratio, a failed trial, a defect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.experiments.registry import kinds as known
from harness.report.ratios import ratio_of
from harness.report.rows import new_run, write_rows

Rows = dict[str, list[dict[str, Any]]]

SPEEDS = {
    "rocksdb-direct": 1.0,
    "rocksdb-indexed-batch": 1.3,
    "rocksdb-dual-store": 0.5,
    "lmdb-indexed-batch": 0.9,
    "sqlite-indexed-batch": 0.6,
    "memory-indexed-batch": 2.0,
}
LEVELS = {"CHANGELOG": 1.0, "DISK": 0.1}
FAILPOINTS = (
    "create.built",
    "direct.commit",
    "indexed_batch.after_write",
    "task.after_log_commit",
    "task.restore.before_write",
)

ENVIRONMENT: dict[str, Any] = {
    "cpu": {"model": "Made-up", "cores": 2, "architecture": "x86_64"},
    "memory_bytes": 8 << 30,
    "disk": {"file_system": "ext4", "kind": "solid state", "mount_options": "rw"},
    "kernel": "Linux 6",
    "python": "CPython 3.11.7",
    "java": "17",
    "libraries": {"RocksDB": "9.8.4"},
    "packages": {"lmdb": "3.0.0"},
    "backends": {
        name: {
            "engine": name.split("-")[0],
            "strategy": name.partition("-")[2],
            "durabilities": list(LEVELS),
            "persistent": not name.startswith("memory"),
            "transactional": not name.endswith("direct"),
            "options": {},
        }
        for name in SPEEDS
    },
}
FACTS: dict[str, Any] = {
    "profile": "smoke",
    "seed": 1,
    "started": "2026-01-01 00:00 UTC",
    "seconds": 61.0,
    "environment": ENVIRONMENT,
}


def made_up_rows() -> Rows:
    """By kind."""
    return {
        "throughput": _throughput(),
        "opening": _opening(),
        "benchmark": _benchmark(),
        "amplification": _amplification(),
        "early_commit": _early_commit(),
        "large_step": _large_step(),
        "visibility": _visibility(),
        "latency": _latency(),
        "ratio": _ratio(),
        "scale": _scale(),
        "scale_part": _scale_part(),
        "crash": _crash(),
    }


def _throughput() -> list[dict[str, Any]]:
    return [
        {
            "kind": "throughput",
            "backend": backend,
            "durability": level,
            "workload": "count",
            "records_per_commit": size,
            "partitions": 2,
            "repeat": repeat,
            "seed": 1,
            "records": 100_000,
            "seconds": 1.0,
            "records_per_s": 100_000 * speed * factor * size**0.1 * (1 + repeat / 50),
            "commit_p50_us": size / speed / factor,
            "commit_p99_us": 3 * size / speed / factor,
            "commit_max_us": 9 * size / speed / factor,
            "bytes_written": 1 << 24,
            "bytes_on_disk": 0
            if backend.startswith("memory")
            else (1 << 23) + (1 << 20) * (not backend.startswith("lmdb")),
            "peak_memory_bytes": int((1 << 26) / speed),
            "open_files": 40,
            "open_after_kill_s": 0.1 / speed,
            "end_state": "equal",
            "cpu_per_wall": 1.9,
            "load_average": 2.0,
            "others_share": 0.02,
            "steal_share": 0.0,
            "cpu_s": 1.9,
            "waited_share": 0.0,
        }
        for backend, speed in SPEEDS.items()
        for level, factor in LEVELS.items()
        for size in (100, 1_000, 10_000)
        for repeat in range(5)
    ]


def _opening() -> list[dict[str, Any]]:
    return [
        {
            "kind": "opening",
            "backend": backend,
            "durability": "CHANGELOG",
            "records": records,
            "repeat": repeat,
            "open_s": 0.05 / speed + repeat / 1e4,
            "restore_s": records / 1e6 if backend.endswith("direct") else 0.01,
            "replayed": 1_000,
            "alone_s": 0.04 / speed,
            "bare_s": 0.03,
            "mark_s": 0.002,
            "whole_restore_s": records / 1e5,
            "others_share": 0.02,
            "steal_share": 0.0,
        }
        for backend, speed in SPEEDS.items()
        if not backend.startswith("memory")
        for records in (50_000, 500_000)
        for repeat in range(5)
    ]


def _scale() -> list[dict[str, Any]]:
    return [
        {
            "kind": "scale",
            "backend": backend,
            "durability": "CHANGELOG",
            "records": 1_000_000,
            "value_bytes": 100,
            "memory_max_bytes": 0,
            "seed": 1,
            "state_bytes": 116_000_000,
            "puts_per_s": 300_000.0 * speed,
            "commit_max_s": 0.1,
            "gets_old_per_s": 50_000.0 * speed,
            "gets_new_per_s": 60_000.0 * speed,
            "gets_absent_per_s": 90_000.0 * speed,
            "scan_per_s": 600_000.0 * speed,
            "whole_scan_per_s": 700_000.0 * speed,
            "load_peak_bytes": 1 << 27,
            "read_peak_bytes": 1 << 27,
            "restore_peak_bytes": 1 << 27,
            "bytes_on_disk": 130_000_000,
            "open_s": 0.02,
            "restore_s": 5.0,
            "restore_per_s": 200_000.0,
            "problem": "",
            "unlimited": "",
            "others_share": 0.02,
            "steal_share": 0.0,
        }
        for backend, speed in SPEEDS.items()
        if not backend.startswith("memory")
    ]


def _scale_part() -> list[dict[str, Any]]:
    return [
        {
            **{name: row[name] for name in ("backend", "durability", "records", "value_bytes", "memory_max_bytes")},
            "seed": 1,
            "kind": "scale_part",
            "records_there": 100_000 * part,
            "puts_per_s": row["puts_per_s"] * (1 - part / 50),
        }
        for row in _scale()
        for part in range(1, 11)
    ]


def _benchmark() -> list[dict[str, Any]]:
    return [
        {
            "kind": "benchmark",
            "suite": "commit",
            "name": "put and commit",
            "subject": subject,
            "durability": "CHANGELOG",
            "records_per_commit": size,
            "distribution": "uniform",
            "median_s": 0.05 / speed,
            "iqr_s": 0.001,
            "rounds": 5,
            "records": 50_000,
            "records_per_s": 1e6 * speed * size**0.05,
        }
        for subject, speed in {**SPEEDS, "plain-rocksdb": 1.1}.items()
        for size in (100, 1_000, 10_000)
    ]


def _amplification() -> list[dict[str, Any]]:
    return [
        {
            "kind": "amplification",
            "backend": backend,
            "durability": "CHANGELOG",
            "staged_records": staged,
            "lookups_staged": float(backend.endswith("direct")),
            "lookups_just_committed": 1.0,
            "lookups_committed": 1.0,
            "lookups_absent": 1.5,
            "bytes_put": 1_000,
            "bytes_written": 2_000,
        }
        for backend in SPEEDS
        for staged in (1_000, 10_000)
    ]


def _early_commit() -> list[dict[str, Any]]:
    return [
        {
            "kind": "early_commit",
            "backend": "rocksdb-indexed-batch",
            "durability": "CHANGELOG",
            "limit_bytes": limit,
            "repeat": repeat,
            "records": 50_000,
            "seconds": 0.5,
            "records_per_s": 100_000.0,
            "commits": 6,
            "predicted": 5,
            "exceeded": 0,
            "uncommitted_max_bytes": 1 << 19,
            "peak_memory_bytes": 1 << 26,
        }
        for limit in (1 << 20, None)
        for repeat in range(2)
    ]


def _large_step() -> list[dict[str, Any]]:
    return [
        {
            "kind": "large_step",
            "backend": backend,
            "durability": "CHANGELOG",
            "transactional": not backend.endswith("direct"),
            "limit_bytes": 1 << 24,
            "step_bytes": 1 << 26,
            "pairs": 8_000,
            "uncommitted_bytes": 1 << 26,
            "staged_disk_bytes": 0 if backend.startswith("memory") else 1 << 26,
            "peak_bytes": 1 << 25,
            "bound_bytes": None if backend.startswith("memory") else 1 << 26,
            "seen_early": 100 if backend.endswith("direct") else 0,
            "commits": 1,
            "state": "equal",
            "seconds": 1.0,
        }
        for backend in SPEEDS
    ]


def _latency() -> list[dict[str, Any]]:
    return [
        {
            "kind": "latency",
            "backend": backend,
            "durability": "CHANGELOG",
            "operation": operation,
            "records_per_commit": 1_000,
            "operations": operations,
            **{f"p{name}_us": times * base_us / speed for name, times in (("50", 1), ("90", 2), ("99", 4), ("999", 9))},
            "max_us": 20 * base_us / speed,
        }
        for backend, speed in SPEEDS.items()
        for operation, operations, base_us in (("put", 20_000, 2.0), ("commit", 20, 900.0))
    ]


def _visibility() -> list[dict[str, Any]]:
    return [
        {
            "kind": "visibility",
            "backend": "rocksdb-indexed-batch",
            "durability": "CHANGELOG",
            "committed_by": committed_by,
            "isolation_level": level,
            "commit_interval_s": interval_s,
            "writes": 500,
            "lag_p50_s": lag_s / 2,
            "lag_p99_s": lag_s,
            "lag_max_s": 2 * lag_s,
        }
        for committed_by in ("writer", "task")
        for interval_s in (0.02, 0.1)
        for level, lag_s in (("READ_UNCOMMITTED", 0.001), ("READ_COMMITTED", interval_s))
    ]


def _ratio() -> list[dict[str, Any]]:
    shared = {
        "kind": "ratio",
        "subject": "rocksdb-indexed-batch",
        "yardstick": "rocksdb-direct",
        "durability": "CHANGELOG",
    }
    at_100 = {**shared, "records_per_commit": 100, "at_least": 1.0}
    return [
        {
            **shared,
            "claim": "an indexed batch beats direct writes",
            "records_per_commit": 1_000,
            **ratio_of([1.2, 1.25, 1.3, 1.35, 1.4]),
            "at_least": 1.1,
        },
        {
            **shared,
            "claim": "and with long transactions",
            "records_per_commit": 500_000,
            **ratio_of([0.9, 0.93, 0.95, 0.97, 0.99]),
            "at_least": 1.0,
        },
        {**shared, "claim": "for the curious", "records_per_commit": None, **ratio_of([0.5]), "at_least": None},
        {
            **shared,
            "claim": "too close to say",
            "records_per_commit": 100,
            **ratio_of([0.9, 1.0, 1.1, 1.2, 1.3]),
            "at_least": 1.0,
        },
        {**at_100, "claim": "beside others", **ratio_of([1.1] * 5, busy=2)},
        {**at_100, "claim": "in a hurry", **ratio_of([2.0] * 2)},
        {**at_100, "claim": "slow by the clock alone", **ratio_of([0.8] * 5, 5, [1.15, 1.2, 1.25])},
        {**at_100, "claim": "fast by the clock alone", **ratio_of([1.2] * 5, 5, [0.5, 0.51, 0.49, 0.5])},
    ]


def _crash() -> list[dict[str, Any]]:
    rows = []
    for backend in SPEEDS:
        for failpoint in FAILPOINTS:
            own = failpoint.partition(".")[0]
            if own in ("direct", "indexed_batch") and not backend.replace("-", "_").endswith(own):
                continue
            for seed in range(2):
                broken = backend.startswith("sqlite") and failpoint == "create.built" and seed == 1
                rows += _trial(backend, failpoint, seed, "anomaly" if broken else "valid", "valid", "crash matrix")
    rows += _trial("rocksdb-direct", "", 1, "anomaly", "anomaly", "background flush, wipe turned off")
    return rows


def _trial(backend: str, failpoint: str, seed: int, result: str, expected: str, scenario: str) -> list[dict[str, Any]]:
    return [
        {
            "kind": "crash",
            "trial_id": f"{backend}-{failpoint}-{seed}-{scenario}",
            "backend": backend,
            "durability": "CHANGELOG",
            "guarantee": "exactly_once",
            "records": "",
            "scenario": scenario,
            "fault": "kill" if failpoint else "abort",
            "failpoint": failpoint,
            "seed": seed,
            "checker": checker,
            "result": result if checker == "atomicity" else "valid",
            "detail": "store left: key k1 is wrong" if checker == "atomicity" and result != "valid" else "",
            "expected": expected,
            "repeat_command": "python -m harness repeat crash '{}'",
            "acknowledged": 9,
            "kept": 7,
            "replayed": 2 if expected == "valid" else 1,
            "lost": 0 if expected == "valid" else 1,
        }
        for checker in ("atomicity", "durability")
    ]


def run_of(folder: Path, kinds: set[str] | None = None) -> Path:
    run = new_run(folder / "runs", "smoke", FACTS)
    for kind, rows in made_up_rows().items():
        if kinds is None or kind in kinds:
            write_rows(run, kind, rows, known())
    return run


def scaled(rows: Rows, backend: str, *factors: float) -> Rows:
    """Multiply the records per second of a backend by a factor for each round, the last one for all that follow."""
    for row in rows["throughput"]:
        if row["backend"] == backend:
            row["records_per_s"] *= factors[min(row["repeat"], len(factors) - 1)]
    return rows


def timed_rounds(seconds: dict[str, list[float]], busy: int = 0) -> list[dict[str, Any]]:
    """Rows of two rounds in each repeat; the machine was busy in the first ``busy`` repeats."""
    return [
        {"profile": "default", "case": case, "seed": repeat, "seconds": took, "others_share": 0.5 * (repeat < busy)}
        for case, repeats in seconds.items()
        for repeat, second in enumerate(repeats)
        for took in (second, second)
    ]
