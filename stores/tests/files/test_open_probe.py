"""Opening ends: where an engine would go on for ever, in an error, by a deadline, with no process left behind."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from stores import Durability, StoreCorruptedError, TopicPartition, open_store
from stores.engines.record_log import has_foreign_record
from stores.files import open_probe as probe
from stores.files.creation import wipe
from stores.strategies.indexed_batch import AFTER_WRITE
from stores.tests.store_process import ProcessDied, StoreProcess

LOG = TopicPartition("changelog", 0)
INDEXED, DUAL, DIRECT = "rocksdb-indexed-batch", "rocksdb-dual-store", "rocksdb-direct"
COMMITS = 20
SEED = 9
REUSED = [5, *(pytest.param(kind, marks=pytest.mark.long) for kind in (6, 7, 8)), 11]
"""The types of record that a reused log has, and that go on for ever in one that is none."""


def record(kind: int, payload: bytes = b"", length: int | None = None) -> bytes:
    """A record as it lies in a log, with a wrong checksum."""
    return b"\1\2\3\4" + struct.pack("<HB", len(payload) if length is None else length, kind) + payload


def killed(path: Path, backend: str = INDEXED, durability: Durability = Durability.PROCESS) -> None:
    """A store whose process was killed after some commits."""
    with StoreProcess() as process:
        process.call("open", backend, path, durability, {})
        if backend == INDEXED:
            process.call("kill_at", AFTER_WRITE, COMMITS - 1)
            process.call_until_killed("commit_numbers", 0, COMMITS, COMMITS, b"v" * 100)
        else:
            process.call("commit_numbers", 0, COMMITS, COMMITS, b"v" * 100)
            process.kill()


def last_log(folder: Path) -> Path:
    return max(folder.glob("*.log"), key=lambda file: file.stat().st_size)


def manifest(folder: Path) -> Path:
    return folder / (folder / "CURRENT").read_text().strip()


def append(file: Path, junk: bytes) -> None:
    with file.open("ab") as stream:
        stream.write(junk)


@pytest.fixture
def impatient() -> Iterator[StoreProcess]:
    """A process that probes for a second, and whose own deadline ends a test where nothing else does."""
    with StoreProcess(deadline_s=30) as process:
        process.call("set_constant", "stores.files.open_probe", "DEADLINE_S", 1)
        yield process


@pytest.mark.parametrize("kind", REUSED)
def test_garbage_in_a_log_on_which_opening_never_ends_is_damage(path: Path, impatient: StoreProcess, kind: int) -> None:
    killed(path)
    append(last_log(path / "data"), record(kind, b"x" * (kind - 5)))
    with pytest.raises(StoreCorruptedError):
        impatient.call("open", INDEXED, path, Durability.PROCESS, {})


def test_an_open_probe_runs_nothing_that_lies_in_the_working_folder(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither from the folder itself, nor where the path of this process names it first, as ``python -m`` does."""
    killed(path)
    append(last_log(path / "data"), record(5))
    executed = tmp_path / "executed"
    for module in ("json", "ctypes", "signal"):
        (tmp_path / f"{module}.py").write_text(f"open({str(executed)!r}, 'w').close()")
    monkeypatch.chdir(tmp_path)
    for first in ("", str(tmp_path)):
        monkeypatch.setattr(sys, "path", [first, *sys.path])
        monkeypatch.setattr(probe, "DEADLINE_S", 1)
        with pytest.raises(StoreCorruptedError):
            open_store(INDEXED, path, durability=Durability.PROCESS)
    assert not executed.exists()


def test_garbage_behind_the_first_megabyte_of_a_log_is_seen_before_it_is_opened(
    path: Path, impatient: StoreProcess
) -> None:
    with StoreProcess() as process:
        process.call("open", INDEXED, path, Durability.PROCESS, {})
        process.call("commit_numbers", 0, COMMITS, 1, bytes(100_000))
        process.kill()
    log = last_log(path / "data")
    assert log.stat().st_size > 3 << 19
    append(log, record(5))
    with pytest.raises(StoreCorruptedError):
        impatient.call("open", INDEXED, path, Durability.PROCESS, {})


@pytest.mark.parametrize(
    "durability",
    # The probe has no level.
    [pytest.param(level, marks=[] if level is Durability.PROCESS else pytest.mark.long) for level in Durability],
)
def test_garbage_in_a_manifest_on_which_opening_never_ends_is_damage(
    path: Path, impatient: StoreProcess, durability: Durability
) -> None:
    killed(path, INDEXED, durability)
    append(manifest(path / "data"), record(5))
    with pytest.raises(StoreCorruptedError):
        impatient.call("open", INDEXED, path, durability, {})


def test_a_flipped_bit_on_which_opening_never_ends_is_damage(path: Path, impatient: StoreProcess) -> None:
    killed(path)
    log = last_log(path / "data")
    content = bytearray(log.read_bytes())
    second = 7 + struct.unpack_from("<H", content, 4)[0]
    assert content[second + 6] == 1
    content[second + 6] ^= 4
    log.write_bytes(content)
    with pytest.raises(StoreCorruptedError):
        impatient.call("open", INDEXED, path, Durability.PROCESS, {})


def test_the_staging_store_of_a_dual_store_is_probed_as_well(path: Path, impatient: StoreProcess) -> None:
    killed(path, DUAL)
    append(last_log(path / "data.tmp"), record(5))
    with pytest.raises(StoreCorruptedError):
        impatient.call("open", DUAL, path, Durability.PROCESS, {})


def test_after_a_refusal_the_store_can_be_wiped_and_opened_again(path: Path, impatient: StoreProcess) -> None:
    killed(path)
    append(last_log(path / "data"), record(5))
    with pytest.raises(StoreCorruptedError):
        impatient.call("open", INDEXED, path, Durability.PROCESS, {})
    wipe(path)
    impatient.call("open", INDEXED, path, Durability.PROCESS, {})
    assert impatient.call("scan") == []


def test_with_any_garbage_behind_the_last_commit_opening_ends_and_nothing_acknowledged_is_missing(path: Path) -> None:
    """Cut where the log ends: random bytes, zeros, what looks like records. Seed: ``SEED``."""
    random = Random(SEED)
    killed(path)
    junk: list[Callable[[int], bytes]] = [
        random.randbytes,
        bytes,
        lambda size: record(random.choice([0, 1, 2, 3, 4, 9, 10, 12, 129, 255]), random.randbytes(size)),
        lambda size: record(random.choice([0, 1, 4, 200]), b"", size),
    ]
    opened = 0
    for _ in range(4):
        for make in junk:
            copy = path.with_name("damaged")
            subprocess.run(["cp", "-r", path, copy], check=True)
            append(last_log(copy / "data"), make(random.choice([1, 6, 7, 11, 100, 5_000, 40_000])))
            with StoreProcess(deadline_s=30) as process, suppress(StoreCorruptedError):
                process.call("open", INDEXED, copy, Durability.PROCESS, {})
                assert process.call("committed_offset", LOG) == COMMITS - 1
                assert len(process.call("scan")) == COMMITS
                opened += 1
            wipe(copy)
    assert opened > len(junk)


def test_garbage_of_a_foreign_type_on_which_opening_ends_costs_nothing_but_the_open_probe(path: Path) -> None:
    killed(path)
    log = last_log(path / "data")
    append(log, record(129, b"x" * 30))
    assert has_foreign_record(log)
    with open_store(INDEXED, path, durability=Durability.PROCESS) as store:
        assert store.committed_offset(LOG) == COMMITS - 1


def test_a_store_without_garbage_is_opened_without_an_open_probe(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a clean close and after a kill, whatever the level."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "run", refuse)
    for durability in Durability:
        for backend in (INDEXED, DUAL, DIRECT):
            folder = path.with_name(f"{backend}-{durability}")
            killed(folder, backend, durability)
            for _ in range(2):
                open_store(backend, folder, durability=durability).close()


def test_an_open_probe_does_not_outlive_the_process_that_waits_for_it(path: Path) -> None:
    killed(path)
    append(last_log(path / "data"), record(5))
    with StoreProcess() as process:
        process.call("set_constant", "stores.files.open_probe", "DEADLINE_S", 60)
        process.send("open", INDEXED, path, Durability.PROCESS, {})
        probe = None
        while probe is None or b"stores.files.open_probe" not in commandline(probe):
            probe = next(iter(children(process.pid)), None)
        time.sleep(0.5)
        assert b"stores.files.open_probe" in commandline(probe)
        process.kill()
        with pytest.raises(ProcessDied):
            process.receive()
    waited_until = time.monotonic() + 600
    while b"stores.files.open_probe" in commandline(probe):
        assert time.monotonic() < waited_until
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def commandline(pid: int) -> bytes:
    """Empty once the process has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@pytest.mark.parametrize("block", [None, 0, 1, 30, 31, 32, 33, 63, 64, 70])
def test_a_foreign_record_is_found_in_any_block_of_a_log(tmp_path: Path, block: int | None) -> None:
    """Also in the first MiB of several: a log is read in parts of that size."""
    plain = record(1, b"x" * ((32 << 10) - 7))
    foreign = record(5, b"y" * 100) + plain[107:]
    log = tmp_path / "log"
    log.write_bytes(b"".join(foreign if number == block else plain for number in range(72)))
    assert has_foreign_record(log) == (block is not None)


def test_a_foreign_record_is_found_behind_others_of_its_block(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(record(1, b"x" * 10) + record(2, b"") + record(5, b"y"))
    assert has_foreign_record(log)
    log.write_bytes(record(1, b"x" * 10) + record(0) + record(5, b"y"))
    assert not has_foreign_record(log)
