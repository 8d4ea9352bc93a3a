"""The machine and the software of a run, and their page.

They have no data that identifies an owner: no host name, user or path.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import psutil

from harness.report import text
from stores.errors import ConfigError
from stores.files import sqlite_library
from stores.java import find_java
from stores.registry import Backend, backends, open_store

PACKAGES = (
    "rocksdict",
    "lmdb",
    "apsw",
    "sqlite-utils",
    "pyspark",
    "pyarrow",
    "pandas",
    "numpy",
    "hdrhistogram",
    "pytest",
    "pytest-benchmark",
    "psutil",
)

_SYNCS, _PAGE_BYTES = 25, 4_096


def environment(work: Path) -> dict[str, Any]:
    """Return the machine, the software and every backend's default options. ``work`` is the folder of the stores."""
    return {
        "cpu": {"model": _cpu_model(), "cores": _cores(), "architecture": platform.machine()},
        "memory_bytes": psutil.virtual_memory().total,
        "disk": _disk(work),
        "fsync_s": sync_seconds(work),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "java": _java(),
        "libraries": {
            "RocksDB": _rocksdb(),
            "LMDB": _lmdb(),
            "SQLite": f"{sqlite_library.VERSION} ({sqlite_library.NAME})",
        },
        "packages": {name: number for name in PACKAGES if (number := _package(name)) is not None},
        "backends": {name: _backend(name, backend) for name, backend in sorted(backends().items())},
    }


def _backend(name: str, backend: Backend) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, open_store(name, Path(folder, "store")) as store:
        return {
            "engine": backend.engine,
            "strategy": backend.strategy,
            "durabilities": sorted(backend.durabilities),
            "persistent": store.persistent,
            "transactional": store.transactional,
            "options": dict(backend.options),
        }


def _cpu_model() -> str:
    try:
        line = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        line = None
    return line[1] if line else platform.processor() or "unknown"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _disk(work: Path) -> dict[str, str]:
    mounts = [part for part in psutil.disk_partitions(all=True) if work.resolve().is_relative_to(part.mountpoint)]
    if not mounts:
        return {"file_system": "unknown", "kind": "unknown", "mount_options": ""}
    # Of several mounts at the same place, the last one is visible.
    mount = max(enumerate(mounts), key=lambda each: (len(Path(each[1].mountpoint).parts), each[0]))[1]
    options = ",".join(option for option in mount.opts.split(",") if "/" not in option and "=" not in option)
    return {"file_system": mount.fstype, "kind": _disk_kind(mount.device), "mount_options": options}


def sync_seconds(folder: Path) -> float:
    """Return the median time of an fsync of a file in ``folder`` to which a page was appended."""
    seconds = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_SYNCS):
            file.write(bytes(_PAGE_BYTES))
            file.flush()
            began = perf_counter()
            os.fsync(file.fileno())
            seconds.append(perf_counter() - began)
    return median(seconds)


def _disk_kind(device: str) -> str:
    name = Path(device).name
    for block in (name, re.sub(r"p?\d+$", "", name)):
        try:
            rotates = Path("/sys/block", block, "queue", "rotational").read_text().strip()
        except OSError:
            continue
        return "rotating" if rotates == "1" else "solid state"
    return "unknown"


def _java() -> str:
    try:
        java = find_java()
        answer = subprocess.run([java.program, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (ConfigError, OSError, subprocess.TimeoutExpired):
        return "none"
    lines = (answer.stderr + answer.stdout).strip().splitlines()
    return lines[0] if lines else "unknown"


def _rocksdb() -> str:
    # The binding does not report the version; RocksDB writes it into every database.
    from rocksdict import Rdict

    with tempfile.TemporaryDirectory() as folder:
        Rdict(folder).close()
        for options in Path(folder).glob("OPTIONS-*"):
            line = re.search(r"rocksdb_version=(\S+)", options.read_text())
            if line:
                return line[1]
    return "unknown"


def _lmdb() -> str:
    import lmdb

    return ".".join(str(number) for number in lmdb.version())


def _package(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


CHANGED = "+"
_WRITTEN = (":!results", ":!README.md")
"""The files that a bench writes itself: they are no changes of the code."""


def commit_of(root: Path) -> str:
    """Return the hash of the commit that is checked out in ``root``, with a plus if tracked files differ from it.

    It is "" if ``root`` is not the top of a clone, or there is no git.
    """
    if _git(root, "rev-parse", "--show-cdup") != "":
        return ""
    commit = _git(root, "rev-parse", "HEAD") or ""
    changes = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", *_WRITTEN)
    return f"{commit}{CHANGED if changes else ''}" if commit else ""


def _git(root: Path, *arguments: str) -> str | None:
    """Return what git prints; None if it fails."""
    try:
        process = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode == 0 else None


MACHINE_FILE = "machine.md"


def origin(facts: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    """Return the run and the machine in two sentences. ``facts`` are the settings of the run."""
    cpu, disk = environment["cpu"], environment["disk"]
    return (
        f"Generated from the rows of one run: {run_of(facts)}, on {cpu['cores']} cores "
        f"({cpu['model']}), {text.size(environment['memory_bytes'])} of memory, {disk['file_system']}. Nothing in it "
        "is written by hand."
    )


def machine_kind(environment: Mapping[str, Any]) -> str:
    """Return the kind of a machine in one line: figures of different kinds are not compared."""
    cpu, disk = environment["cpu"], environment["disk"]
    memory_gib = round(environment["memory_bytes"] / 2**30)
    return f"{cpu['cores']} cores, {cpu['model']}, {memory_gib} GiB, {disk['file_system']}"


def run_of(facts: Mapping[str, Any]) -> str:
    """Return the profile, the seed and the time of a run."""
    return f"profile {facts['profile']}, seed {facts['seed']}, {facts['started']}"


def machine_page(facts: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    """Return the page in Markdown."""
    cpu, disk = environment["cpu"], environment["disk"]
    libraries = ", ".join(f"{name} {version}" for name, version in environment["libraries"].items())
    packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
    table = text.table(
        ("what", "is"),
        [
            ("processor", f"{cpu['model']}, {cpu['cores']} cores, {cpu['architecture']}"),
            ("memory", text.size(environment["memory_bytes"])),
            ("disk", f"{disk['kind']}, {disk['file_system']} ({disk['mount_options']})"),
            ("one fsync after a page was appended, median", text.duration(environment.get("fsync_s"))),
            ("kernel", environment["kernel"]),
            ("Python, Java", f"{environment['python']}, {environment['java']}"),
            ("engines", libraries),
            ("packages", packages),
            ("took", text.duration(facts.get("seconds"))),
        ],
    )
    return "\n".join(
        [
            "# The machine\n",
            f"The machine and the software of one run: {run_of(facts)}. Figures of other machines differ; ratios "
            "within a run say more than numbers do. Every backend's options are in `environment.json`.\n",
            table,
        ]
    )
