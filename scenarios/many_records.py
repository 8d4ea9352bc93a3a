"""A store of millions of records shows every one of them, also when it is opened again, or restored.

Its speeds, its memory and its disk space are measured, with keys at random: also where processes can have a quarter of
the memory that the keys and values take. The profile night goes up to 100,000,000 records (some hours, 60 GB of disk).

Source: KIP-892, "Test Plan"; RocksDB's wiki, "Performance Benchmarks".
"""

from harness.cli import run_scenario
from harness.scenario import Scenario

SCENARIO = Scenario(
    "scale",
    records=(1_000_000,),
    large=(
        ("rocksdb", 10_000_000),
        ("sqlite", 10_000_000),
        ("rocksdb", 50_000_000),
        ("lmdb", 50_000_000),
        ("rocksdb", 100_000_000),
    ),
    limited_backends=("rocksdb", "lmdb", "sqlite"),
    limited_records=280_000,
    limited_value_bytes=4_000,
    memory_max_bytes=256 << 20,
)


if __name__ == "__main__":
    raise SystemExit(run_scenario(__file__))
