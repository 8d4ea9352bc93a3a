"""The events of each batch, as files: the same ones for every subject."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = "key string"
FILL_KEYS = 250_000
"""The most keys in one batch of those that fill the state."""


class Batches:
    """Writes batches below ``folder``, each a folder with a file for each of ``files`` tasks that read it."""

    def __init__(self, folder: Path, keys: int, seed: int, files: int) -> None:
        self._folder, self._keys, self._files = folder, keys, files
        self._random = np.random.default_rng(seed)
        self.made: list[Path] = []
        """The batches so far."""

    def fill(self) -> list[Path]:
        """Return batches that have each key once, in random order."""
        order = self._random.permutation(self._keys)
        return [self._write(order[at : at + FILL_KEYS]) for at in range(0, self._keys, FILL_KEYS)]

    def next(self, events: int) -> Path:
        """Return a batch of events whose keys are drawn with equal frequency."""
        return self._write(self._random.integers(0, self._keys, events))

    def _write(self, numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Path:
        batch = self._folder / f"{len(self.made):06d}"
        batch.mkdir(parents=True)
        for number, part in enumerate(np.array_split(numbers, self._files)):
            keys = pa.array([f"key-{key:09d}" for key in part.tolist()], pa.string())
            pq.write_table(pa.table({"key": keys}), batch / f"{number}.parquet")
        self.made.append(batch)
        return batch


def keys_in(batch: Path) -> tuple[int, int]:
    """Return the number of events of a batch, and that of their keys."""
    keys = pq.read_table(batch).column("key")
    return len(keys), len(keys.unique())
