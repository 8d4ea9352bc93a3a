"""Stores with staged records, which cases of one process share if they only read these: filling one takes seconds."""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.experiments.microbench.case import Case
from harness.experiments.microbench.load import Load
from harness.experiments.microbench.subject import TimedStore, open_subject


class StagedStores:
    """At most one open store: the one that the last case used. Each is made in ``folder``."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed
        self._fill: object = None
        self._subject: TimedStore | None = None
        self.load = Load(seed)
        """The records to come, none of which is staged."""
        self.keys: list[bytes] = []
        """The keys of the records that are staged."""

    def opened(self, case: Case) -> TimedStore:
        """Return a store with the staged records of a case."""
        if self._subject is None or case.fill != self._fill:
            self.close()
            opened = open_subject(case, self._folder)
            assert isinstance(opened, TimedStore)
            self._subject, self._fill, self.load = opened, case.fill, Load(self._seed)
            pairs = self.load.fresh(case.staged)
            opened.store.put_all(pairs)
            self.keys = [key for key, _ in pairs]
        return self._subject

    def close(self) -> None:
        """Close the store and remove its files."""
        if self._subject is not None:
            self._subject.close()
            self._subject, self.keys = None, []
            shutil.rmtree(self._folder / "subject", ignore_errors=True)
