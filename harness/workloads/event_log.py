"""`event_log`: a user's own events. The state is the number of events of each key, and the latest one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from harness.workloads.workload import WorkloadContext, keyed
from stores.changelog.interface import Record
from stores.errors import ConfigError, nearest

EVENT_LOG = "event_log"
"""The name of the workload with the user's own events."""

_PREFIX = b'{"events":'
_LATEST = b',"latest":'
_COMPRESSED = (".gz", ".bz2", ".zst")
_HIDDEN = ("_", ".")
_PATTERN_SIGNS = re.compile(r"[\\*?\[\]{}]")


class EventLogError(ConfigError):
    """A user's event log cannot be used. Correct the file or its description; nothing was written."""


class EventLogNotFoundError(EventLogError):
    """There is no file or folder at the path. Give an existing path."""


class EventLogFormatError(EventLogError):
    """The file is not CSV, JSON lines or Parquet by its name, or cannot be read as that. Rename or correct the file."""


class EventLogEmptyError(EventLogError):
    """The log has no events. Give a log with events."""


class EventLogColumnError(EventLogError):
    """The log has no such column, or the column cannot be a key or a time. Name another one."""


class EventLogValueError(EventLogError):
    """Some rows have no key, or no readable time. Correct or remove them."""


class EventLogFormat(StrEnum):
    """The supported formats; each value is also Spark's name of the format."""

    CSV = "csv"
    JSON_LINES = "json"
    PARQUET = "parquet"


_FORMATS = {
    ".csv": EventLogFormat.CSV,
    ".jsonl": EventLogFormat.JSON_LINES,
    ".ndjson": EventLogFormat.JSON_LINES,
    ".json": EventLogFormat.JSON_LINES,
    ".parquet": EventLogFormat.PARQUET,
}


@dataclass(frozen=True)
class EventLog:
    """The path and the columns of a user's events.

    ``path`` is a file, or a folder with files of one format. ``time`` names a column with milliseconds since the epoch
    or a date and time. Without it, events keep the order of the file, and of the files' names. ``drop_bad`` leaves out
    rows that cannot be events; otherwise one such row is an error.
    """

    path: str
    key: str
    time: str | None = None
    drop_bad: bool = False

    @property
    def is_remote(self) -> bool:
        """True if the path is in a file system of Spark, such as ``s3a://``, and not on this machine."""
        return "://" in self.path

    @property
    def is_one_file(self) -> bool:
        """True if the path is a single file of this machine."""
        return not self.is_remote and Path(self.path).is_file()

    def location(self) -> str:
        """Return the path as a URI that depends neither on the working folder nor on the default file system.

        Characters of a local name that Spark would take for a pattern are escaped.
        """
        if self.is_remote:
            return self.path
        return "file://" + _PATTERN_SIGNS.sub(r"\\\g<0>", str(Path(self.path).resolve()))

    def format(self) -> EventLogFormat:
        """Return the format from the name's ending, for a folder from the names of its files.

        Raises: EventLogNotFoundError, EventLogEmptyError, EventLogFormatError.
        """
        names = [Path(self.path).name] if self.is_remote else self._names()
        formats = {_FORMATS.get(_suffix(name)) for name in names}
        if len(formats) > 1 and None not in formats:
            both = ", ".join(sorted(form.value for form in formats if form is not None))
            raise EventLogFormatError(f"{self.path} holds files of several formats ({both}): give one of them")
        known = formats.pop() if len(formats) == 1 else None
        if known is None:
            raise EventLogFormatError(
                f"can't tell the format of {self.path}: a file, or all files of a folder, must "
                f"end in one of {', '.join(_FORMATS)}"
            )
        return known

    def _names(self) -> list[str]:
        """Return the names that give the format: that of the path, or, of a folder without one, those of its files."""
        path = Path(self.path)
        if path.is_symlink() and not path.exists():
            raise EventLogNotFoundError(f"{path} is a symbolic link that leads to no file: give another path")
        if not path.exists():
            siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
            raise EventLogNotFoundError(f"no event log at {path}{nearest(path.name, siblings)}")
        if path.is_file() and path.name.startswith(_HIDDEN):
            raise EventLogFormatError(f"Spark leaves out files whose names begin with _ or a dot: rename {path}")
        inner = [entry for entry in path.iterdir() if not entry.name.startswith(_HIDDEN)] if path.is_dir() else []
        for entry in inner or [path]:
            # Reading a pipe would wait for ever.
            if not entry.is_file() and not entry.is_dir():
                raise EventLogFormatError(f"{entry} is neither a file nor a folder: leave it out, or copy it to a file")
        if not path.is_dir() or _suffix(path.name) in _FORMATS:
            return [path.name]
        if not inner:
            raise EventLogEmptyError(f"there is no file in {path}")
        return [entry.name for entry in inner]


@dataclass(frozen=True)
class EventLogWorkload:
    """Keeps each key's number of events and the latest one, as JSON: ``{"events":3,"latest":{...}}``.

    An event's value is its row as a JSON object, which is kept unchanged.
    """

    name: str = "event_log"
    store_names: tuple[str, ...] = ("events",)
    output_topic: str = "events-out"

    def process(self, record: Record, context: WorkloadContext) -> None:
        """Count the record under its key, keep it as the latest, and forward the new value."""
        key, value = keyed(record)
        store = context.store("events")
        before = store.get(key)
        events = 1 if before is None else int(before[len(_PREFIX) : before.index(b",")]) + 1
        new = b"%b%d%b%b}" % (_PREFIX, events, _LATEST, value)
        store.put(key, new)
        context.forward(self.output_topic, key, new, record.timestamp_ms)


def _suffix(name: str) -> str:
    path = Path(name.lower())
    return Path(path.stem).suffix if path.suffix in _COMPRESSED else path.suffix
