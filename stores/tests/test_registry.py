"""Names, levels and options: what the registry and a configuration accept, and what they answer otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stores import ConfigError, Durability, IsolationLevel, open_store
from stores.config import StoreConfig
from stores.failpoints import declared
from stores.registry import StoreBackend, backend_named, backends
from stores.tests.minimal_store import Direct, DirectWithOffsets

OURS = {
    "rocksdb-direct", "rocksdb-indexed-batch", "rocksdb-dual-store", "lmdb-indexed-batch", "lmdb-native",
    "sqlite-indexed-batch", "sqlite-native", "memory-indexed-batch",
}  # fmt: skip


def test_every_backend_is_a_pair_of_an_engine_and_a_strategy() -> None:
    assert set(backends()) >= OURS
    for name in OURS:
        backend = backends()[name]
        assert name == backend.name == f"{backend.engine}-{backend.strategy}"
        assert backend.durabilities
        assert backend.failpoints
        assert set(backend.failpoints) <= set(declared())


def test_what_a_class_declares_may_be_an_attribute_or_a_property_that_is_a_constant() -> None:
    class WithProperties(Direct):
        @property
        def transactional(self) -> bool:
            return self.persistent

        @property
        def manages_offsets(self) -> bool:
            return True

    class WithFailpoints(DirectWithOffsets):
        failpoints = ("restore.before_write",)
        bounded_memory = False

    properties = StoreBackend("theirs", load_store=lambda: WithProperties)
    assert (properties.persistent, properties.transactional, properties.manages_offsets) == (True, True, True)
    assert (properties.bounded_memory, properties.failpoints) == (True, ())
    attributes = StoreBackend("theirs", load_store=lambda: WithFailpoints)
    assert (attributes.persistent, attributes.transactional, attributes.manages_offsets) == (True, False, True)
    assert (attributes.bounded_memory, attributes.failpoints) == (False, ("restore.before_write",))


@pytest.mark.parametrize(("name", "bounded"), [("lmdb-native", False), ("sqlite-native", True), ("lmdb", True)])
def test_a_backend_declares_whether_a_transaction_may_be_larger_than_memory(name: str, bounded: bool) -> None:
    assert backend_named(name).bounded_memory is bounded


def test_an_engine_s_name_alone_means_its_indexed_batch(path: Path) -> None:
    for engine in ("rocksdb", "lmdb", "sqlite", "memory"):
        assert backend_named(engine).name == f"{engine}-indexed-batch"
        with open_store(engine, path.with_name(engine)) as store:
            assert store.backend == f"{engine}-indexed-batch"


@pytest.mark.parametrize(
    ("given", "nearest"), [("rocksdb-indexedbatch", "rocksdb-indexed-batch"), ("sqllite", "sqlite-indexed-batch")]
)
def test_an_unknown_backend_is_answered_with_the_nearest(path: Path, given: str, nearest: str) -> None:
    with pytest.raises(ConfigError) as error:
        open_store(given, path)
    assert nearest in str(error.value)
    assert not path.exists()


@pytest.mark.parametrize("bad", [None, 5, b"lmdb", Path("lmdb")])
def test_a_name_that_is_no_text_is_a_type_error(path: Path, bad: Any) -> None:
    with pytest.raises(TypeError):
        open_store(bad, path)


@pytest.mark.parametrize("bad", [None, 5, b"path"])
def test_a_path_that_is_none_is_a_type_error(bad: Any) -> None:
    with pytest.raises(TypeError):
        open_store("lmdb", bad)


def test_kafka_s_own_property_names_configure_a_store(path: Path) -> None:
    """Source: KIP-892, "New configuration"; KIP-844, ``enable.transactional.statestores``."""
    config = StoreConfig.from_properties(
        {
            "default.state.isolation.level": "read_committed",
            "statestore.uncommitted.max.bytes": "1048576",
            "store.backend": "lmdb",
            "store.durability": "process",
            "store.option.map_size_bytes": "1048576",
            "store.option.scan_checksums": "false",
        }
    )
    assert config.isolation_level is IsolationLevel.READ_COMMITTED
    assert config.uncommitted_max_bytes == 1 << 20
    assert config.durability is Durability.PROCESS
    assert config.options == {"map_size_bytes": 1 << 20, "scan_checksums": False}
    with config.open(path, name="counts") as store:
        assert (store.name, store.backend, store.durability) == ("counts", "lmdb-indexed-batch", Durability.PROCESS)
    assert StoreConfig.from_properties({}) == StoreConfig()
    assert StoreConfig.from_properties({"enable.transactional.statestores": False}).backend == "rocksdb-direct"


@pytest.mark.parametrize(
    "properties",
    [
        {"statestore.uncommitted.max.byte": "1"},
        {"statestore.uncommitted.max.bytes": "many"},
        {"statestore.uncommitted.max.bytes": "-2"},
        {"default.state.isolation.level": "SERIALIZABLE"},
        {"store.durability": "FOREVER"},
        {"store.backend": "leveldb"},
        {"store.backend": "memory-indexed-batch", "store.durability": "DISK"},
        {"store.option.no_such": "1"},
        {"store.backend": "lmdb", "store.option.map_size_bytes": "large"},
        {"enable.transactional.statestores": "perhaps"},
        {"enable.transactional.statestores": "false", "store.backend": "lmdb"},
    ],
    ids=str,
)
def test_a_property_that_does_not_exist_or_fit_is_refused(properties: dict[str, str | int | bool]) -> None:
    with pytest.raises(ConfigError):
        StoreConfig.from_properties(properties)


@pytest.mark.parametrize("given", ["rocks", "rocksdbb", "rocksd", "rocksdb-", "rocksdb_indexed_batch"])
def test_a_store_without_isolation_is_suggested_only_if_named(path: Path, given: str) -> None:
    with pytest.raises(ConfigError) as error:
        open_store(given, path)
    suggestion = str(error.value).split(";")[0]
    assert "did you mean 'rocksdb" in suggestion
    assert "direct" not in suggestion
    assert "lmdb, memory, rocksdb, sqlite alone mean the indexed batch" in str(error.value)
    with pytest.raises(ConfigError, match="did you mean 'rocksdb-direct'"):
        open_store("rocksdb-dierct", path)
    assert not path.exists()


def test_an_unknown_property_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as error:
        StoreConfig.from_properties({"statestore.uncommited.max.bytes": 1})
    assert "statestore.uncommitted.max.bytes" in str(error.value)


def test_an_isolation_level_may_be_given_as_text(path: Path) -> None:
    with open_store("memory-indexed-batch", path, isolation_level="READ_UNCOMMITTED") as store:
        store.put(b"key", b"staged")
        assert store.read_only().get(b"key") == b"staged"


def test_an_isolation_level_that_does_not_exist_is_refused(path: Path) -> None:
    bad: Any = "SERIALIZABLE"
    with pytest.raises(ConfigError):
        open_store("memory-indexed-batch", path, isolation_level=bad)
    with pytest.raises(ConfigError):
        StoreConfig(isolation_level=bad)


@pytest.mark.parametrize("option", ["rocksdb-indexed-batch:write_buffer_size_bytes", "lmdb:map_size_bytes"])
def test_an_option_beyond_what_an_engine_can_count_is_refused(path: Path, option: str) -> None:
    backend, name = option.split(":")
    with pytest.raises(ConfigError):
        open_store(backend, path, options={name: 1 << 63})
    assert not path.exists()


@pytest.mark.parametrize("bad", [[1], "text", 5, {5: 1}])
def test_options_that_are_no_mapping_of_names_are_a_type_error(path: Path, bad: Any) -> None:
    with pytest.raises(TypeError):
        open_store("lmdb", path, options=bad)
    with pytest.raises(TypeError):
        StoreConfig("lmdb", options=bad)
    assert not path.exists()


@pytest.mark.parametrize("bad", [None, [], "text", 5, {5: 1}])
def test_properties_that_are_no_mapping_of_names_are_a_type_error(bad: Any) -> None:
    with pytest.raises(TypeError):
        StoreConfig.from_properties(bad)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"options": None}, TypeError),
        ({"backend": None}, TypeError),
        ({"uncommitted_max_bytes": "1"}, TypeError),
        ({"uncommitted_max_bytes": 1.5}, TypeError),
        ({"uncommitted_max_bytes": True}, TypeError),
        ({"uncommitted_max_bytes": -2}, ConfigError),
        ({"durability": "FOREVER"}, ConfigError),
        ({"durability": []}, ConfigError),
        ({"processing_guarantee": "at_most_once"}, ConfigError),
        ({"backend": "sqlite", "options": {"wal_autocheckpoint_pages": 1 << 31}}, ConfigError),
        ({"backend": "lmdb", "options": {"max_readers": 1 << 40}}, ConfigError),
        ({"backend": "lmdb", "options": {"max_readers": 0}}, ConfigError),
        ({"backend": "rocksdb-direct", "options": {"max_write_buffer_number": 1 << 40}}, ConfigError),
    ],
    ids=str,
)
def test_a_configuration_that_does_not_fit_is_refused_when_it_is_made(
    wrong: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        StoreConfig(**wrong)


@pytest.mark.parametrize("backend", sorted(OURS))
@pytest.mark.parametrize("name", ["nul\0", "lone \ud800", "escaped \udcff"])
def test_text_that_is_no_path_is_refused_and_nothing_is_made(path: Path, backend: str, name: str) -> None:
    with pytest.raises(ConfigError):
        open_store(backend, path.with_name(name))
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("backend", sorted(OURS))
def test_a_store_stays_the_same_when_the_process_goes_to_another_folder(
    path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    with open_store(backend, path.name) as store:
        monkeypatch.chdir("/")
        store.put(b"key", b"value")
        store.commit()
        store.persist()
        assert list(store.read_only().all()) == [(b"key", b"value")]
    assert path.exists() is backends()[backend].persistent


def test_a_store_s_name_is_text(path: Path) -> None:
    bad: Any = 5
    with pytest.raises(TypeError):
        open_store("memory-indexed-batch", path, name=bad)


def test_readers_see_committed_data_under_exactly_once_unless_configured_otherwise(path: Path) -> None:
    """Source: KIP-892, "Proposed Changes", default of ``default.state.isolation.level``."""
    exactly_once, level = {"processing.guarantee": "exactly_once_v2"}, "default.state.isolation.level"
    expected = {
        (): IsolationLevel.READ_UNCOMMITTED,
        (("processing.guarantee", "at_least_once"),): IsolationLevel.READ_UNCOMMITTED,
        tuple(exactly_once.items()): IsolationLevel.READ_COMMITTED,
        (*exactly_once.items(), (level, "read_uncommitted")): IsolationLevel.READ_UNCOMMITTED,
        ((level, "READ_COMMITTED"),): IsolationLevel.READ_COMMITTED,
        (("default.interactive.query.isolation.level", "read_committed"),): IsolationLevel.READ_COMMITTED,
    }
    for told, seen in expected.items():
        config = StoreConfig.from_properties({**dict(told), "store.backend": "memory-indexed-batch"})
        assert config.readers_level is seen
        with config.open(path) as store:
            assert store.read_only().isolation_level is seen


def test_two_names_of_one_setting_must_agree() -> None:
    names = ("default.state.isolation.level", "default.interactive.query.isolation.level")
    told = dict.fromkeys(names, "READ_COMMITTED")
    assert StoreConfig.from_properties(told).isolation_level is IsolationLevel.READ_COMMITTED
    with pytest.raises(ConfigError):
        StoreConfig.from_properties({**told, names[1]: "READ_UNCOMMITTED"})


@pytest.mark.parametrize("path", ["", "a\0b", "\udcff"])
def test_a_text_that_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="path"):
        open_store("memory", path)
