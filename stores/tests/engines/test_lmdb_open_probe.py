"""LMDB files of a killed process with a damaged page that an opening reads: opening ends, in this process."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from random import Random

import pytest

from stores import Durability, StoreCorruptedError, open_store
from stores.engines.lmdb import LmdbEngine
from stores.records import BYTES, KeyValue, TimestampedKeyValue
from stores.tests.store_process import StoreProcess

PAGE_BYTES, SEED = 4096, 11


def killed(path: Path, backend: str = "lmdb-indexed-batch") -> Path:
    """A store whose process was killed after some commits; returns its file."""
    with StoreProcess() as process:
        process.call("open", backend, path, Durability.PROCESS, {})
        process.call("commit_numbers", 0, 5, 100, b"v" * 50)
        process.kill()
    return path / "data" / "data.mdb"


def test_a_damaged_page_of_any_place_ends_in_an_error_or_an_open_store(path: Path) -> None:
    """Without the open probe one of these files ends the process with SIGBUS. Seed: ``SEED``."""
    random, content = Random(SEED), killed(path).read_bytes()
    refusals = 0
    with StoreProcess(deadline_s=60) as process:
        for page in range(2, len(content) // PAGE_BYTES):
            damaged = bytearray(content)
            start = page * PAGE_BYTES
            damaged[start + 16 : start + 200] = b"\xff" * 184 if page % 2 else random.randbytes(184)
            copy = path.with_name("copy")
            shutil.copytree(path, copy)
            (copy / "data" / "data.mdb").write_bytes(damaged)
            doubtful = LmdbEngine.is_doubtful(copy / "data")
            try:
                process.call("open", "lmdb-indexed-batch", copy, Durability.PROCESS, {})
            except StoreCorruptedError:
                refusals += doubtful
            else:
                assert not doubtful, page
                process.call("close")
            shutil.rmtree(copy)
    assert refusals >= 2


def test_a_sound_store_is_not_doubtful(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "run", refuse)
    for backend in ("lmdb-indexed-batch", "lmdb-native"):
        for checksums in (True, False):
            folder = path.with_name(f"{backend}-{checksums}")
            for number in range(3):
                with open_store(backend, folder, options={"checksums": checksums}) as store:
                    store.put_all([(b"%d-%d" % (number, key), b"v" * 100) for key in range(300)])
                    store.set_mark("mark", bytes(64 << 10) if number % 2 else b"small")
                    store.commit()
                assert not LmdbEngine.is_doubtful(folder / "data")
    upgraded = path.with_name("upgraded")
    for kind in (KeyValue(BYTES, BYTES), TimestampedKeyValue(BYTES, BYTES)):
        with kind.over(open_store("lmdb", upgraded)) as typed:
            typed.store.put(b"\x01key" if typed.store.timestamps.is_split else b"key", b"12345678value")
            typed.commit()
        assert not LmdbEngine.is_doubtful(upgraded / "data")
    killed(path)
    assert not LmdbEngine.is_doubtful(path / "data")
