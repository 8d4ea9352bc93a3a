"""The jars of Apache Kafka: fetched once by Maven, and checked against checksums.

``jars.xml`` names those of the broker and its tools, ``streams-jars.xml`` those of Kafka Streams 4.1,
``streams-44-jars.xml`` those of 4.4, which keeps offsets in its stores (KIP-1035), and
``spark-jars.xml`` those of Spark's source and sink. The checksums are in the file ``.sha256`` beside each.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path

from stores.errors import ConfigError

_HERE = files(__package__)
"""The lists of jars, which may be in a zip file."""
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_DOWNLOADED = re.compile(r"Downloaded from \S+ \S*/(?P<jar>[^/\s]+\.jar) \((?P<size>[\d.]+ \w+)")

Tell = Callable[[str], None]
BROKER, STREAMS, STREAMS_44, SPARK = "jars", "streams-jars", "streams-44-jars", "spark-jars"
"""The sets of jars, by the names of their folders."""
_SIZES = {BROKER: "54 MB", STREAMS: "93 MB", STREAMS_44: "94 MB", SPARK: "10 MB"}


def kafka_jars(folder: Path, tell: Tell = print, name: str = BROKER) -> Path:
    """Return the folder below ``folder`` with a set of jars, after checking each; fetch them if they are not there.

    ``name`` is that of a set. ``tell`` gets a line of progress for each jar that Maven downloads. Calls of several
    processes at once are safe: each fetches into a folder of its own, and the first complete one is kept.

    Raises: ConfigError if Maven is missing or fails, or a jar is not the one that the checksums name.
    """
    checksums = expected_checksums(name)
    jars = folder / name
    if not jars.is_dir():
        _fetch(jars, checksums, tell)
    elif wrong := mismatch(jars, checksums):
        raise ConfigError(f"{jars} does not have the jars that were checked: {wrong}. Remove the folder, and run again")
    return jars


def expected_checksums(name: str = BROKER) -> dict[str, str]:
    """Return the SHA-256 of each jar of a set, by its file name."""
    lines = _HERE.joinpath(f"{name}.sha256").read_text(encoding="ascii").splitlines()
    return {name: checksum for checksum, name in (line.split() for line in lines)}


def mismatch(jars: Path, checksums: Mapping[str, str]) -> str | None:
    """Return which jar in the folder is missing, unexpected or changed; None if all are as the checksums say."""
    names = {file.name for file in jars.iterdir()}
    for name in sorted(names ^ checksums.keys()):
        return f"{name} is missing" if name in checksums else f"{name} is not one of them"
    for name, checksum in checksums.items():
        with (jars / name).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != checksum:
                return f"the SHA-256 of {name} is another one"
    return None


def _fetch(jars: Path, checksums: Mapping[str, str], tell: Tell) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise ConfigError(
            "Maven is not on PATH: it fetches the jars of Apache Kafka. Debian or Ubuntu: apt-get install maven. "
            "Fedora: dnf install maven. macOS: brew install maven"
        )
    jars.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".fetching-", dir=jars.parent))
    try:
        tell(f"Fetching {len(checksums)} jars of Apache Kafka with Maven, about {_SIZES[jars.name]}, once.")
        (work / "pom.xml").write_bytes(_HERE.joinpath(f"{jars.name}.xml").read_bytes())
        options = ["-DincludeScope=runtime", f"-DoutputDirectory={work}/jars"]
        _run([maven, "-B", "-f", f"{work}/pom.xml", _COPY, *options], checksums, tell)
        if wrong := mismatch(work / "jars", checksums):
            raise ConfigError(f"Maven has fetched other jars of Kafka than those that were checked: {wrong}")
        try:
            os.rename(work / "jars", jars)
        except OSError:
            if not jars.is_dir():  # Otherwise another process was faster, with the same checked jars.
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run(command: list[str], checksums: Mapping[str, str], tell: Tell) -> None:
    last: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            downloaded = _DOWNLOADED.search(line)
            if downloaded and downloaded["jar"] in checksums:
                tell(f"  {downloaded['jar']}, {downloaded['size']}")
            elif "[ERROR]" in line:
                last = [*last[-4:], line.partition("[ERROR]")[2].strip()]
    if process.returncode != 0:
        raise ConfigError(f"Maven could not fetch the jars of Apache Kafka: {' '.join(last) or 'it said no reason'}")
