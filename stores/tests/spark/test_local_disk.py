"""An error of a local copy on a full disk says so, whatever the engine calls it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from stores.errors import CommitFailedError, StoreLockedError, StoreUnavailableError
from stores.spark.local_state import ROOM_BYTES, full_disk_named


@pytest.mark.parametrize("free", [0, ROOM_BYTES])
def test_an_error_on_a_full_disk_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free, f_frsize=1))
    with pytest.raises(CommitFailedError if free else StoreUnavailableError):
        with full_disk_named(tmp_path / "not" / "made"):
            raise CommitFailedError("disk I/O error")
    with pytest.raises(StoreLockedError):
        with full_disk_named(tmp_path):
            raise StoreLockedError("another process has it")
