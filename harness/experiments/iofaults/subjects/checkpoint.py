"""A task's checkpoint file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

from harness.experiments.iofaults.subjects.subject import COMMITS, Subject
from harness.experiments.iofaults.workload import Change, State
from stores.interface import Durability, TopicPartition
from stores.tasks.directory.checkpoint_file import CheckpointFile


class CheckpointSubject(Subject):
    """The checkpoint file: each key is a topic, and the checksum of its value an offset."""

    def __init__(self, root: Path, level: Durability) -> None:
        super().__init__(root, level)
        self._file = CheckpointFile(self.path)
        self._staged: State = {}

    def open(self) -> int | None:
        return self._file.read().get(COMMITS, 0)

    def stage(self, made: Sequence[Change], after: State) -> None:
        self._staged = after

    def commit(self, number: int) -> None:
        self._file.write({**self._offsets(self._staged), COMMITS: number})

    def add(self, pairs: State, number: int) -> None:
        self._file.write({**self._file.read(), **self._offsets(pairs), COMMITS: number})

    def read(self) -> tuple[dict[bytes, bytes], int | None, int | None]:
        offsets = self._file.read()
        number = offsets.pop(COMMITS, None)
        return {topic.encode(): b"%d" % offset for (topic, _), offset in offsets.items()}, number, number

    def close(self) -> None:
        """Do nothing: no file is kept open."""

    def wipe(self) -> None:
        self.path.unlink(missing_ok=True)

    def restore(self, state: State, number: int) -> None:
        self.stage((), state)
        self.commit(number)

    def _offsets(self, state: State) -> dict[TopicPartition, int]:
        return {TopicPartition(key.decode(), 0): int(value) for key, value in self.expected(state).items()}

    @staticmethod
    def expected(state: State) -> State:
        return {key: b"%d" % crc32(value) for key, value in state.items()}
