"""Queries that are wrong, hostile, or asked at the wrong worker: a status of 4xx or 503 and a sentence, and no data."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stores.errors import (
    ChangelogError,
    ChangelogTimeoutError,
    ProducerFencedError,
    StoreClosedError,
    StoreCorruptedError,
    StoreRestoringError,
)
from stores.interface import TopicPartition
from stores.records import Windowed
from stores.tests.json_values import JSON_VALUES
from stores.tests.worker.queries.asking import Reply, call
from stores.tests.worker.queries.stage import ADDRESS, HERE, KINDS, MOVING, OTHER, THERE, Stage
from stores.worker.queries import access
from stores.worker.queries.parameters import shortened
from stores.worker.queries.store_queries import LIMIT_MAX


def check_refused(reply: Reply, status: int, *words: str) -> None:
    assert reply.status == status, reply.body
    for word in words:
        assert word in reply.body["error"]
    assert "Traceback" not in json.dumps(reply.body)


def fields_of(cursor: str) -> Any:
    """Return what a cursor holds."""
    return json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))


def cursor_of(fields: object) -> str:
    """Return a cursor that holds ``fields``."""
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode()


def test_an_unknown_store_is_refused_with_the_nearest_one(stage: Stage) -> None:
    for path in ("cuonts", "cuonts/get", "cuonts/range", "cuonts/prefix"):
        check_refused(stage.ask_plainly(path), 404, "cuonts", "did you mean 'counts'")
    for name in ("..", "%2e%2e", "counts\n", "x" * 100_000):
        check_refused(stage.ask_plainly(f"{name}/get", "key=a"), 404)


def test_paths_and_methods_that_are_none_are_refused_as_json(stage: Stage) -> None:
    check_refused(call(stage.application, "/"), 404, "/stores")
    check_refused(call(stage.application, "/stores/counts/get/more"), 404, "/stores")
    refusal = call(stage.application, "/stores/counts/get", "key=a", method="POST")
    check_refused(refusal, 405, "GET")
    assert "GET" in refusal.headers["Allow"]


@pytest.mark.parametrize(
    ("path", "query", "words"),
    [
        ("counts/get", "", ["'key'", "missing"]),
        ("counts/get", "key=a&kye=b", ["'kye'", "did you mean 'key'"]),
        ("counts/get", "key=a&limit=1", ["'limit'"]),
        ("counts/get", "key=a&key=b", ["'key'", "2 times"]),
        ("counts/get", "key=", ["1 byte"]),
        ("counts/get", "key=a&isolation_level=dirty", ["'dirty'", "READ_COMMITTED"]),
        ("counts/get", "key=a&isolation_level=", ["isolation level"]),
        ("counts/get", "key=%ff", ["UTF-8"]),
        ("counts/get", "key=\xe4", ["ASCII"]),
        ("counts/get", "key", ["NAME=VALUE"]),
        ("counts/get", "&".join(["key=a"] * 100), ["NAME=VALUE"]),
        ("counts/get", "key=a&bound=lines-1", ["TOPIC-PARTITION:OFFSET"]),
        ("counts/get", "key=a&bound=lines-1:-4", ["'bound'"]),
        ("counts/get", "key=a&bound=lines-1:99999999999999999999", ["'bound'"]),
        ("counts/get", "key=a&bound=lnies-1:4", ["'lnies'", "lines"]),
        ("counts/get", "key=a&wait_ms=3600000", ["'wait_ms'", "30000"]),
        ("counts/get", "key=a&partition=-1", ["'partition'"]),
        ("counts/get", "key=a&partition=one", ["'partition'"]),
        ("counts/get", "key=a&key_encoding=utf-16", ["'key_encoding'", "base64"]),
        ("counts/get", "key=a&value_encoding=", ["'value_encoding'"]),
        ("bytes/get", "key=a&key_encoding=base64", ["'key'", "base64"]),
        ("bytes/get", "key=%2B%2F%2F%2B+&key_encoding=base64", ["'key'", "%2B"]),
        ("bytes/get", "key=YQ%3D%3DYQ&key_encoding=base64", ["'key'", "base64"]),
        ("bytes/get", "key=abc&key_encoding=hex", ["'key'", "hex"]),
        ("bytes/get", "key=ab+cd&key_encoding=hex", ["'key'", "hex"]),
        ("numbers/get", "key=one", ["'key'", "int64"]),
        ("numbers/get", f"key={2**63}", ["'key'", "int64"]),
        ("numbers/get", "key=" + "9" * 10_000, ["'key'", "int64"]),
        ("measures/get", "key=nan", ["'key'", "float64"]),
        ("documents/get", "key={", ["'key'", "json"]),
        ("documents/get", "key=null", ["'key'", "json"]),
        ("documents/get", "key=NaN", ["'key'", "json"]),
        ("documents/get", "key=" + "[" * 50_000, ["'key'", "json"]),
        ("clicks/get", "key=a", ["'window_start_ms'"]),
        ("clicks/get", f"key=a&window_start_ms={2**62}", ["'window_start_ms'"]),
        ("clicks/get", "key=a&window_start_ms=-", ["'window_start_ms'"]),
        ("clicks/range", f"start_ms=0&end_ms={2**62}", ["'end_ms'"]),
        ("counts/range", "limit=-1", ["'limit'"]),
        ("counts/range", "limit=0", ["'limit'"]),
        ("counts/range", f"limit={LIMIT_MAX + 1}", ["'limit'", str(LIMIT_MAX)]),
        ("counts/range", "limit=1e3", ["'limit'"]),
        ("counts/range", "cursor=", ["cursor"]),
        ("counts/range", "cursor=%00%ff", ["UTF-8"]),
        ("counts/range", "cursor=abc", ["cursor"]),
        ("numbers/range", "from=a", ["'from'"]),
        ("numbers/range", "to=", ["'to'"]),
        ("counts/prefix", "", ["'prefix'", "missing"]),
    ],
)
def test_a_parameter_that_does_not_fit_is_refused_by_its_name(
    stage: Stage, path: str, query: str, words: list[str]
) -> None:
    full_query = query if "partition" in query else f"{query}&partition={HERE}".lstrip("&")
    check_refused(stage.ask_plainly(path, full_query), 400, *words)


def test_a_partition_that_is_not_there_is_refused_and_a_missing_one_is_asked_for(stage: Stage) -> None:
    check_refused(stage.ask_plainly("counts/get", "key=a&partition=4"), 404, "0 to 3")
    check_refused(stage.ask_plainly("counts/get", "key=a"), 400, "'partition'", "query.partitioner")
    check_refused(stage.ask_plainly("counts/range"), 400, "'partition'")


def test_a_cursor_of_another_query_is_refused(stage: Stage) -> None:
    stage.put("counts", *((f"w{number}", number) for number in range(9)))
    cursor = stage.ask("counts/range", limit=2, **{"from": "w1"}).body["cursor"]
    assert stage.ask("counts/range", limit=5, cursor=cursor, **{"from": "w1"}).keys == [f"w{n}" for n in range(3, 8)]
    for path, parameters in (
        ("counts/range", {}),
        ("counts/range", {"from": "w1", "to": "w5"}),
        ("counts/range", {"from": "w1", "partition": THERE}),
        ("counts/prefix", {"prefix": "w1"}),
        ("visits/range", {"from": "w1"}),
    ):
        check_refused(stage.ask(path, cursor=cursor, **parameters), 400, "cursor")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    name=st.sampled_from(sorted(KINDS)),
    key=st.text(max_size=30) | st.integers().map(str) | st.floats().map(str) | JSON_VALUES.map(json.dumps),
    encoding=st.sampled_from(["utf-8", "base64", "hex"]) | st.text(max_size=8),
)
def test_a_key_of_any_text_is_taken_or_refused(stage: Stage, name: str, key: str, encoding: str) -> None:
    for parameter in ("from", "to"):
        reply = stage.ask(f"{name}/range", **{parameter: key, "key_encoding": encoding})
        assert reply.status in (200, 400), reply.body


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_cursor_of_any_structure_is_taken_or_refused(stage: Stage, data: st.DataObject) -> None:
    records: dict[str, list[tuple[Any, ...]]] = {
        "documents": [(["a"], b"x"), (["b"], b"x")],
        "numbers": [(1, "x"), (2, "x")],
        "clicks": [("a", 1, 20), ("b", 1, 20)],
        "trips": [(Windowed("a", 20, 30), 1), (Windowed("b", 20, 30), 1)],
        "prices": [("a", 1.0, 20), ("a", 1.0, 30), ("b", 1.0, 20)],
    }
    name = data.draw(st.sampled_from(sorted(records)))
    query = data.draw(st.sampled_from(["range", "versions"])) if name == "prices" else "range"
    of_key = {"key": "a"} if query == "versions" else {}
    stage.put(name, *records[name])
    cursor = stage.ask(f"{name}/{query}", limit=1, **of_key).body["cursor"]
    fingerprint, key, *_ = fields_of(cursor)
    forged = data.draw(
        JSON_VALUES
        | st.lists(JSON_VALUES, max_size=3).map(lambda rest: [fingerprint, *rest])
        | st.lists(JSON_VALUES, max_size=3).map(lambda times: [fingerprint, key, *times])
        | st.lists(st.integers(-1, 1 << 64), max_size=3).map(lambda times: [fingerprint, key, *times])
        | st.binary(max_size=8).map(lambda other: [fingerprint, other.hex(), 20, 0])
    )
    reply = stage.ask(f"{name}/{query}", cursor=cursor_of(forged), **of_key)
    assert reply.status in (200, 400), reply.body


def test_a_forged_cursor_is_refused(stage: Stage) -> None:
    stage.put("numbers", *((number, "x") for number in range(9)))
    cursor = stage.ask("numbers/range", limit=2).body["cursor"]
    fields = fields_of(cursor)
    assert len(fields) == 2
    forgeries: list[object] = [
        [fields[0], "00"],
        [*fields, 1],
        [fields[0], None],
        fields[0],
        {},
        [fields[0], "0" * 4_000],
    ]
    for forged in forgeries:
        check_refused(stage.ask("numbers/range", limit=2, cursor=cursor_of(forged)), 400, "cursor")


@pytest.mark.parametrize("backend", ["memory-indexed-batch", "rocksdb", "lmdb", "lmdb-native", "sqlite"])
def test_a_key_longer_than_any_of_the_engine_is_not_there(tmp_path: Path, backend: str) -> None:
    with Stage(tmp_path, backend) as stage:
        stage.put("counts", ("a", 1))
        for level in ("read_committed", "read_uncommitted"):
            long = "a" * 60_000
            assert stage.ask("counts/get", key=long, isolation_level=level).body["value"] is None
            assert stage.ask("counts/range", isolation_level=level, **{"from": long}).keys == []
            assert stage.ask("counts/range", isolation_level=level, to=long).keys == ["a"]
            assert stage.ask("counts/prefix", isolation_level=level, prefix=long).keys == []


def test_a_partition_of_another_worker_is_redirected_there(stage: Stage) -> None:
    for path, parameters in (("counts/get", {"key": "ä&="}), ("counts/range", {"from": "a", "limit": 3})):
        reply = stage.ask(path, partition=THERE, **parameters)
        check_refused(reply, 307, OTHER)
        assert (reply.body["instance"], reply.body["partition"]) == (OTHER, THERE)
        where, _, query = reply.headers["Location"].partition("?")
        assert where == f"http://{OTHER}/stores/{path}"
        assert sorted(query.split("&")) == sorted(
            [f"partition={THERE}", *{"get": ["key=%C3%A4%26%3D"], "range": ["from=a", "limit=3"]}[path[7:]]]
        )


def test_a_partition_that_moves_or_is_restored_is_to_be_asked_for_again(stage: Stage) -> None:
    for partition, word in ((MOVING, "moving"), (0, "25%")):
        reply = stage.ask("counts/get", key="a", partition=partition)
        check_refused(reply, 503, word)
        assert reply.headers["Retry-After"] == "1"


def test_the_group_is_asked_once_in_a_while(stage: Stage) -> None:
    for _ in range(20):
        stage.ask("counts/get", key="a", partition=THERE)
    assert stage.member.asked == 1


def test_a_worker_that_is_not_in_the_group_yet_says_so(stage: Stage) -> None:
    stage.instances._member = None
    check_refused(stage.ask("counts/get", key="a", partition=THERE), 503, "joined")


@pytest.mark.parametrize(
    ("partitioner", "key", "partition"), [("murmur2", "apples", 2), ("consistent", "apples", 3), ("murmur2", "be", 0)]
)
def test_the_partition_of_a_key_is_that_of_the_partitioner(
    tmp_path: Path, partitioner: str, key: str, partition: int
) -> None:
    with Stage(tmp_path, partitioner=partitioner) as stage:
        reply = stage.ask_plainly("counts/get", f"key={key}")
        assert reply.body["partition"] == partition
        check_refused(stage.ask_plainly("counts/range"), 400, "'partition'")


def test_the_stores_and_their_partitions_are_listed(stage: Stage) -> None:
    index = call(stage.application, "/stores").body
    assert (index["application"], index["instance"]) == ("app", str(ADDRESS))
    assert "counts" in index["stores"]
    store = stage.ask_plainly("visits").body
    assert (store["kind"], store["key"], store["value"]) == ("timestamped-key-value", "str", "json")
    assert store["partitions"] == [
        {"partition": 0, "instance": str(ADDRESS), "state": "restoring"},
        {"partition": HERE, "instance": str(ADDRESS), "state": "running"},
        {"partition": THERE, "instance": OTHER},
        {"partition": MOVING, "instance": None},
    ]


class FailingTask:
    """A task whose views raise."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def store(self, *_: object) -> Any:
        raise self._error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StoreRestoringError("it is restoring"), 503),
        (StoreClosedError("it is closed"), 503),
        (ProducerFencedError("it is fenced"), 503),
        (StoreCorruptedError("it is corrupt"), 500),
    ],
)
def test_an_error_of_the_store_is_its_sentence(stage: Stage, error: Exception, status: int) -> None:
    task, stage.task = stage.task, FailingTask(error)
    try:
        check_refused(stage.ask("counts/get", key="a"), status, str(error))
    finally:
        stage.task = task


@pytest.mark.parametrize(("error", "status"), [(ChangelogTimeoutError("no answer"), 503), (ChangelogError("no"), 500)])
def test_an_error_of_the_group_is_its_sentence(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    def failing() -> dict[TopicPartition, str]:
        raise error

    monkeypatch.setattr(stage.member, "addresses", failing)
    check_refused(stage.ask("counts/get", key="a", partition=THERE), status, str(error))


@pytest.mark.parametrize(
    "wrong",
    ["", "8080", "host", "host:0", "host:99999", "evil.example:80/path", "a:1\r\nSet-Cookie: x:2", "0.0.0.0:80"],
)
def test_clients_are_not_redirected_to_an_invalid_address(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, wrong: str
) -> None:
    """Another program may have joined the group, or written the file of a member."""
    monkeypatch.setattr(access, "FRESH_S", 0.0)
    monkeypatch.setattr(stage.member, "addresses", lambda: {TopicPartition("lines", THERE): wrong})
    for _ in range(2):
        check_refused(stage.ask("counts/get", key="a", partition=THERE), 503, "no worker that answers queries")
    assert [record.args for record in caplog.records if record.levelno == logging.WARNING] == [(wrong,)]


def test_queries_that_find_the_group_silent_do_not_each_wait_for_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would keep all threads of the server, also from stores that are here."""
    calls = []

    def silent() -> dict[TopicPartition, str]:
        calls.append(THERE)
        raise ChangelogTimeoutError("no answer")

    monkeypatch.setattr(stage.member, "addresses", silent)
    monkeypatch.setattr(access, "FRESH_S", 3_600.0)
    for _ in range(20):
        check_refused(stage.ask("counts/get", key="a", partition=THERE), 503, "no answer")
    assert len(calls) == 1
    monkeypatch.undo()
    monkeypatch.setattr(access, "FRESH_S", 0.0)
    assert stage.ask("counts/get", key="a", partition=THERE).status == 307


def test_another_exception_stays_in_the_log(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    task, stage.task = stage.task, FailingTask(RuntimeError("an inner secret"))
    try:
        with caplog.at_level(logging.ERROR):
            reply = stage.ask("counts/get", key="a")
    finally:
        stage.task = task
    check_refused(reply, 500, "log")
    assert "secret" not in json.dumps(reply.body)
    assert "an inner secret" in caplog.text


def test_a_name_of_another_site_is_refused_on_loopback(stage: Stage) -> None:
    for host in ("127.0.0.1", "127.0.0.1:1", "localhost:1", "[::1]:1", "LOCALHOST"):
        assert call(stage.application, "/stores", host=host).status == 200, host
    for host in ("evil.example", "evil.example:1", "127.0.0.1.evil.example:1", ""):
        check_refused(call(stage.application, "/stores", host=host), 421)


class CountedView:
    """A view of endless records, which counts those that are taken, and the scans that are closed."""

    def __init__(self) -> None:
        self.taken = self.closed = 0

    def store(self, *_: object) -> CountedView:
        return self

    def snapshot(self) -> CountedView:
        return self

    def __enter__(self) -> CountedView:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed += 1

    def position(self) -> dict[TopicPartition, int]:
        return {}

    def range(self, start: str | None, end: str | None) -> CountedView:
        return self

    prefix_scan = range

    def __iter__(self) -> Iterator[tuple[str, int]]:
        while True:
            self.taken += 1
            yield f"w{self.taken:09}", 1


@pytest.mark.parametrize(("query", "most"), [("limit=10", 11), ("", 101), (f"limit={LIMIT_MAX}", LIMIT_MAX + 1)])
def test_a_page_takes_no_more_records_than_it_was_asked_for(stage: Stage, query: str, most: int) -> None:
    task, stage.task = stage.task, CountedView()
    try:
        reply = stage.ask("counts/range", query)
        assert (len(reply.keys), stage.task.taken) == (most - 1, most)
        # The scan and the snapshot.
        assert stage.task.closed == 2
    finally:
        stage.task = task


def test_a_page_of_large_values_ends_early(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stores.worker.queries.store_queries.PAGE_BYTES_MAX", 3_000)
    stage.put("bytes", *((b"%d" % number, b"x" * 1_000) for number in range(9)))
    first = stage.ask("bytes/range")
    assert first.keys == ["0", "1", "2"]
    assert stage.ask("bytes/range", cursor=first.body["cursor"]).keys == ["3", "4", "5"]


def test_a_text_from_outside_is_shown_up_to_80_characters() -> None:
    assert shortened("x" * 80) == repr("x" * 80)
    assert shortened("x" * 81) == f"{'x' * 80!r} and 1 more characters"
