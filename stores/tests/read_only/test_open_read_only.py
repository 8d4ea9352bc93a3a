"""A reader of another process sees each commit of a store's writer, and neither of them can harm the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stores import (
    IsolationLevel,
    ReadOnlyStore,
    StoreClosedError,
    StoreCorruptedError,
    StoreIncompatibleError,
    StoreTooNewError,
    StoreUnavailableError,
    TopicPartition,
    open_read_only,
    open_store,
)
from stores.engines.engine import EngineSnapshot
from stores.failpoints import arm, disarm
from stores.files.creation import LOCK_FILE
from stores.files.identity import IDENTITY_FILE, Identity
from stores.records import (
    INT64,
    STR,
    KeyValue,
)
from stores.registry import backends
from stores.strategies.dual_store import MID_COPY
from stores.strategies.spilled import MARKER_SYNCED
from stores.tests.damages import damages

ON_DISK = [name for name, backend in backends().items() if backend.persistent]
FIRST = ("rocksdb-indexed-batch", "lmdb-native", "sqlite-native")
LOG, INPUT = TopicPartition("log", 0), TopicPartition("input", 0)
KEYS = [b"%03d" % number for number in range(100)]
COUNTS = KeyValue(key=STR, value=INT64)
WRITER = """
import sys
from stores import TopicPartition, open_store
def opened():
    return open_store(sys.argv[1], sys.argv[2], durability="PROCESS")
store = None
for line in sys.stdin:
    word, _, number = line.strip().partition(" ")
    if word == "open":
        store = opened()
    elif word == "close":
        store.close()
    else:
        store.put_all([(b"%03d" % key, number.encode()) for key in range(100)])
        store.advance_position(TopicPartition("input", 0), int(number))
        store.commit({TopicPartition("log", 0): int(number)} if store.manages_offsets else {})
        if store.transactional:
            store.put(b"staged", b"")
            store.rollback()
            store.put(b"000", b"staged")
    print("done", flush=True)
"""
READER = """
import sys
from stores import open_read_only
store = open_read_only(sys.argv[1])
snapshot, scan = store.snapshot(), store.all()
next(scan)
print("reading", flush=True)
sys.stdin.read()
"""

FORKED = """
import os, sys
from stores import StoreClosedError, open_read_only
store = open_read_only(sys.argv[1])
scan, snapshot = store.all(), store.snapshot()
next(scan)
child = os.fork()
if not child:
    for read in (lambda: store.get(b"k"), lambda: next(scan), lambda: snapshot.get(b"k")):
        try:
            read()
        except StoreClosedError:
            continue
        sys.exit("it reads")
    store.close()
    sys.exit()
print(os.waitpid(child, 0)[1], flush=True)
sys.stdin.readline()
print(store.get(b"k"), snapshot.get(b"k"), next(scan, None), flush=True)
"""


class Writer:
    """A process that opens, writes and closes one store when it is asked to."""

    def __init__(self, backend: str, path: Path) -> None:
        self._command = [sys.executable, "-c", WRITER, backend, str(path)]
        self.start()

    def start(self) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, text=True)
        self.do("open")

    def do(self, *words: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{' '.join(map(str, words))}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def kill(self) -> None:
        with self.process as process:
            process.kill()


@pytest.fixture(params=ON_DISK)
def writer(path: Path, request: pytest.FixtureRequest) -> Iterator[Writer]:
    process = Writer(request.param, path)
    yield process
    process.kill()


def filled(path: Path, backend: str) -> None:
    with open_store(backend, path) as store:
        store.put(b"k", b"1")
        store.commit({LOG: 1} if store.manages_offsets else {})


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """The time and content of every file, but for LMDB's lock file: its readers write into it what they read."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != "lock.mdb"]
    return {str(file): (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


def names(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*")}


def test_each_commit_is_seen_whole_whatever_the_writer_does(writer: Writer, path: Path) -> None:
    writer.do("commit", 1)
    with open_read_only(path) as store, open_read_only(path) as other:
        keeps_offsets = bool(store.committed_offsets())

        def shown(reader: ReadOnlyStore) -> set[bytes]:
            with reader.all() as pairs:
                return {value for key, value in pairs if key != b"000"}

        def check(number: int) -> None:
            for reader in (store, other):
                assert shown(reader) == {b"%d" % number}
                assert reader.get_many([b"001", b"absent", b"staged"]) == [b"%d" % number, None, None]
                assert reader.get(b"099") == b"%d" % number
                if keeps_offsets:
                    assert reader.get(b"000") == b"%d" % number
                    assert reader.committed_offsets() == {LOG: number}
                    assert reader.position() == {INPUT: number}

        check(1)
        assert store.isolation_level is IsolationLevel.READ_COMMITTED
        scan, snapshot = store.range(b"001", None), store.snapshot()
        next(scan)
        for number in (2, 3):
            writer.do("commit", number)
            check(number)
        writer.do("close")
        check(3)
        writer.do("open")
        writer.do("commit", 4)
        check(4)
        writer.kill()
        check(4)
        writer.start()
        writer.do("commit", 5)
        check(5)
        # Those that are open show their own moment.
        assert [value for _, value in scan] == [b"1"] * 98
        assert (snapshot.get(b"050"), snapshot.position().get(INPUT, 1)) == (b"1", 1)
        snapshot.close()
        [first, last] = store.range_many([(b"001", b"002"), (b"099", None)], reverse=True)
        assert [key for key, _ in (*first, *last)] == [b"002", b"001", b"099"]
    with pytest.raises(StoreClosedError):
        store.get(b"001")
    with pytest.raises(StoreClosedError):
        next(store.all())


def test_a_killed_reader_leaves_nothing_and_holds_up_nobody(writer: Writer, path: Path) -> None:
    writer.do("commit", 1)
    before = names(path)
    command = [sys.executable, "-c", READER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"reading\n"
        assert {name for name in names(path) - before if "secondary" in name or "rocksdict" in name} == set()
        writer.do("commit", 2)
        writer.do("close")
        writer.do("open")
        os.kill(reader.pid, signal.SIGKILL)
    writer.do("commit", 3)
    writer.do("close")
    with open_store(writer._command[3], path) as store:
        assert store.get(b"099") == b"3"
        store.verify()


def test_a_large_commit_of_a_dual_store_is_shown_whole_or_not_at_all(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy has a marker, which may be gone when a reader looks, and its parts are in the files one by one."""
    monkeypatch.setattr("stores.read_only.store_files.TRIES_MAX", 2)
    monkeypatch.setattr("stores.read_only.store_files.PAUSE_S", 0)
    options = {"staging_buffer_bytes": 10_000, "copy_part_bytes": 10_000}
    with open_store("rocksdb-dual-store", path, durability="PROCESS", options=options) as store:

        def commit(number: int, size: int) -> None:
            store.put_all([(key, b"%d" % number * size) for key in KEYS])
            store.commit()

        def shown(snapshot: EngineSnapshot) -> set[bytes | None]:
            with closing(snapshot):
                return {None if value is None else value[:1] for value in map(snapshot.get, KEYS)}

        commit(1, 1000)
        with open_read_only(path) as reader:
            files, taken, refused = reader._files, [], []
            assert files is not None

            def look() -> None:
                taken.append(files._newest())
                with pytest.raises(StoreUnavailableError):
                    reader.get(KEYS[0])
                refused.append(True)

            arm(MID_COPY, look)
            try:
                commit(2, 1000)
            finally:
                disarm(MID_COPY)
            assert refused
            first, second, *others = taken
            for snapshot in others:
                snapshot.close()
            assert shown(first) == {b"1", b"2"}
            # As if the commit had ended between the snapshot and the look for its marker.
            newest, torn = files._newest, [second]
            monkeypatch.setattr(files, "_newest", lambda: torn.pop() if torn else newest())
            assert shown(files.committed()) == {b"2"}
            assert torn == []
            # A small commit is one write, whether or not its marker is there.
            arm(MARKER_SYNCED, lambda: refused.append(reader.get(KEYS[0]) != b"2" * 1000))
            try:
                commit(3, 1)
            finally:
                disarm(MARKER_SYNCED)
            assert refused[-1] is False
            assert reader.get(KEYS[0]) == b"3"


@pytest.mark.parametrize("backend", ["lmdb-indexed-batch", "lmdb-native"])
def test_a_killed_reader_pins_no_pages(backend: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stores.engines.lmdb.engine._READER_CHECK_S", 0)
    with open_store(backend, path) as store:

        def commits() -> int:
            for number in range(30):
                store.put_all([(key, b"%d" % number * 1000) for key in KEYS])
                store.commit()
            return (path / "data" / "data.mdb").stat().st_blocks

        before = commits()
        command = [sys.executable, "-c", READER, str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == b"reading\n"
            reader.kill()
        # What the reader's last commit pinned is used again.
        assert commits() < 2 * before


@pytest.mark.parametrize("backend", ON_DISK)
def test_a_forked_process_neither_uses_nor_disturbs_the_readers_of_its_parent(backend: str, path: Path) -> None:
    with open_store(backend, path, durability="PROCESS") as store:
        store.put(b"k", b"1")
        store.commit()
        pipe = subprocess.PIPE
        with subprocess.Popen([sys.executable, "-c", FORKED, str(path)], stdin=pipe, stdout=pipe, text=True) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "0\n"
            store.put(b"k", b"2")
            store.commit()
            assert reader.communicate("read\n")[0] == "b'2' b'1' None\n"


@pytest.mark.parametrize("backend", ON_DISK)
def test_a_store_of_two_names_is_one_store_and_a_name_may_get_another_store(backend: str, path: Path) -> None:
    filled(path, backend)
    link = path.with_name("link")
    link.symlink_to(path)
    with open_read_only(path) as store, open_read_only(link) as linked:
        assert (store.get(b"k"), linked.get(b"k")) == (b"1", b"1")
        with open_store(backend, path.with_name("other")) as other:
            other.put(b"k", b"2")
            other.commit()
        link.unlink()
        link.symlink_to("other")
        assert (store.get(b"k"), linked.get(b"k")) == (b"1", b"2")


def test_a_reader_continues_when_the_system_has_removed_its_temporary_files(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with open_store("rocksdb", path, durability="PROCESS") as store, open_read_only(path) as reader:
        for file in temporary.rglob("*"):
            if not file.is_dir():
                file.unlink()
        store.put(b"k", b"1")
        store.commit()
        assert reader.get(b"k") == b"1"
    assert not any(file for file in temporary.rglob("*") if not file.is_dir())


@pytest.mark.parametrize("backend", ON_DISK)
def test_a_closed_store_is_read_without_a_change_of_its_files(backend: str, path: Path) -> None:
    filled(path, backend)
    before = contents(path)
    with open_read_only(path) as reader:
        assert list(reader.all()) == [(b"k", b"1")]
    assert contents(path) == before


@pytest.mark.parametrize("backend", ON_DISK)
def test_a_reader_of_a_closed_store_is_in_no_writers_way(backend: str, path: Path) -> None:
    filled(path, backend)
    with open_read_only(path) as reader:
        scan = reader.all()
        writer = Writer(backend, path)
        try:
            writer.do("commit", 2)
            assert reader.get(b"001") == b"2"
            if backends()[backend].engine == "sqlite":
                # It was read in the belief that no process changes it.
                with pytest.raises(StoreUnavailableError):
                    next(scan)
            else:
                assert list(scan) == [(b"k", b"1")]
            writer.do("close")
        finally:
            writer.kill()


def test_folders_without_a_store_are_refused_and_stay_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError):
        open_read_only(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()
    (tmp_path / "file").write_text("text")
    for foreign in (tmp_path, tmp_path / "file"):
        with pytest.raises(StoreIncompatibleError):
            open_read_only(foreign)
    assert names(tmp_path) == {"file"}
    # A store that is being made has an empty folder first, then one with a lock.
    (tmp_path / "new").mkdir()
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            open_read_only(tmp_path / "new")
        (tmp_path / "new" / LOCK_FILE).touch()
    assert names(tmp_path / "new") == {LOCK_FILE}
    with pytest.raises(TypeError):
        open_read_only(tmp_path, STR)  # type: ignore[call-overload]


@pytest.mark.parametrize("backend", ON_DISK)
def test_a_store_that_is_being_made_is_too_new_or_was_removed_says_so(backend: str, path: Path) -> None:
    filled(path, backend)
    with open_read_only(path) as reader:
        identity = (path / IDENTITY_FILE).read_text()
        (path / IDENTITY_FILE).write_text(Identity(backend, 1000).text())
        for read in (lambda: open_read_only(path), lambda: reader.get(b"k")):
            with pytest.raises(StoreTooNewError):
                read()
        (path / IDENTITY_FILE).write_text(identity)
        assert reader.get(b"k") == b"1"
        backends()[backend].wipe(path)
        for read in (lambda: open_read_only(path), lambda: reader.get(b"k")):
            with pytest.raises(StoreUnavailableError):
                read()
        with open_store(backend, path) as store:
            store.put(b"k", b"2")
            store.commit()
        assert reader.get(b"k") == b"2"


@pytest.mark.parametrize(
    "backend",
    # Closed stores of the others have the files of one of these.
    [pytest.param(name, marks=[] if name in (*FIRST, "rocksdb-dual-store") else pytest.mark.long) for name in ON_DISK],
)
def test_damage_is_detected_or_the_answer_is_right(backend: str, path: Path, tmp_path: Path) -> None:
    with open_store(backend, path) as store:
        store.put_all([(key, key * 50) for key in KEYS])
        store.commit()
    detected = 0
    for file in sorted(file for file in (path / "data").rglob("*") if file.is_file()):
        content = file.read_bytes()
        for _, damage in damages(len(content), seed=7):
            damage(file)
            try:
                with open_read_only(path) as reader:
                    found = dict(reader.all())
                    assert found in ({key: key * 50 for key in KEYS}, {})
            except (StoreCorruptedError, StoreUnavailableError):
                detected += 1
            file.write_bytes(content)
    assert detected
    with open_read_only(path) as reader:
        assert reader.get(KEYS[0]) == KEYS[0] * 50


WITHOUT_PERMISSION = """
import os, pickle, sys  # rocksdict imports pickle when it opens a database
from stores import StoreUnavailableError, open_read_only
from stores.registry import backends
for backend in backends().values():
    if backend.persistent:
        backend.load()
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
try:
    with open_read_only(sys.argv[1]) as store:
        print(store.get(b"k").decode())
except StoreUnavailableError as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("backend", ["rocksdb-sst-ingest", "lmdb-native", "sqlite-native"])
def test_a_reader_without_write_permission_reads_or_says_what_it_needs(backend: str, path: Path) -> None:
    filled(path, backend)
    path.parent.chmod(0o755)

    def read() -> str:
        for file in (path, *path.rglob("*")):
            file.chmod(0o755 if file.is_dir() else 0o444)
        command = [sys.executable, "-c", WITHOUT_PERMISSION, str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert read() == "1"
    writer = Writer(backend, path)
    try:
        assert read() == ("UnwritableError" if backends()[backend].engine == "lmdb" else "1")
    finally:
        writer.kill()
