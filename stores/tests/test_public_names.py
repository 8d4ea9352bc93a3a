"""The names that ``help`` shows of the classes a user meets first: nothing of the inside is among them."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import stores
from stores import (
    ConfigError,
    Durability,
    IsolationLevel,
    KeyValueStore,
    PositionBound,
    TopicPartition,
    open_store,
)
from stores.changelog import MemoryChangelog, SqliteChangelog
from stores.interface import KeyValueSnapshot, KeyValueView
from stores.records import (
    BYTES,
    FLOAT64,
    INT64,
    JSON,
    STR,
    KeyValue,
    RecordKind,
    Session,
    TimestampedKeyValue,
    TimestampedKeyValueWithHeaders,
    Versioned,
    VersionedWithHeaders,
    Window,
)
from stores.tasks import MemoryBudget, ProcessingGuarantee, StoreConfig, StreamTask, TaskContext, TaskId

DOCS = Path(stores.__file__).parents[1] / "docs"
OF_AUTHORS = {"adding-a-backend.md", "own_engine.py"}
"""Pages and examples for authors of a backend, who import from inner modules."""
LOOKUPS = "all approximate_num_entries get get_many prefix_scan range reverse_all reverse_prefix_scan reverse_range"
OF_EVERY_STORE = "close commit committed_offset is_open kind late_total metrics name position read_only rollback store"
OF_EVERY_VIEW = "close isolation_level position snapshot"


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            StreamTask,
            "changelog_offsets close commit engine_metrics input_offsets metrics open process process_all rebuild "
            "restore_reports run standby store uncommitted_bytes uncommitted_memory_bytes",
        ),
        (TaskContext, "commit forward forward_many global_store offset schedule store stream_time_ms timestamp_ms"),
        (
            SqliteChangelog,
            "await_decided can_truncate check_group close committed committed_offsets compact compact_step "
            "compacts_itself "
            "create_store_topic create_topic deletes_kept_s dirty_share drop_before end_offset expect_reads_to_end "
            "has_arrived join_group lag "
            "producer read read_columns reads_hold_snapshots shared_producer start_offset takes_inputs_elsewhere "
            "topic_id topics truncate verify written_end",
        ),
        (
            MemoryChangelog,
            "await_decided can_truncate check_group close committed committed_offsets compact compact_step "
            "compacts_itself "
            "create_store_topic create_topic deletes_kept_s drop_before end_offset expect_reads_to_end has_arrived "
            "join_group lag producer read "
            "read_columns reads_hold_snapshots shared_producer start_offset takes_inputs_elsewhere topic_id topics "
            "truncate written_end",
        ),
    ],
)
def test_a_public_class_has_only_public_methods(kind: type, names: str) -> None:
    assert sorted(name for name in dir(kind) if not name.startswith("_")) == names.split()


def test_a_context_shows_a_function_what_is_meant_for_it_alone(tmp_path: Path) -> None:
    """Its own attributes included, which only an object has."""
    contexts: list[TaskContext] = []
    with MemoryChangelog() as log:
        log.create_topic("input")
        with StreamTask(
            "app",
            TaskId(0, 0),
            state_dir=tmp_path,
            changelog=log,
            stores=["s"],
            process=lambda record, context: None,
            inputs=[TopicPartition("input", 0)],
            init=contexts.append,
        ):
            assert _names_of(contexts[0]) == (
                "commit forward forward_many global_store offset partition record schedule store stream_time_ms "
                "task_id timestamp_ms"
            )


@pytest.mark.parametrize(
    ("kind", "names", "writes"),
    [
        (KeyValue(STR, INT64), LOOKUPS, "delete delete_many delete_range put put_all put_if_absent put_many update"),
        (
            TimestampedKeyValue(STR, INT64),
            LOOKUPS,
            "delete delete_many delete_range put put_all put_if_absent put_many update",
        ),
        (
            TimestampedKeyValueWithHeaders(STR, INT64),
            LOOKUPS,
            "delete delete_many delete_range put put_all put_if_absent put_many update",
        ),
        (Versioned(STR, INT64, 1), f"{LOOKUPS} get_versions", "delete delete_many put put_all put_many"),
        (VersionedWithHeaders(STR, INT64, 1), f"{LOOKUPS} get_versions", "delete delete_many put put_all put_many"),
        (
            Window(STR, INT64, 1, 2),
            "all backward_all backward_fetch backward_fetch_all backward_fetch_range fetch fetch_all fetch_many "
            "fetch_one fetch_range get_many",
            "delete_many put put_many update",
        ),
        (
            Session(STR, INT64, 2),
            "backward_fetch backward_fetch_range backward_find_sessions backward_find_sessions_range fetch fetch_many "
            "fetch_range fetch_session find_sessions find_sessions_many find_sessions_range get_many",
            "delete_many merge put put_many remove",
        ),
    ],
)
def test_a_typed_store_shows_its_reads_and_writes_and_what_all_have(
    tmp_path: Path, kind: RecordKind, names: str, writes: str
) -> None:
    with kind.over(open_store("memory", tmp_path / "s")) as store:
        assert _names_of(store) == " ".join(sorted(f"{names} {writes} {OF_EVERY_STORE}".split()))
        more = "plain" if kind.kind.startswith("timestamped-key-value") else ""
        assert _names_of(store.read_only()) == " ".join(sorted(f"{names} {more} {OF_EVERY_VIEW}".split()))


@pytest.mark.parametrize("text", ["disk", "DISK", "Disk"])
def test_a_level_may_be_given_as_text(tmp_path: Path, text: Any) -> None:
    with open_store("sqlite", tmp_path / "opened", durability=text) as store:
        assert store.durability is Durability.DISK
    levels: dict[str, Any] = {"isolation_level": "read_uncommitted", "processing_guarantee": "EXACTLY_ONCE"}
    config = StoreConfig("sqlite", durability=text, **levels)
    assert config.durability is Durability.DISK
    assert config.isolation_level is IsolationLevel.READ_UNCOMMITTED
    assert config.processing_guarantee is ProcessingGuarantee.EXACTLY_ONCE
    assert config == StoreConfig(
        "sqlite",
        Durability.DISK,
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
        processing_guarantee=ProcessingGuarantee.EXACTLY_ONCE,
    )
    with config.open(tmp_path / "configured") as store:
        assert store.durability is Durability.DISK
        assert store.read_only("read_committed").isolation_level is IsolationLevel.READ_COMMITTED  # type: ignore[arg-type]
    with SqliteChangelog(tmp_path / "log.sqlite", text) as log:
        log.create_topic("t")


@pytest.mark.parametrize("wrong", ["disc", "", 5, None])
def test_what_is_no_level_is_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(ValueError):
        open_store("sqlite", tmp_path / "s", durability=wrong)
    with pytest.raises(ValueError):
        StoreConfig("sqlite", durability=wrong)
    with pytest.raises(ConfigError):
        SqliteChangelog(tmp_path / "log", wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_repr_says_what_an_object_is_and_in_which_state(tmp_path: Path) -> None:
    with SqliteChangelog(tmp_path / "log") as log, open_store("sqlite", tmp_path / "s", name="counts") as store:
        assert repr(log) == f"<SqliteChangelog {tmp_path / 'log'}, open>"
        assert repr(log.producer("p")) == "<BufferedProducer 'p', 0 records pending>"
        assert repr(store) == "<Store 'counts' of sqlite-indexed-batch, CHANGELOG, open>"
        assert repr(store.read_only()) == "<StoreReader of 'counts', READ_COMMITTED>"
        with store.read_only().snapshot() as snapshot:
            assert repr(snapshot) == "<StoreSnapshot of 'counts'>"
        typed = KeyValue(STR, STR).over(store)
        assert repr(typed) == f"<TypedKeyValueStore over {store!r}>"
        assert repr(typed.read_only()) == f"<TypedKeyValueView of {store.read_only()!r}>"
        pairs = store.all()
        assert repr(pairs) == "<StoreIterator, open>"
        pairs.close()
        assert repr(pairs) == "<StoreIterator, closed>"
    assert repr(store).endswith("closed>")
    assert repr(log).endswith("closed>")


def test_descriptions_and_budgets_show_what_they_were_made_of() -> None:
    assert repr(KeyValue(STR, JSON)) == "KeyValue(key=STR, value=JSON)"
    assert [repr(serde) for serde in (BYTES, INT64, FLOAT64)] == ["BYTES", "INT64", "FLOAT64"]
    assert repr(MemoryBudget(5_000)) == "<MemoryBudget of 5,000 bytes, 0 shares in use>"


def test_an_unknown_level_is_answered_with_all_of_them(tmp_path: Path) -> None:
    with open_store("memory", tmp_path) as store, pytest.raises(ValueError, match="READ_UNCOMMITTED, READ_COMMITTED"):
        store.read_only("read_uncommited")  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["memory", "rocksdb", "lmdb-native", "sqlite"])
def test_a_store_has_the_names_of_the_interface_and_no_others(tmp_path: Path, backend: str) -> None:
    with open_store(backend, tmp_path / "s") as store:
        assert _public_names(type(store)) == _public_names(KeyValueStore)
        with store.read_only(IsolationLevel.READ_COMMITTED).snapshot() as snapshot:
            assert _public_names(type(snapshot)) == _public_names(KeyValueSnapshot)
        for view in (store.read_only(), store.read_only(bound=PositionBound())):
            assert _public_names(type(view)) == _public_names(KeyValueView)


def imports(code: str) -> set[tuple[str, str]]:
    """Return the modules of the library from which Python code imports, each with a name."""
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    names = {(node.module or "", each.name) for node in nodes for each in node.names}
    return {(module, name) for module, name in names if module.startswith("stores")}


def test_a_module_declares_the_names_that_pages_and_examples_import_from_it() -> None:
    """So an editor shows these, and not what the module itself needs."""
    pages = [page for page in DOCS.glob("*.md") if page.name not in OF_AUTHORS]
    programs = [file for file in DOCS.glob("examples/**/*.py") if file.name not in OF_AUTHORS]
    blocks = [block for page in pages for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]
    imported = {each for code in (*blocks, *(file.read_text() for file in programs)) for each in imports(code)}
    assert len(imported) > 30
    assert {each for each in imported if each[1] not in getattr(import_module(each[0]), "__all__", ())} == set()


def _names_of(shown: object) -> str:
    return " ".join(sorted(name for name in dir(shown) if not name.startswith("_")))


def _public_names(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}
