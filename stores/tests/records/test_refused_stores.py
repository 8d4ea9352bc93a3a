"""A store whose description was refused goes on for its caller, and leaves its folder to the next opening."""

from __future__ import annotations

from pathlib import Path

import pytest

from stores.errors import StoreClosedError, StoreIncompatibleError, StoreLockedError
from stores.records import BYTES, INT64, STR, KeyValue, Window
from stores.registry import open_store

MINUTES = Window(key=STR, value=INT64, size_ms=60_000, retention_ms=3_600_000)
BYTES_MINUTES = Window(key=BYTES, value=INT64, size_ms=60_000, retention_ms=3_600_000)


@pytest.fixture(params=["rocksdb-indexed-batch", "lmdb-native", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    chosen: str = request.param
    with MINUTES.over(open_store(chosen, tmp_path / "store")) as store:
        store.put("a", 1, 60_000)
        store.commit()
    return chosen


def test_the_folder_of_a_refused_store_can_be_opened_again_at_once(backend: str, tmp_path: Path) -> None:
    with pytest.raises(StoreIncompatibleError):
        BYTES_MINUTES.over(open_store(backend, tmp_path / "store"))
    with MINUTES.over(open_store(backend, tmp_path / "store")) as store:
        assert store.fetch_one("a", 60_000) == 1


def test_a_refused_store_goes_on_until_its_folder_is_opened_again(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = open_store(backend, tmp_path / "store")
    with pytest.raises(StoreIncompatibleError):
        KeyValue(STR, INT64).over(refused)
    assert refused.is_open
    assert len(list(refused.all())) == 1
    monkeypatch.chdir(tmp_path)
    with MINUTES.over(open_store(backend, "store")):
        with pytest.raises(StoreClosedError):
            refused.all()


def test_a_store_that_was_not_refused_keeps_its_folder(backend: str, tmp_path: Path) -> None:
    with MINUTES.over(open_store(backend, tmp_path / "store")) as store:
        with pytest.raises(StoreLockedError):
            open_store(backend, tmp_path / "store")
        assert store.fetch_one("a", 60_000) == 1
