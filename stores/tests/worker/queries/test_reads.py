"""Queries of stores of each kind: a key, pages of a range, pages of a prefix, in the types of the store."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from stores.records import Windowed
from stores.tasks import TaskContext
from stores.tests.worker.queries.stage import HERE, Stage


def test_a_key_has_its_value_and_the_answer_its_position(stage: Stage) -> None:
    stage.put("counts", ("apples", 3))
    reply = stage.ask("counts/get", key="apples")
    assert reply.status == 200
    assert reply.body == {
        "store": "counts",
        "partition": HERE,
        "isolation_level": "READ_COMMITTED",
        "position": {f"lines-{HERE}": 0},
        "key": "apples",
        "value": 3,
    }
    assert stage.ask("counts/get", key="pears").body["value"] is None


def test_answers_are_json_and_forbid_caching(stage: Stage) -> None:
    headers = stage.ask("counts/get", key="apples").headers
    assert headers["Content-Type"] == "application/json"
    assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("store", "record", "text", "key", "value"),
    [
        ("bytes", (b"k", b"v"), "k", "k", "v"),
        ("counts", ("näme/?&=+ ", -(2**63)), "näme/?&=+ ", "näme/?&=+ ", -(2**63)),
        ("visits", ("ann", {"page": ["home", 1.5, None]}, 7), "ann", "ann", {"page": ["home", 1.5, None]}),
        ("numbers", (-(2**63), "least"), str(-(2**63)), -(2**63), "least"),
        ("measures", (-0.5, float("inf")), "-0.5", -0.5, "Infinity"),
        ("measures", (float("-inf"), 1.0), "-Infinity", "-Infinity", 1.0),
        ("documents", ({"b": 1, "a": "x"}, b"v"), '{"b": 1, "a": "x"}', {"b": 1, "a": "x"}, "v"),
    ],
)
def test_keys_and_values_are_json_of_the_types_of_the_store(
    stage: Stage, store: str, record: tuple[object, ...], text: str, key: object, value: object
) -> None:
    stage.put(store, record)
    reply = stage.ask(f"{store}/get", key=text)
    assert (reply.status, reply.body["key"], reply.body["value"]) == (200, key, value)
    assert stage.ask(f"{store}/range").body["records"][0]["key"] == key


def test_a_timestamped_value_has_its_timestamp(stage: Stage) -> None:
    stage.put("visits", ("ann", 1, 7))
    assert stage.ask("visits/get", key="ann").body["timestamp_ms"] == 7
    assert stage.ask("visits/prefix", prefix="a").body["records"] == [{"key": "ann", "value": 1, "timestamp_ms": 7}]
    assert "timestamp_ms" not in stage.ask("visits/get", key="bob").body


def test_a_value_with_headers_has_them_in_their_order(stage: Stage) -> None:
    """Source: KIP-1356."""
    stage.put("traces", ("ann", 1, 7, (("trace", b"x"), ("none", None), ("trace", b""))), ("bob", 2, 8))
    headers = [{"name": "trace", "value": "x"}, {"name": "none", "value": None}, {"name": "trace", "value": ""}]
    ann = {"key": "ann", "value": 1, "timestamp_ms": 7, "headers": headers}
    assert stage.ask("traces/get", key="ann").body.items() >= ann.items()
    bob = {"key": "bob", "value": 2, "timestamp_ms": 8, "headers": []}
    assert stage.ask("traces/range").body["records"] == [ann, bob]
    stage.put("traces", ("cat", 3, 9, (("id", b"\xff"),)))
    refusal = stage.ask("traces/get", key="cat")
    assert (refusal.status, "header" in str(refusal.body)) == (400, True)
    coded = stage.ask("traces/get", key="cat", value_encoding="hex").body
    assert (coded["value"], coded["headers"]) == (3, [{"name": "id", "value": "ff"}])
    stage.put("headed", ("ann", 1, 10, 7, (("trace", b"x"),)), ("ann", 2, 20))
    window = {"key": "ann", "window_start_ms": 10, "window_end_ms": 1_010, "value": 1, "timestamp_ms": 7}
    headed = {**window, "headers": [{"name": "trace", "value": "x"}]}
    assert stage.ask("headed/range").body["records"][0] == headed
    assert stage.ask("headed/get", key="ann", window_start_ms=20).body["headers"] == []
    stage.put("sources", ("ann", 1.5, 10, (("trace", b"x"),)), ("ann", 2.5, 20))
    version = {"key": "ann", "value": 1.5, "timestamp_ms": 10, "valid_to_ms": 20}
    versions = stage.ask("sources/versions", key="ann").body["records"]
    assert versions[0] == {**version, "headers": [{"name": "trace", "value": "x"}]}
    assert (versions[1]["valid_to_ms"], versions[1]["headers"]) == (None, [])
    assert stage.ask("sources/get", key="ann", as_of_ms=19).body["headers"] == versions[0]["headers"]


@pytest.mark.parametrize("encoding", ["base64", "hex", "BASE64"])
def test_bytes_that_are_no_text_are_base64_or_hex(stage: Stage, encoding: str) -> None:
    key, value = bytes(range(256)), b"\xfb\xff\xfe"
    stage.put("bytes", (key, value))

    def text(data: bytes) -> str:
        return data.hex() if encoding == "hex" else base64.b64encode(data).decode()

    both = {"key_encoding": encoding, "value_encoding": encoding}
    reply = stage.ask("bytes/get", key=text(key), **both)
    assert (reply.body["key"], reply.body["value"]) == (text(key), text(value))
    assert stage.ask("bytes/range", **both).body["records"] == [{"key": text(key), "value": text(value)}]
    # Neither is UTF-8, and the answer says so, not a guess of the text.
    assert stage.ask("bytes/get", key=text(key), key_encoding=encoding).status == 400


def test_base64_may_have_the_alphabet_for_urls_and_no_padding(stage: Stage) -> None:
    stage.put("bytes", (b"\xfb\xff\xfe\xfb", b"v"))
    for text in ("+//++w==", "-__--w", "-__--w=="):
        assert stage.ask("bytes/get", key=text, key_encoding="base64").body["value"] == "v"


WORDS = [f"w{number:02}" for number in range(25)]


def records(store: str, words: Iterable[str]) -> list[tuple[object, object]]:
    """Records of these keys, in the types of the store."""
    return [(word.encode(), b"v") if store == "bytes" else (word, 1) for word in words]


def pages(stage: Stage, path: str, **parameters: object) -> list[list[str]]:
    """The keys of each page, until there is no next one."""
    pages: list[list[str]] = []
    cursor: dict[str, object] = {}
    while True:
        reply = stage.ask(path, **parameters, **cursor)
        assert reply.status == 200, reply.body
        pages.append(reply.keys)
        if reply.body["cursor"] is None:
            return pages
        cursor = {"cursor": reply.body["cursor"]}


BACKENDS = ["memory-indexed-batch", "rocksdb", "lmdb", "lmdb-native", "sqlite", "rocksdb-direct"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_pages_of_a_range_have_all_records_once_and_in_order(tmp_path: Path, backend: str) -> None:
    with Stage(tmp_path, backend) as stage:
        for store in ("bytes", "counts"):
            stage.put(store, *records(store, WORDS))
            assert pages(stage, f"{store}/range", limit=10) == [WORDS[:10], WORDS[10:20], WORDS[20:]]
            assert pages(stage, f"{store}/range", limit=25) == [WORDS]
            within = {"from": "w03", "to": "w12"}
            assert pages(stage, f"{store}/range", limit=7, **within) == [WORDS[3:10], WORDS[10:13]]
            assert pages(stage, f"{store}/range", **{"from": "w24x"}) == [[]]
            assert pages(stage, f"{store}/range", **{"from": "w12", "to": "w03"}) == [[]]


def test_pages_of_a_prefix_have_its_keys_alone(stage: Stage) -> None:
    for store in ("bytes", "counts"):
        stage.put(store, *records(store, ["a", *WORDS, "x"]))
        assert pages(stage, f"{store}/prefix", prefix="w1", limit=4) == [WORDS[10:14], WORDS[14:18], WORDS[18:20]]
        assert pages(stage, f"{store}/prefix", prefix="w1", limit=5) == [WORDS[10:15], WORDS[15:20]]
        assert pages(stage, f"{store}/prefix", prefix="v") == [[]]
        assert pages(stage, f"{store}/prefix", prefix="") == [["a", *WORDS, "x"]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_pages_in_descending_order_have_all_records_once(tmp_path: Path, backend: str) -> None:
    """Source: KIP-985."""
    down = WORDS[::-1]
    with Stage(tmp_path, backend) as stage:
        for store in ("bytes", "counts"):
            stage.put(store, *records(store, ["a", *WORDS, "x"]))
            asked = {"order": "descending", "limit": 10, "from": "w", "to": "wz"}
            assert pages(stage, f"{store}/range", **asked) == [down[:10], down[10:20], down[20:]]
            within = {**asked, "limit": 7, "from": "w03", "to": "w12"}
            assert pages(stage, f"{store}/range", **within) == [WORDS[12:5:-1], WORDS[5:2:-1]]
            whole = ["x", *down, "a"]
            assert pages(stage, f"{store}/range", order="descending", limit=26) == [whole[:26], whole[26:]]
            assert pages(stage, f"{store}/prefix", prefix="w1", limit=4, order="descending") == [
                WORDS[19:15:-1],
                WORDS[15:11:-1],
                WORDS[11:9:-1],
            ]
            assert pages(stage, f"{store}/prefix", prefix="", limit=100, order="descending") == [whole]
            assert pages(stage, f"{store}/prefix", prefix="v", order="descending") == [[]]


def test_a_cursor_of_the_other_order_is_refused(stage: Stage) -> None:
    stage.put("counts", *((word, 1) for word in WORDS))
    cursor = stage.ask("counts/range", limit=10).body["cursor"]
    assert stage.ask("counts/range", limit=10, cursor=cursor, order="descending").status == 400
    assert stage.ask("counts/range", limit=10, cursor=cursor, order="ascending").keys == WORDS[10:20]
    assert stage.ask("counts/range", order="down").status == 400
    assert stage.ask("counts/get", key="w01", order="descending").status == 400


def test_a_page_continues_after_the_last_one_despite_writes_in_between(stage: Stage) -> None:
    stage.put("counts", *((word, 1) for word in WORDS))
    first = stage.ask("counts/range", limit=10)
    stage.put("counts", ("w00x", 1), ("w09", None), ("w09x", 1), ("w10", None))
    second = stage.ask("counts/range", limit=10, cursor=first.body["cursor"])
    assert second.keys == ["w09x", *WORDS[11:20]]


def test_numbers_are_in_their_order(stage: Stage) -> None:
    stage.put("numbers", *((number, "x") for number in (5, -3, 0, 2**62, -(2**62))))
    assert stage.ask("numbers/range", **{"from": "-3", "to": "5"}).keys == [-3, 0, 5]


def test_a_prefix_of_keys_without_prefixes_is_refused(stage: Stage) -> None:
    for store in ("numbers", "documents", "clicks", "trips"):
        assert stage.ask(f"{store}/prefix", prefix="1").status == 400, store


def test_windows_of_a_key_and_of_a_range(stage: Stage) -> None:
    # Two values of one key and window: pages end between them.
    clicks = [("a", 1, 0), ("a", 2, 5_000), ("a", 3, 5_000), ("b", 4, 0), ("b", 5, 9_000)]
    stage.put("clicks", *clicks)
    assert stage.ask("clicks/get", key="a", window_start_ms=5_000).body["value"] == 3
    assert stage.ask("clicks/get", key="a", window_start_ms=1).body["value"] is None
    [first, *_] = stage.ask("clicks/range").body["records"]
    assert first == {"key": "a", "window_start_ms": 0, "window_end_ms": 1_000, "value": 1}
    for limit in (1, 2, 3, 5):
        values: list[int] = []
        cursor: dict[str, object] = {}
        while True:
            body = stage.ask("clicks/range", limit=limit, **cursor).body
            values += [record["value"] for record in body["records"]]
            if body["cursor"] is None:
                break
            cursor = {"cursor": body["cursor"]}
        assert values == [1, 2, 3, 4, 5]
        assert descending_values(stage, limit) == [5, 4, 3, 2, 1]
    within = stage.ask("clicks/range", start_ms=1, end_ms=8_999, **{"from": "a", "to": "a"}).body["records"]
    assert [record["value"] for record in within] == [2, 3]
    assert descending_values(stage, 1, start_ms=1, end_ms=8_999, **{"from": "a", "to": "a"}) == [3, 2]


def descending_values(stage: Stage, limit: int, **parameters: object) -> list[int]:
    values: list[int] = []
    cursor: dict[str, object] = {}
    while True:
        body = stage.ask("clicks/range", limit=limit, order="descending", **parameters, **cursor).body
        values += [record["value"] for record in body["records"]]
        if body["cursor"] is None:
            return values
        cursor = {"cursor": body["cursor"]}


def test_sessions_of_a_key_and_of_a_range(stage: Stage) -> None:
    def put(context: TaskContext) -> None:
        store = context.store("trips")
        for key, start_ms, end_ms, value in (("a", 0, 10, "x"), ("a", 20, 30, "y"), ("b", 5, 50, "z")):
            store.put(Windowed(key, start_ms, end_ms), value, 99)

    stage.process(put)
    stage.task.commit()
    body = stage.ask("trips/get", key="a", start_ms=20, end_ms=30).body
    assert (body["value"], body["timestamp_ms"]) == ("y", 99)
    assert stage.ask("trips/get", key="a", start_ms=20, end_ms=31).body["value"] is None
    assert stage.ask("trips/range").body["records"][1] == {
        "key": "a",
        "session_start_ms": 20,
        "session_end_ms": 30,
        "value": "y",
        "timestamp_ms": 99,
    }
    assert pages(stage, "trips/range", limit=1) == [["a"], ["a"], ["b"]]
    down = [stage.ask("trips/range", order="descending", limit=limit).body["records"] for limit in (2, 3)]
    assert [[record["value"] for record in records] for records in down] == [["z", "y"], ["z", "y", "x"]]
    assert pages(stage, "trips/range", limit=1, order="descending") == [["b"], ["a"], ["a"]]
    late = stage.ask("trips/range", earliest_end_ms=30, latest_start_ms=5)
    assert late.keys == ["b"]


def test_versions_of_a_key_by_time_and_in_pages(stage: Stage) -> None:
    stage.put("prices", ("a", 1.0, 100), ("a", 3.0, 300), ("a", 2.0, 200), ("a", None, 400), ("b", 9.0, 350))
    assert stage.ask("prices/get", key="b").body["timestamp_ms"] == 350
    found = [stage.ask("prices/get", key="a", as_of_ms=at).body for at in (99, 100, 250, 399)]
    assert [body["value"] for body in found] == [None, 1.0, 2.0, 3.0]
    assert found[2]["timestamp_ms"] == 200
    assert stage.ask("prices/get", key="a").body["value"] is None
    assert stage.ask("prices/range").keys == stage.ask("prices/prefix", prefix="b").keys == ["b"]
    versions = [
        {"key": "a", "value": 1.0, "timestamp_ms": 100, "valid_to_ms": 200},
        {"key": "a", "value": 2.0, "timestamp_ms": 200, "valid_to_ms": 300},
        {"key": "a", "value": 3.0, "timestamp_ms": 300, "valid_to_ms": 400},
    ]
    assert stage.ask("prices/versions", key="a").body["records"] == versions
    assert stage.ask("prices/versions", key="a", from_ms=200, to_ms=299).body["records"] == versions[1:2]
    assert stage.ask("prices/versions", key="b").body["records"][0]["valid_to_ms"] is None
    assert stage.ask("prices/versions", key="c").body["records"] == []
    for order in ("ascending", "descending"):
        for limit in (1, 2, 3):
            records: list[Any] = []
            cursor: dict[str, object] = {}
            while not records or cursor:
                body = stage.ask("prices/versions", key="a", order=order, limit=limit, **cursor).body
                assert len(body["records"]) <= limit
                records += body["records"]
                cursor = {} if body["cursor"] is None else {"cursor": body["cursor"]}
            assert records == (versions if order == "ascending" else versions[::-1])
    stage.put("prices", ("c", 1.0, 500))
    assert pages(stage, "prices/range", order="descending", limit=1) == [["c"], ["b"]]
    assert pages(stage, "prices/prefix", prefix="b", order="descending") == [["b"]]


def test_versions_are_asked_of_versioned_stores_in_an_order_that_there_is(stage: Stage) -> None:
    assert stage.ask("counts/versions", key="a").status == 400
    assert stage.ask("prices/versions", key="a", order="up").status == 400
    assert stage.ask("prices/versions").status == 400
    assert stage.ask("prices/versions", key="").status == 400
    assert stage.ask("prices/get", key="a", as_of_ms="now").status == 400
