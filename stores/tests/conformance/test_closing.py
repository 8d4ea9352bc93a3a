"""After ``close`` everything says that the store is closed; closing again is nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stores import IsolationLevel, KeyValueStore, StoreClosedError, TopicPartition
from stores.tests.conformance.cases import Case

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
