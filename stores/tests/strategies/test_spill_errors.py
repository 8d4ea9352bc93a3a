"""Errors of the disk in transactions that outgrow an indexed batch: what is staged, and what is committed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stores import (
    CommitFailedError,
    IsolationLevel,
    RecoveryOutcome,
    StoreCorruptedError,
    open_store,
)
from stores.engines.engine import Writes
from stores.strategies import indexed_batch
from stores.strategies.store import Store
from stores.tests.strategies.spilling import (
    BACKENDS,
    FIRST,
    LOG,
    SECOND,
    TINY,
    assert_recovered,
    every_backend,
    opened,
    stage_second,
)


def refuse(*_: object, **__: object) -> None:
    """Raise the error of a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@every_backend
def test_a_copy_that_fails_is_carried_out_by_opening_again_and_undone_by_nothing(
    path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(backend, path)
    stage_second(store)
    write, parts = store.staging.engine.write, 0

    def fails(layers: Sequence[Writes], *given: Any, **named: Any) -> None:
        nonlocal parts
        parts += bool(layers)
        if parts == 2:
            raise CommitFailedError("the disk is full")
        write(layers, *given, **named)

    monkeypatch.setattr(store.staging.engine, "write", fails)
    with pytest.raises(CommitFailedError) as error:
        store.commit({LOG: 2})
    assert error.value.reopen
    store.rollback()
    assert dict(store.read_only(IsolationLevel.READ_COMMITTED).all()) == SECOND
    monkeypatch.undo()
    store.close()
    assert assert_recovered(backend, path, committed=2) is RecoveryOutcome.ROLLED_FORWARD


@every_backend
@pytest.mark.parametrize("method", ["write", "persist"])
@pytest.mark.parametrize("ending", ["close", "rollback"])
def test_what_a_failed_commit_may_have_named_is_there_when_the_store_is_opened_again(
    path: Path, backend: str, method: str, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the disk refuses to sync the name, it is unknown whether it is there."""
    store = opened(backend, path)
    stage_second(store)
    method_of_engine = getattr(store.staging.engine, method)

    def fails(*given: Any, **named: Any) -> None:
        method_of_engine(*given, **named)
        raise CommitFailedError("it can't be synced", reopen=True)

    monkeypatch.setattr(store.staging.engine, method, fails)
    with pytest.raises(CommitFailedError) as error:
        store.commit({LOG: 2})
    assert error.value.reopen
    monkeypatch.undo()
    getattr(store, ending)()
    store.close()
    assert assert_recovered(backend, path, committed=2) is RecoveryOutcome.ROLLED_FORWARD


@every_backend
def test_a_commit_whose_name_was_refused_can_be_tried_again(
    path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(backend, path) as store:
        stage_second(store)
        with monkeypatch.context() as patch:
            patch.setattr(store.staging.engine, "write", raising(CommitFailedError("the disk is full")))
            with pytest.raises(CommitFailedError) as error:
                store.commit({LOG: 2})
        assert not error.value.reopen
        assert dict(store.read_only(IsolationLevel.READ_COMMITTED).all()) == FIRST
        store.commit({LOG: 2})
        assert dict(store.read_only(IsolationLevel.READ_COMMITTED).all()) == SECOND


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("backend", [*BACKENDS, "rocksdb-dual-store"])
def test_what_is_written_after_a_commit_was_cut_short_is_not_committed_with_it(
    path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a caller that ignores the advice to open the store again."""
    store = open_store(backend, path, options=TINY)
    assert isinstance(store, Store)
    store.put_all(SECOND.items())
    monkeypatch.setattr(store.staging, "copy", raising(CommitFailedError("the disk is full", reopen=True)))
    with pytest.raises(CommitFailedError):
        store.commit({LOG: 1})
    monkeypatch.undo()
    store.rollback()
    with pytest.raises(CommitFailedError) as error:
        store.put_all([(b"later%d" % number, b"v" * 100) for number in range(10)])
    assert error.value.reopen
    with pytest.raises(CommitFailedError) as error:
        store.commit({LOG: 2})
    assert error.value.reopen
    store.close()
    with open_store(backend, path, options=TINY) as store:
        assert store.recover().outcome is RecoveryOutcome.ROLLED_FORWARD
        assert store.committed_offset(LOG) == 1
        assert dict(store.all()) == SECOND


@every_backend
def test_a_damaged_name_of_a_spill_makes_the_store_corrupted(path: Path, backend: str) -> None:
    with opened(backend, path) as store:
        store.staging.engine.write([], {indexed_batch._COPYING: b"\xff\x00"})
    with pytest.raises(StoreCorruptedError):
        opened(backend, path)


@every_backend
def test_a_commit_whose_spill_gets_no_commit_record_can_be_tried_again(
    path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(backend, path) as store:
        store.put_all(FIRST.items())
        with monkeypatch.context() as patch:
            patch.setattr(indexed_batch, "sync_folder", refuse)
            with pytest.raises(CommitFailedError) as error:
                store.commit({LOG: 1})
        assert not error.value.reopen
        assert store.committed_offset(LOG) is None
        assert dict(store.read_only().all()) == {}
        assert dict(store.all()) == FIRST
        store.put(b"more", b"v" * 600)
        store.commit({LOG: 1})
        assert dict(store.all()) == {**FIRST, b"more": b"v" * 600}


@every_backend
def test_a_write_for_which_no_spill_can_be_made_is_the_only_one_that_is_not_staged(
    path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(backend, path) as store:
        store.put(b"first", b"v" * 300)
        with monkeypatch.context() as patch:
            patch.setattr(indexed_batch, "_opened", refuse)
            with pytest.raises(CommitFailedError) as error:
                store.put(b"second", b"v" * 300)
        assert not error.value.reopen
        assert store.approximate_num_uncommitted_bytes() == 305
        assert [key for key, _ in store.all()] == [b"first"]
        store.put(b"second", b"v" * 300)
        store.commit()
        assert [key for key, _ in store.all()] == [b"first", b"second"]
