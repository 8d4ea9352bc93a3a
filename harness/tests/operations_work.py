"""The functions that children run for tests of recordings and fault injection."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import signal as signals
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.io_trace import recorder
from stores.interface import TopicPartition
from stores.registry import open_store

LOG = TopicPartition("log", 0)


def begin(root: str, recording: str | None, plan: list[Any] | None) -> None:
    """``plan`` as the name of a plan and its arguments."""
    made = None if plan is None else getattr(recorder, plan[0])(*plan[1:])
    recorder.begin(Path(root), None if recording is None else Path(recording), made)


def fill_store(
    root: str,
    recording: str,
    backend: str,
    durability: str,
    options: dict[str, Any],
    plan: list[Any] | None = None,
    num_commits: int = 60,
) -> None:
    """Commits, a rollback, deletes and ranges, in a store that is closed and opened again half way."""
    begin(root, recording, plan)
    for half in range(2):
        with open_store(backend, Path(root, "store"), durability=durability, options=options) as store:
            for i in range(half * num_commits // 2, (half + 1) * num_commits // 2):
                recorder.note(f"attempt {i}")
                store.put_all((b"key %d" % (j % 300), b"%d" % i * 100) for j in range(i * 7, i * 7 + 40))
                store.delete(b"key %d" % i)
                store.delete_range(b"key 7", b"key 8")
                store.commit({LOG: i})
                recorder.note(f"ack {i}")
                store.put(b"uncommitted", b"value")
                store.rollback()


def write_some(root: str, recording: str | None = None, plan: list[Any] | None = None) -> int:
    """Every kind of operation, by every form of call that Python has and a few of C's. Returns how many there were."""
    begin(root, recording, plan)
    c = ctypes.CDLL(None, use_errno=True)
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    os.chdir(root)
    os.mkdir("a")
    os.mkdir("b", dir_fd=folder)
    one = os.open(f"{root}/a/../a/one", os.O_RDWR | os.O_CREAT)
    os.write(one, b"written")
    os.pwrite(one, b"by position", 20)
    os.writev(one, [b" in", b" parts"])
    os.pwritev(one, [b"parts", b" there"], 40)
    copied = os.dup(one)
    os.write(copied, b" through a copy")
    os.ftruncate(copied, 100)
    os.posix_fallocate(one, 90, 50)
    os.fsync(one)
    os.fdatasync(copied)
    os.truncate("a/one", 60)
    os.fsync(folder)
    two = os.open("two", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_DSYNC, dir_fd=folder)
    os.write(two, b"first")
    os.pwrite(two, b"appended all the same", 0)
    os.link("two", "a/three")
    os.rename("two", "a/one")
    os.write(two, b", renamed")
    os.rename("a", "c", src_dir_fd=folder, dst_dir_fd=folder)
    os.write(two, b", in another folder")
    os.pwrite(one, b"no name left", 0)
    os.close(os.open("c/three", os.O_WRONLY | os.O_TRUNC))
    with open("c/four", "w") as file:
        file.write("by the io module")
    shutil.copyfile("c/four", "c/five")
    os.remove("c/five")
    os.unlink("four", dir_fd=os.open("c", os.O_RDONLY))
    os.rmdir("b")
    os.write(c.creat(b"c/six", 0o600), b"created")
    c.remove(b"c/six")
    c.syncfs(folder)
    return recorder.count()


def refused(root: str) -> list[str]:
    """The names of the calls that were refused, of all those that can't be recorded; and nothing was done."""
    Path(root, "from").write_text("bytes")
    begin(root, None, None)
    c = ctypes.CDLL(None, use_errno=True)
    c.fopen.restype = c.fdopen.restype = ctypes.c_void_p
    os.chdir(root)
    source, target = os.open("from", os.O_RDONLY), os.open("from", os.O_RDWR)
    calls: dict[str, Callable[[], object]] = {
        "fopen": lambda: c.fopen(b"new", b"w") is None,
        "fdopen": lambda: c.fdopen(target, b"r+") is None,
        "fallocate": lambda: c.fallocate(target, 3, ctypes.c_long(0), ctypes.c_long(2)) < 0,
        "renameat2": lambda: c.renameat2(-100, b"from", -100, b"from", 2) < 0,
        "copy_file_range": lambda: os.copy_file_range(source, target, 5, 0, 5) < 0,
        "sendfile": lambda: os.sendfile(target, source, 0, 5) < 0,
        "splice": lambda: os.splice(os.pipe()[0], target, 5) < 0,
        "symlink": lambda: os.symlink("from", "new"),
        "rename": lambda: os.rename("from", "../elsewhere"),
        "link": lambda: os.link("from", "../elsewhere"),
    }
    said_no = []
    for name, call in calls.items():
        try:
            if call():
                said_no.append(name)
        except OSError:
            said_no.append(name)
    assert recorder.count() == 0
    return said_no


def attempts(root: str, recording: str, plan: list[Any]) -> list[Any]:
    """Return the result of each of some calls, an error by its number, and the number of injected faults."""
    begin(root, recording, plan)
    os.chdir(root)
    file = os.open("file", os.O_RDWR | os.O_CREAT)
    answers: list[Any] = []
    for call in (
        lambda: os.write(file, b"123456"),
        lambda: os.fsync(file),
        lambda: os.rename("file", "renamed"),
        lambda: os.mkdir("folder"),
        lambda: os.posix_fallocate(file, 0, 20),
        lambda: os.ftruncate(file, 3),
        lambda: os.close(os.open("other", os.O_WRONLY | os.O_CREAT)),
        lambda: os.unlink("renamed"),
        lambda: os.unlink("not there"),
    ):
        try:
            answers.append(call())
        except OSError as error:
            answers.append(error.errno)
    return [answers, recorder.fired()]


def pause(root: str, recording: str, plan: list[Any], microseconds: int) -> list[float]:
    """Pause, as an engine does, before a call that fails and after it. Returns the seconds of both."""
    begin(root, recording, plan)
    library = ctypes.CDLL(None)
    seconds = []
    for _ in range(2):
        begun = time.monotonic()
        library.usleep(microseconds)
        seconds.append(time.monotonic() - begun)
        with suppress(OSError):
            os.mkdir(f"{root}/folder")
    return seconds


def write_thrice(root: str, recording: str, plan: list[Any]) -> list[Any]:
    """Write ten bytes, thrice, and three at last. Returns how much each did, and how often the plan struck."""
    begin(root, recording, plan)
    file = os.open(f"{root}/file", os.O_WRONLY | os.O_CREAT)
    return [[os.write(file, b"ten bytes!"[:size]) for size in (10, 10, 10, 3)], recorder.fired()]


def write_synchronously(root: str, recording: str, plan: list[Any]) -> list[Any]:
    """Append thrice through O_DSYNC. Returns the error there was, and how often the plan struck."""
    begin(root, recording, plan)
    file = os.open(f"{root}/file", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_DSYNC)
    found = None
    for data in (b"one", b"two", b"three"):
        try:
            os.write(file, data)
        except OSError as error:
            found = error.errno
    return [found, recorder.fired()]


def write_from_threads(root: str, recording: str) -> None:
    """Four threads append to one file and note each append."""
    begin(root, recording, None)

    def work(which: int) -> None:
        file = os.open(f"{root}/file", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for i in range(50):
            os.write(file, b"%d %d\n" % (which, i))
            recorder.note(f"{which} {i}")

    threads = [threading.Thread(target=work, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def note_beside_writes(root: str, recording: str) -> None:
    """Two threads write as fast as they can while two others leave notes."""
    begin(root, recording, None)

    def write(which: int) -> None:
        file = os.open(f"{root}/{which}", os.O_WRONLY | os.O_CREAT)
        for _ in range(3000):
            os.pwrite(file, b"x", 0)

    def note(which: int) -> None:
        for _ in range(3000):
            recorder.note(str(which))

    threads = [threading.Thread(target=work, args=(which,)) for which in range(2) for work in (write, note)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def change_a_base(root: str, recording: str) -> None:
    """Change, rename, unlink and reuse what was there before the recording began."""
    begin(root, recording, None)
    os.chdir(root)
    kept = os.open("folder/file", os.O_RDWR)
    gone = os.open("gone", os.O_RDWR)
    os.rename("folder", "moved")
    os.pwrite(kept, b"changed", 0)
    os.unlink("gone")
    os.write(gone, b"nobody sees this")
    os.close(gone)
    # They may get the inode that has just become free.
    with open("../outside", "w") as file:
        file.write("not ours")
    os.truncate("linked", 3)
    os.unlink("linked")
    Path("new").write_text("ours")
    os.fsync(kept)


def map_shared(root: str, recording: str) -> None:
    """Write through a shared map, and sync it; read through another; make a third one writable later."""
    Path(root, "file").write_bytes(bytes(4096))
    begin(root, recording, None)
    with open(f"{root}/file", "r+b") as file:
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as reading:
            reading.find(b"x")
        with mmap.mmap(file.fileno(), 0) as writing:
            writing[0:3] = b"abc"
            writing.flush()
        c = ctypes.CDLL(None, use_errno=True)
        c.mmap.restype = ctypes.c_void_p
        c.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
        later = c.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        assert c.mprotect(ctypes.c_void_p(later), 4096, mmap.PROT_READ | mmap.PROT_WRITE) == 0


def sync_everything(root: str, recording: str, plan: list[Any]) -> int:
    """Return the number of injected faults."""
    begin(root, recording, plan)
    os.sync()
    return recorder.fired()


def start_a_child_that_writes(root: str, recording: str) -> None:
    """Operations of other processes are not this one's."""
    begin(root, recording, None)
    Path(root, "own").touch()
    subprocess.run([sys.executable, "-S", "-c", f"open({root!r} + '/foreign', 'w').write('x')"], check=True)
    if (child := os.fork()) == 0:
        Path(root, "forked").touch()
        os._exit(0)
    os.waitpid(child, 0)


def begin_twice(root: str) -> None:
    begin(root, None, None)
    begin(root, None, None)


prepared: list[str] = []


def prepare(what: str) -> None:
    prepared.append(what)


def what_is_prepared() -> list[str]:
    return prepared


def process() -> int:
    return os.getpid()


def add(one: int, other: int) -> int:
    return one + other


def fail(message: str) -> None:
    print("on the way")
    raise ValueError(message)


def leave(status: int) -> None:
    sys.exit(status)


def die_by(signal: int) -> None:
    os.kill(os.getpid(), signal)


def die_while_answering() -> None:
    """Send the first part of an answer to the fork server, as a process does that is killed while it writes one."""
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if stat.S_ISFIFO(os.fstat(number).st_mode):
                os.write(number, b'{"error": ""}\n"the first half of')
    die_by(signals.SIGKILL)


def hang(note: str | None = None) -> None:
    """For ever, after it has started another process and written both their numbers down."""
    other = subprocess.Popen(["/bin/sleep", "1000"])
    if note is not None:
        Path(note).write_text(f"{os.getpid()} {other.pid}\n")
    while True:
        time.sleep(1000)


def spin() -> None:
    """For ever."""
    while True:
        pass


def sleep(seconds: float) -> str:
    time.sleep(seconds)
    return "awake"


def answer_at_length(num_bytes: int) -> str:
    return "x" * num_bytes


def where() -> list[str]:
    """Its folder, and the names in its environment."""
    return [os.getcwd(), *sorted(os.environ)]


def threads_that_run() -> int:
    return len(os.listdir("/proc/self/task"))
