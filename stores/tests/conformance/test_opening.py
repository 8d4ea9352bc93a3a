"""Opening: what is refused, by which error, and that it leaves everything as it was.

After ``close`` everything says that the store is closed; closing again is nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stores import (
    ConfigError,
    Durability,
    IsolationLevel,
    KeyValueStore,
    StoreClosedError,
    StoreCorruptedError,
    StoreIncompatibleError,
    StoreLockedError,
    StoreTooNewError,
    StoreUnavailableError,
    TopicPartition,
    open_store,
)
from stores.files.identity import Identity
from stores.registry import backend_named, backends
from stores.tests.conformance.cases import Case
from stores.tests.store_process import StoreProcess


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file below a folder."""
    return {
        str(entry.relative_to(folder)): entry.read_bytes() if entry.is_file() else None for entry in folder.rglob("*")
    }


def test_a_backend_without_files_makes_none_and_one_with_files_keeps_them_in_its_folder(
    case: Case, path: Path, store: KeyValueStore
) -> None:
    store.put(b"key", b"value")
    store.commit()
    assert [entry.name for entry in path.parent.iterdir()] == ([path.name] if store.persistent else [])


def test_folders_above_the_store_are_made(case: Case, path: Path) -> None:
    with case.open(path / "a" / "b") as store:
        store.put(b"key", b"value")
        store.commit()
    with case.open(path / "a" / "b") as store:
        assert store.get(b"key") == (b"value" if store.persistent else None)


def test_an_empty_folder_becomes_a_store(case: Case, path: Path) -> None:
    path.mkdir()
    with case.open(path) as store:
        store.put(b"key", b"value")
        store.commit()
    with case.open(path) as store:
        assert store.get(b"key") == (b"value" if store.persistent else None)


@pytest.mark.as_is
def test_a_path_that_cannot_be_a_folder_is_refused(case: Case, path: Path) -> None:
    """A file, a path below a file, a folder of the kernel's that takes no files, a name that is too long."""
    file = path.parent / "file"
    file.write_bytes(b"kept")
    wrong_paths = [file, file / "below", file / "further" / "below", Path("/proc/store"), path.parent / ("x" * 300)]
    if case.backend.persistent:
        for bad in wrong_paths:
            with pytest.raises(StoreUnavailableError):
                case.open(bad)
        with pytest.raises(ValueError):
            case.open(path.parent / "nul\0")
    assert contents(path.parent) == {"file": b"kept"}


@pytest.mark.as_is
def test_the_folder_of_something_else_is_refused_and_left_alone(case: Case, path: Path) -> None:
    path.mkdir()
    (path / "letter.txt").write_text("dear")
    if case.backend.persistent:
        for _ in range(2):
            with pytest.raises(StoreIncompatibleError):
                case.open(path)
    assert contents(path.parent) == {path.name: None, f"{path.name}/letter.txt": b"dear"}


@pytest.mark.as_is
def test_another_backend_s_store_is_refused_and_left_alone(case: Case, path: Path) -> None:
    if not case.backend.persistent:
        return
    for other in backends().values():
        if other.persistent and other.name != case.backend.name:
            theirs = path.with_name(other.name)
            with open_store(other.name, theirs) as store:
                store.put(b"key", b"value")
                store.commit()
            before = contents(theirs)
            with pytest.raises(StoreIncompatibleError):
                case.open(theirs)
            assert contents(theirs) == before
            with open_store(other.name, theirs) as store:
                assert store.get(b"key") == b"value"


@pytest.mark.as_is
def test_a_newer_format_is_refused_and_left_alone(case: Case, path: Path) -> None:
    case.open(path).close()
    if case.backend.persistent:
        identity = path / "store.json"
        identity.write_text(Identity(case.backend.name, 99).text())
        before = contents(path)
        with pytest.raises(StoreTooNewError):
            case.open(path)
        assert contents(path) == before


@pytest.mark.as_is
def test_a_store_that_is_open_in_this_process_is_refused(case: Case, path: Path, store: KeyValueStore) -> None:
    """One that keeps nothing on disk shares nothing either."""
    store.put(b"key", b"value")
    if store.persistent:
        for _ in range(2):
            with pytest.raises(StoreLockedError):
                case.open(path)
    else:
        with case.open(path) as other:
            assert other.get(b"key") is None
    store.commit()
    assert store.get(b"key") == b"value"


@pytest.mark.as_is
def test_a_store_that_another_process_holds_is_refused_until_that_ends(
    case: Case, path: Path, process: StoreProcess
) -> None:
    process.call("open", case.backend.name, path, case.durability, case.options)
    if case.backend.persistent:
        with pytest.raises(StoreLockedError) as error:
            case.open(path)
        # The number is what the caller needs: the one thing of a message that is a promise.
        assert str(process.pid) in str(error.value)
    assert process.call("get", b"key") is None
    process.kill()
    case.open(path).close()


@pytest.mark.as_is
def test_two_processes_that_create_the_same_store_at_once_end_with_one_store(case: Case, path: Path) -> None:
    """One opens it. The other gets a lock error, or opens it after the first has closed."""
    with StoreProcess() as first, StoreProcess() as second:
        arguments = (case.backend.name, path, case.durability, case.options)
        for process in (first, second):
            process.call("load_backend", case.backend.name)
        first.send("open", *arguments)
        second.send("open", *arguments)
        outcomes = []
        for process in (first, second):
            try:
                outcomes.append(process.receive())
            except StoreLockedError as error:
                outcomes.append(error)
        if case.backend.persistent:
            assert sorted(map(type, outcomes), key=str) == sorted([type(None), StoreLockedError], key=str)
            assert [entry.name for entry in path.parent.iterdir()] == [path.name]
        else:
            assert outcomes == [None, None]
        winner = (first, second)[outcomes.index(None)]
        winner.call("put", b"key", b"value")
        winner.call("commit")
        winner.call("close")
    with case.open(path) as store:
        assert store.get(b"key") == (b"value" if store.persistent else None)


@pytest.mark.as_is
def test_a_store_opens_in_another_place_after_it_was_moved(case: Case, path: Path) -> None:
    with case.open(path) as store:
        store.put(b"key", b"value")
        store.commit()
    new_path = path.with_name("moved")
    if path.exists():
        os.rename(path, new_path)
    with case.open(new_path) as store:
        assert store.get(b"key") == (b"value" if store.persistent else None)


def test_an_option_that_does_not_exist_or_does_not_fit_is_refused_before_anything_is_made(
    case: Case, path: Path
) -> None:
    wrong: list[dict[str, Any]] = [{"no_such_option": 1}]
    for name, default in case.backend.options.items():
        wrong += [{name: None}, {name: b"bytes"}, {name: 1.5}, {name + "s": default}]
        if isinstance(default, int) and not isinstance(default, bool):
            wrong += [{name: -2}, {name: True}, {name: "1"}]
    for options in wrong:
        with pytest.raises(ConfigError):
            open_store(case.backend.name, path, options=options)
    assert not path.exists()


def test_a_mistyped_option_or_backend_is_answered_with_the_nearest(case: Case, path: Path) -> None:
    """The promise is that the message has the name, whatever the other words are."""
    for option in case.backend.options:
        with pytest.raises(ConfigError) as error:
            open_store(case.backend.name, path, options={option[:-1] + "x": 1})
        assert option in str(error.value)
    with pytest.raises(ConfigError) as error:
        open_store(case.backend.name.replace("-", "_"), path)
    assert case.backend.name in str(error.value)


@pytest.mark.as_is
def test_levels_that_the_backend_cannot_carry_are_refused_when_asked_for(case: Case, path: Path) -> None:
    for level in Durability:
        if level in case.backend.durabilities:
            with open_store(case.backend.name, path.with_name(level.value), durability=level.value) as store:
                assert store.durability is level
        else:
            with pytest.raises(ConfigError):
                open_store(case.backend.name, path, durability=level)
    with pytest.raises(ConfigError):
        open_store(case.backend.name, path, durability="FOREVER")
    assert not path.exists()


@pytest.mark.as_is
def test_a_store_may_be_opened_at_another_level_than_before(case: Case, path: Path) -> None:
    for number, level in enumerate(sorted(case.backend.durabilities) * 2):
        with open_store(case.backend.name, path, durability=level) as store:
            if store.persistent:
                assert [value for _, value in store.all()] == [b"%d" % earlier for earlier in range(number)]
            store.put(b"key%d" % number, b"%d" % number)
            store.commit()


def test_the_registry_and_an_open_store_declare_the_same_properties(case: Case, store: KeyValueStore) -> None:
    assert backend_named(store.backend) is case.backend
    assert case.backend.name == f"{case.backend.engine}-{case.backend.strategy}"
    assert store.persistent is case.backend.persistent
    assert store.durability in case.backend.durabilities
    assert all(isinstance(name, str) for name in case.backend.failpoints)


@pytest.mark.as_is
def test_a_store_of_another_boot_is_refused_only_where_power_loss_may_tear_it(case: Case, path: Path) -> None:
    """An unclean close before the machine's last start. Wiping it is then the caller's choice."""
    for level in sorted(case.backend.durabilities):
        folder = path.with_name(level.value)
        store = open_store(case.backend.name, folder, durability=level)
        store.put(b"key", b"value")
        store.commit()
        store.close()
        if not case.backend.persistent:
            continue
        tearable = case.backend.load_engine().torn_by_power_loss(level)
        mark = {"boot": "an earlier one", "pid": 1, "durability": level, "tearable": tearable}
        (folder / "open").write_text(json.dumps(mark))
        if tearable:
            with pytest.raises(StoreCorruptedError):
                open_store(case.backend.name, folder, durability=level)
        else:
            open_store(case.backend.name, folder, durability=level).close()


LOG = TopicPartition("changelog", 0)
USES: dict[str, Callable[[KeyValueStore], object]] = {
    "put": lambda store: store.put(b"key", b"value"),
    "put_all": lambda store: store.put_all([(b"key", b"value")]),
    "put_all of nothing": lambda store: store.put_all([]),
    "put_if_absent": lambda store: store.put_if_absent(b"key", b"value"),
    "delete": lambda store: store.delete(b"key"),
    "delete_range": lambda store: store.delete_range(b"a", b"b"),
    "get": lambda store: store.get(b"key"),
    "get of what is staged": lambda store: store.get(b"staged"),
    "get of what was committed last": lambda store: store.get(b"committed"),
    "get_many": lambda store: store.get_many([b"key"]),
    "get_many of nothing": lambda store: store.get_many([]),
    "range": lambda store: store.range(b"a", b"b"),
    "reverse_range": lambda store: store.reverse_range(b"a", b"b"),
    "all": lambda store: store.all(),
    "reverse_all": lambda store: store.reverse_all(),
    "prefix_scan": lambda store: store.prefix_scan(b"a"),
    "reverse_prefix_scan": lambda store: store.reverse_prefix_scan(b"a"),
    "approximate_num_entries": lambda store: store.approximate_num_entries(),
    "commit": lambda store: store.commit(),
    "commit of offsets": lambda store: store.commit({LOG: 1}),
    "rollback": lambda store: store.rollback(),
    "recover": lambda store: store.recover(),
    "restore": lambda store: store.restore([(b"key", b"value")], {}),
    "persist": lambda store: store.persist(),
    "committed_offset": lambda store: store.committed_offset(LOG),
    "approximate_num_uncommitted_bytes": lambda store: store.approximate_num_uncommitted_bytes(),
    "advance_position": lambda store: store.advance_position(LOG, 1),
    "position": lambda store: store.position(IsolationLevel.READ_COMMITTED),
    "read_only": lambda store: store.read_only(),
}


def test_every_use_after_close_says_that_the_store_is_closed(store: KeyValueStore) -> None:
    store.put(b"committed", b"1")
    store.commit()
    store.put_all([(b"staged", b"1"), (b"also staged", b"2" * 100)])
    store.close()
    for name, use in USES.items():
        with pytest.raises(StoreClosedError):
            use(store)
            pytest.fail(f"{name} did not raise")


def test_what_a_store_is_can_be_read_when_it_is_closed(case: Case, store: KeyValueStore) -> None:
    facts = ("name", "backend", "durability", "persistent", "transactional", "manages_offsets", "max_key_bytes")
    before = [getattr(store, fact) for fact in facts]
    assert before[:3] == ["store", case.backend.name, case.durability]
    assert store.is_open
    store.close()
    assert not store.is_open
    assert [getattr(store, fact) for fact in facts] == before


def test_closing_again_is_nothing(store: KeyValueStore) -> None:
    store.close()
    store.close()
    with pytest.raises(StoreClosedError), store:
        store.put(b"key", b"value")
    assert not store.is_open


def test_a_closed_store_can_be_opened_again_at_once(
    case: Case, store: KeyValueStore, reopen: Callable[[], KeyValueStore]
) -> None:
    for number in range(3):
        again = reopen()
        again.put(b"%d" % number, b"1")
        again.commit()
    assert len(list(again.all())) == (3 if again.persistent else 1)
