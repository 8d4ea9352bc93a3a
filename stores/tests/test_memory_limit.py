"""One limit on the memory of a process, and its parts.

Source: Kafka Streams, "Memory Management"; the kernel's manual, "Control Group v2" and "Memory Resource Controller".
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import MemoryChangelog
from stores.config import StoreConfig
from stores.engines.rocksdb import RocksDBEngine
from stores.errors import ConfigError
from stores.memory_limit import (
    LEAST_BYTES,
    PROCESS_BYTES,
    PROPERTY,
    AvailableMemory,
    MemoryParts,
    available_memory,
    default_limit,
    parts_of,
    warning_for,
)
from stores.strategies.store import Store
from stores.tasks import GlobalStore, GlobalStores
from stores.tasks.stores import log_follower
from stores.tests.memory_of_arenas import ARENAS, in_process
from stores.tests.rocksdb_options import RECORDS, TABLES, options_in_use
from stores.tests.tasks.global_topic import TOPIC, say
from stores.worker import Application, Processor
from stores.worker.settings import WorkerSettings

MIB = 1 << 20
MACHINE_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
WORKS_UNTIL_TOLD = """
import sys
from stores.config import StoreConfig
limit = int(sys.argv[2])
config = StoreConfig(sys.argv[3], memory_max_bytes=limit or None)
with config.open(sys.argv[1]) as store:
    for number in range(15_000):
        store.put(b"%08d" % (number * 7919 % 15_000), bytes([number % 251]) * 10_000)
        if number % 100 == 99:
            store.commit()
    store.commit()
    with store.all() as scan:
        assert sum(1 for _ in scan) == 15_000
    for number in range(0, 15_000, 10):
        assert len(store.get(b"%08d" % number)) == 10_000
    print("done", flush=True)
    sys.stdin.read()
"""
"""Writes 143 MiB, and reads all of it: more than the default caches and buffers of an engine hold."""


def peak_bytes(folder: Path, limit: int, backend: str) -> int:
    """Return the largest resident size of a process that has a store with this limit, 0 for none."""
    command = [sys.executable, "-c", WORKS_UNTIL_TOLD, str(folder / "s"), str(limit), backend]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        status = Path(f"/proc/{process.pid}/status").read_text()
        process.communicate()
        assert process.returncode == 0
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


@pytest.mark.parametrize("backend", ["rocksdb", pytest.param("sqlite", marks=pytest.mark.long)])
def test_a_process_keeps_to_its_limit(tmp_path: Path, backend: str) -> None:
    assert peak_bytes(tmp_path, LEAST_BYTES, backend) < 1.3 * LEAST_BYTES


def test_the_same_process_without_a_limit_takes_more(tmp_path: Path) -> None:
    assert peak_bytes(tmp_path, 0, "rocksdb") > 1.3 * LEAST_BYTES


@pytest.mark.parametrize("arenas", ARENAS)
def test_the_memory_of_a_process_of_threads_is_measured_by_its_arenas(arenas: int | None) -> None:
    assert in_process(arenas, 2, LEAST_BYTES, 1_000, 1) > 16 * MIB


@pytest.mark.parametrize("max_bytes", [LEAST_BYTES, 256 * MIB, 1 << 40])
def test_the_parts_are_the_whole_limit(max_bytes: int) -> None:
    parts = parts_of(max_bytes)
    sizes = [parts.engine_bytes, 2 * parts.staged_bytes, parts.restore_bytes, parts.client_bytes]
    assert max_bytes - 8 <= PROCESS_BYTES + sum(sizes) <= max_bytes
    assert min(sizes) > 0


def test_a_limit_that_is_too_small_is_refused_with_the_least() -> None:
    with pytest.raises(ConfigError) as error:
        StoreConfig(memory_max_bytes=LEAST_BYTES - 1)
    assert f"{LEAST_BYTES:,}" in str(error.value)
    assert PROPERTY in str(error.value)
    assert StoreConfig(memory_max_bytes=LEAST_BYTES).memory == MemoryParts(LEAST_BYTES)
    for wrong in ("1", 1e9, True):
        with pytest.raises(TypeError):
            StoreConfig(memory_max_bytes=wrong)  # type: ignore[arg-type]


def test_the_property_is_that_of_stores() -> None:
    config = StoreConfig.from_properties({PROPERTY: str(256 * MIB)})
    assert config.memory == parts_of(256 * MIB)
    assert StoreConfig().memory is None


@pytest.mark.parametrize(
    ("uncommitted", "limit", "staged"),
    [
        (64 * MIB, None, 64 * MIB),
        (-1, None, -1),
        (64 * MIB, 256 * MIB, 24 * MIB),
        (-1, 256 * MIB, 24 * MIB),
        (1_000, 256 * MIB, 1_000),
        (64 * MIB, 1 << 30, 64 * MIB),
    ],
)
def test_staged_writes_keep_to_the_lower_limit(uncommitted: int, limit: int | None, staged: int) -> None:
    config = StoreConfig(uncommitted_max_bytes=uncommitted, memory_max_bytes=limit)
    assert config.staged_max_bytes == staged


def test_rocksdb_stores_share_the_part_of_engines_with_their_indexes_in_it(tmp_path: Path) -> None:
    limit = 256 * MIB + 16
    config = StoreConfig(memory_max_bytes=limit)
    with config.open(tmp_path / "one") as one, config.open(tmp_path / "other") as other:
        memories = []
        for store in (one, other):
            assert isinstance(store, Store)
            assert isinstance(store.staging.engine, RocksDBEngine)
            memories.append(store.staging.engine._memory)
        assert memories[0] is memories[1]
        assert one.engine_metrics()["block_cache_capacity_bytes"] == parts_of(limit).engine_bytes
        assert memories[0] is not None
        assert memories[0].write_buffers.get_buffer_size() == parts_of(limit).engine_bytes // 2
        # Without a flush no table is written: fill both files and look where their indexes are.
        for number in range(20_000):
            one.put(b"%06d" % number, bytes(1_000))
        one.commit()
    with config.open(tmp_path / "one") as one:
        assert one.get(b"000001") == bytes(1_000)
        inside = one.engine_metrics()["estimate_table_readers_mem_bytes"]
    with StoreConfig(options={"shared_memory_bytes": 64 * MIB}).open(tmp_path / "one") as one:
        assert one.get(b"000001") == bytes(1_000)
        assert inside <= one.engine_metrics()["estimate_table_readers_mem_bytes"]


@pytest.mark.parametrize(
    ("limit", "is_cached", "buffer_bytes"), [(None, False, 16 * MIB), (LEAST_BYTES, True, 4 * MIB)]
)
def test_rocksdb_has_indexes_in_its_cache_and_smaller_write_buffers_with_a_limit(
    tmp_path: Path, limit: int | None, is_cached: bool, buffer_bytes: int
) -> None:
    with StoreConfig(memory_max_bytes=limit).open(tmp_path / "s") as store:
        store.put(b"k", b"v")
        store.commit()
        used = options_in_use(tmp_path / "s")
    for name in ("cache_index_and_filter_blocks", "partition_filters"):
        assert used[TABLES][name] == str(is_cached).lower()
    assert used[RECORDS]["write_buffer_size"] == str(buffer_bytes)


def test_options_that_are_given_are_used(tmp_path: Path) -> None:
    config = StoreConfig(memory_max_bytes=256 * MIB, options={"shared_memory_bytes": 32 * MIB})
    with config.open(tmp_path / "s") as store:
        assert store.engine_metrics()["block_cache_capacity_bytes"] == 32 * MIB


def test_sqlite_stores_share_one_heap(tmp_path: Path) -> None:
    program = (
        "import sys; from stores.config import StoreConfig; from stores.files.sqlite_library import connect; "
        f"config = StoreConfig('sqlite', memory_max_bytes={256 * MIB}); "
        "from pathlib import Path; "
        "store = config.open(sys.argv[1] + '/s'); other = StoreConfig('sqlite').open(sys.argv[1] + '/t'); "
        "print(connect(Path(sys.argv[1], 'f')).execute('pragma soft_heap_limit').fetchone()[0])"
    )
    answer = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(answer.stdout) == parts_of(256 * MIB).engine_bytes


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


VERSION_2 = {"proc/self/cgroup": "0::/a/b\n", "proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"}
VERSION_1 = {
    "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/a/b\n0::/\n",
    "proc/self/mounts": "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
    "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
}
V2, V1 = "sys/fs/cgroup/{}memory.max", "sys/fs/cgroup/memory/{}memory.limit_in_bytes"


@pytest.mark.parametrize(
    ("files", "limit", "where"),
    [
        ({}, None, ""),
        (VERSION_2, None, ""),
        ({**VERSION_2, V2.format("a/b/"): "max\n"}, None, ""),
        ({**VERSION_2, V2.format("a/b/"): "1000000\n"}, 1_000_000, V2.format("a/b/")),
        ({**VERSION_2, V2.format("a/b/"): "max\n", V2.format("a/"): "2000000\n"}, 2_000_000, V2.format("a/")),
        ({**VERSION_2, V2.format("a/b/"): "3000000\n", V2.format("a/"): "2000000\n"}, 2_000_000, V2.format("a/")),
        ({**VERSION_2, V2.format(""): "4000000\n"}, 4_000_000, V2.format("")),
        ({**VERSION_2, V2.format("a/b/"): f"{1 << 59}\n"}, None, ""),
        ({**VERSION_1, V1.format("a/b/"): "9223372036854771712\n"}, None, ""),
        ({**VERSION_1, V1.format("a/b/"): "5000000\n"}, 5_000_000, V1.format("a/b/")),
        ({**VERSION_1, V1.format(""): "6000000\n"}, 6_000_000, V1.format("")),
        ({"proc/self/cgroup": "nonsense\n", "proc/self/mounts": "nonsense\n"}, None, ""),
    ],
)
def test_the_lowest_limit_of_the_container_is_found(
    tmp_path: Path, files: dict[str, str], limit: int | None, where: str
) -> None:
    found = available_memory(written(tmp_path, files))
    if limit is None:
        assert found == AvailableMemory(MACHINE_BYTES, "this machine", False)
    else:
        assert found == AvailableMemory(limit, str(tmp_path / where), True)


@pytest.mark.parametrize(
    ("num_bytes", "is_container", "limit"),
    [
        (512 * MIB, True, 256 * MIB),
        (64 * MIB, True, LEAST_BYTES),
        (64 << 30, True, 1 << 30),
        (4 << 30, False, 512 * MIB),
        (24 << 30, False, 1 << 30),
    ],
)
def test_a_worker_without_a_limit_takes_a_part_of_what_there_is(num_bytes: int, is_container: bool, limit: int) -> None:
    assert default_limit(AvailableMemory(num_bytes, "here", is_container)) == limit


def test_a_limit_above_what_there_is_has_a_warning() -> None:
    container = AvailableMemory(256 * MIB, "/sys/fs/cgroup/memory.max", True)
    assert warning_for(256 * MIB, container) is None
    warning = warning_for(256 * MIB + 1, container)
    assert warning is not None
    assert container.where in warning
    assert PROPERTY in warning


def test_a_worker_has_a_limit_which_all_of_its_stores_get(tmp_path: Path) -> None:
    stores = {"s": StoreConfig("memory"), "t": None}
    application = Application("app", Processor(["in"], lambda record, context: None, stores=stores))
    needed = {"state.dir": str(tmp_path), "changelog.file": str(tmp_path / "log")}
    unset = WorkerSettings.from_properties(application, needed)
    assert unset.memory.max_bytes == default_limit(available_memory())
    settings = WorkerSettings.from_properties(application, {**needed, PROPERTY: str(256 * MIB)})
    assert [each.memory for each in settings.stores(stores).values()] == [parts_of(256 * MIB)] * 2
    with pytest.raises(ConfigError):
        WorkerSettings.from_properties(application, {**needed, PROPERTY: "1000"})


def test_a_store_of_a_worker_can_t_have_a_limit_of_its_own(tmp_path: Path) -> None:
    own = StoreConfig("memory", memory_max_bytes=128 * MIB)
    needed = {"state.dir": str(tmp_path), "changelog.file": str(tmp_path / "log")}
    application = Application("app", Processor(["in"], lambda record, context: None, stores={"s": own}))
    with pytest.raises(ConfigError, match=f"store 's' has memory_max_bytes=134,217,728.*{PROPERTY}"):
        WorkerSettings.from_properties(application, needed)
    same = WorkerSettings.from_properties(application, {**needed, PROPERTY: str(128 * MIB)})
    assert same.stores({"s": own})["s"].memory == parts_of(128 * MIB)


def test_global_stores_of_a_worker_have_its_limit_and_none_of_their_own(tmp_path: Path) -> None:
    needed = {"state.dir": str(tmp_path), "changelog.file": str(tmp_path / "log"), PROPERTY: str(256 * MIB)}
    processor = Processor(["in"], lambda record, context: None)
    stores = {"g": GlobalStore("prices", StoreConfig("memory")), "h": GlobalStore("names")}
    settings = WorkerSettings.from_properties(Application("app", processor, global_stores=stores), needed)
    for each in settings.global_stores(stores).values():
        assert isinstance(each.store, StoreConfig)
        assert each.store.memory == parts_of(256 * MIB)
    own = {"g": GlobalStore("prices", StoreConfig("memory", memory_max_bytes=128 * MIB))}
    with pytest.raises(ConfigError, match="store 'g'"):
        WorkerSettings.from_properties(Application("app", processor, global_stores=own), needed)


def test_the_client_of_a_worker_has_its_part_of_the_limit_unless_its_own_settings_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = pytest.importorskip("stores.changelog.kafka")
    buffers = pytest.importorskip("stores.changelog.kafka.changelog")
    opened: list[dict[str, Any]] = []
    monkeypatch.setattr(kafka, "KafkaChangelog", lambda settings, **_: opened.append(settings))
    application = Application("app", Processor(["in"], lambda record, context: None))
    needed = {"state.dir": str(tmp_path), "bootstrap.servers": "h:1", PROPERTY: str(576 * MIB)}
    for more in ({"num.stream.threads": "4"}, {"num.stream.threads": "4", "queue.buffering.max.kbytes": "5000"}):
        WorkerSettings.from_properties(application, {**needed, **more}).open_changelog()
    first, second = ((each[buffers.UNSENT], each[buffers.READ_AHEAD]) for each in opened)
    assert first == (8_192, 1_024)
    assert (int(second[0]), second[1]) == (5_000, 1_024)


def test_a_worker_logs_the_parts_and_warns_of_a_limit_above_the_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    application = Application("app", Processor(["in"], lambda record, context: None))
    needed = {"state.dir": str(tmp_path), "changelog.file": str(tmp_path / "log")}
    for limit, levels in ((256 * MIB, ["INFO"]), (MACHINE_BYTES + 1, ["INFO", "WARNING"])):
        caplog.clear()
        with caplog.at_level("INFO", logger="stores"):
            WorkerSettings.from_properties(application, {**needed, PROPERTY: str(limit)}).log_memory()
        assert [record.levelname for record in caplog.records] == levels
        assert str(parts_of(limit)) in caplog.text


def test_the_buffers_of_the_client_have_its_part_and_room_for_the_largest_record() -> None:
    buffers = pytest.importorskip("stores.changelog.kafka.changelog")
    unsent, ahead = buffers.UNSENT, buffers.READ_AHEAD
    assert buffers.buffer_limits(64 * MIB, 4, {}) == {unsent: 8_192, ahead: 1_024}
    assert buffers.buffer_limits(4 * MIB, 8, {})[unsent] >= 2 * 1_000_000 >> 10
    assert buffers.buffer_limits(4 * MIB, 8, {"message.max.bytes": "9000000"})[unsent] >= 2 * 9_000_000 >> 10
    assert buffers.buffer_limits(1 << 40, 1, {}) == {unsent: 1_048_576, ahead: 16_384}
    assert buffers.buffer_limits(MIB, 1, {})[ahead] == 64
    assert buffers.buffer_limits(64 * MIB, 4, {unsent: 1, ahead: 2}) == {}
    assert buffers.buffer_limits(4 * MIB, 8, {"message.max.bytes": "1 MB"}) == buffers.buffer_limits(4 * MIB, 8, {})


def test_a_commit_of_a_global_store_keeps_to_the_part_of_restores_of_the_limit_on_memory(tmp_path: Path) -> None:
    """Each piece is counted three times, and a restore that runs at the same time has half."""
    log = MemoryChangelog()
    config = StoreConfig("rocksdb-indexed-batch", memory_max_bytes=LEAST_BYTES)
    large = b"x" * (parts_of(LEAST_BYTES).restore_bytes // 12 + 1)
    say(log, [])
    with GlobalStores(tmp_path / "state", log, {"prices": GlobalStore(TOPIC, config)}) as stores:
        say(log, [(0, b"%d" % number, large) for number in range(10)])
        assert stores.follow() == 4
        with log_follower.RESTORING:
            assert stores.follow() == 2
        assert [stores.follow() for _ in range(2)] == [4, 0]
