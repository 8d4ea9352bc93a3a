"""A store whose format changes: each time it is opened it is migrated to the next format version.

The values of a version begin with its number. A migration step replaces that number, some keys in each write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.experiments.iofaults.subjects.subject import StoreSubject
from harness.experiments.iofaults.workload import Change, State
from stores.engines.engine import Writes
from stores.files.creation import is_complete
from stores.files.identity import STEPS, OpenEngine, present_version, read_identity
from stores.files.plain_files import translated_system_errors
from stores.interface import Durability

_BACKENDS: Mapping[Durability, str] = {
    Durability.CHANGELOG: "rocksdb-indexed-batch",
    Durability.PROCESS: "lmdb-indexed-batch",
    Durability.DISK: "lmdb-indexed-batch",
}
"""One backend that may return to an earlier commit, and one that may be torn. DISK, where most trials run, has the
faster one."""
_KEYS_PER_WRITE = 20


class MigrationSubject(StoreSubject):
    """The store is closed, opened again and migrated after the fifth commit and every ninth after it."""

    REOPENED_FROM = 5

    def __init__(self, root: Path, level: Durability) -> None:
        super().__init__(root, level, _BACKENDS[level])

    def open(self) -> int | None:
        with translated_system_errors(self.path):
            is_there = is_complete(self.path)
        # Offer one step more than was made: an opening that finds an interrupted step repeats it.
        STEPS[:] = [_restamp] * (read_identity(self.path).format_version if is_there else 0)
        return super().open()

    def stage(self, made: Sequence[Change], after: State) -> None:
        self.reopen_where_due()
        stamp = _stamp(present_version())
        super().stage(
            [change if change.value is None else change._replace(value=stamp + change.value) for change in made], after
        )

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        state, offset, position = super().read()
        stamp = _stamp(present_version())
        return (
            {
                key: value[1:] if value.startswith(stamp) else b"of another version: " + value
                for key, value in state.items()
            },
            offset,
            position,
        )

    def restore(self, state: State, number: int) -> None:
        stamp = _stamp(present_version())
        super().restore({key: stamp + value for key, value in state.items()}, number)


def _restamp(folder: Path, open_engine: OpenEngine) -> None:
    version = read_identity(folder).format_version
    old, new = _stamp(version), _stamp(version + 1)
    engine = open_engine(folder / "data")
    try:
        scan = engine.scan(None, None)
        pairs = []
        try:
            while fetched := scan.fetch():
                pairs += fetched
        finally:
            scan.close()
        due = [(key, new + value[1:]) for key, value in pairs if value.startswith(old)]
        for at in range(0, len(due), _KEYS_PER_WRITE):
            engine.write([Writes((), dict(due[at : at + _KEYS_PER_WRITE]))], {})
    finally:
        engine.close()


def _stamp(version: int) -> bytes:
    return bytes([version])
