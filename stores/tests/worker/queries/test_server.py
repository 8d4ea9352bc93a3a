"""The server of queries: threads, slow clients, its end, and queries beside a task that commits."""

from __future__ import annotations

import http.client
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from stores.errors import ConfigError
from stores.tests.worker.queries.asking import TIMEOUT_S, ask
from stores.tests.worker.queries.stage import HERE, Stage
from stores.worker.queries import server
from stores.worker.queries.access import ServerAddress
from stores.worker.queries.server import CONNECTIONS_MAX, REQUEST_BYTES_MAX, THREADS, Listener, QueryServer

ANY = ServerAddress("127.0.0.1", 0)


@contextmanager
def served(application: Callable[..., Any]) -> Iterator[str]:
    """Serve an application on a free port, and yield the address."""
    listener = Listener(ANY)
    with QueryServer(application, listener):
        yield str(listener.address)


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_S)


def test_a_port_that_is_taken_is_refused_and_a_free_one_is_found() -> None:
    listener = Listener(ANY)
    with closing(listener.socket):
        assert listener.address.port > 0
        with pytest.raises(ConfigError, match="choose another"):
            Listener(listener.address)
    with pytest.raises(ConfigError, match="choose another"):
        Listener(ServerAddress("no-such-host.invalid", 0))


def test_clients_that_send_their_requests_slowly_keep_no_thread(stage: Stage) -> None:
    with served(stage.application) as address:
        slow = [connected(address) for _ in range(3 * THREADS)]
        try:
            for each in slow:
                each.sendall(b"GET /stores HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
            assert ask(address, "/stores").status == 200
            for each in slow:
                each.sendall(b"1\r\nConnection: close\r\n\r\n")
            for each in slow:
                assert each.recv(15) == b"HTTP/1.1 200 OK"
        finally:
            for each in slow:
                each.close()


def test_clients_that_send_requests_ahead_and_read_no_answer_keep_no_thread() -> None:
    content, ahead = bytes(4 << 20), 50

    def large(environ: object, start: Callable[..., Any]) -> list[bytes]:
        start("200 OK", [("Content-Length", str(len(content)))])
        return [content]

    with served(large) as address:
        slow = [connected(address) for _ in range(THREADS + 1)]
        try:
            for each in slow:
                each.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * ahead)
            for _ in range(THREADS):
                with closing(http.client.HTTPConnection(address, timeout=TIMEOUT_S)) as connection:
                    connection.request("GET", "/")
                    assert connection.getresponse().read() == content
            # The answers that were begun come whole. Then the connection ends.
            with slow[0].makefile("rb") as answers:
                received_bytes = answers.read()
            num_begun = received_bytes.count(b"HTTP/1.1 200 OK")
            assert 1 <= num_begun < ahead
            assert received_bytes.count(0) == num_begun * len(content)
        finally:
            for each in slow:
                each.close()


def test_connections_are_bounded_and_the_next_one_waits(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 12)
    with served(stage.application) as address:
        connections = [connected(address) for _ in range(40)]
        for each in connections:
            each.close()
        assert ask(address, "/stores").status == 200
    assert CONNECTIONS_MAX > 3 * THREADS


def test_the_socket_of_a_client_that_has_disconnected_is_closed(monkeypatch: pytest.MonkeyPatch, stage: Stage) -> None:
    connections: list[socket.socket] = []

    def is_gone(self: object, server: object, client: socket.socket, *rest: object, **named: object) -> None:
        connections.append(client)
        raise OSError

    with served(stage.application) as address:
        with monkeypatch.context() as patch:
            patch.setattr(server._Connection, "__init__", is_gone)
            with connected(address) as client:
                assert client.recv(1) == b""
        assert [each.fileno() for each in connections] == [-1]
        assert ask(address, "/stores").status == 200


def connected_from(source: str, address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=TIMEOUT_S, source_address=(source, 0))


@contextmanager
def held_slowly(count: int, address: str, *sources: str) -> Iterator[list[socket.socket]]:
    """Hold connections from each of these machines, each with one byte of a request."""
    connections = []
    try:
        for source in sources:
            for _ in range(count):
                connections.append(connected_from(source, address))
                connections[-1].sendall(b"G")
        yield connections
    finally:
        for each in connections:
            each.close()


@pytest.mark.parametrize("sources", [("127.0.0.1",), ("127.0.0.2",), ("127.0.0.2", "127.0.0.3", "127.0.0.4")])
def test_the_maximum_of_slow_connections_blocks_no_other_client(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, sources: tuple[str, ...]
) -> None:
    monkeypatch.setattr(server, "REQUEST_S", TIMEOUT_S)
    with served(stage.application) as address, held_slowly(CONNECTIONS_MAX, address, *sources):
        for _ in range(3):
            assert ask(address, "/stores").status == 200


def test_a_machine_has_at_most_as_many_connections_as_are_left_for_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_S", TIMEOUT_S)
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 16)
    listener = Listener(ANY)
    with QueryServer(stage.application, listener) as serving:
        address = str(listener.address)
        with held_slowly(1, address, "127.0.0.9"), held_slowly(30, address, "127.0.0.2", "127.0.0.3"):
            assert ask(address, "/stores").status == 200
            sources = [each.source for each in serving._connections()]
    assert [sources.count(f"127.0.0.{number}") for number in (2, 3, 9)] == [8, 4, 1]


def test_a_connection_whose_request_is_in_work_is_not_closed_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 2 * (THREADS - 1))
    began, may_end = threading.Semaphore(0), threading.Event()

    def slow(environ: object, start: Callable[..., Any]) -> list[bytes]:
        began.release()
        assert may_end.wait(TIMEOUT_S)
        start("200 OK", [("Content-Length", "2")])
        return [b"{}"]

    with served(slow) as address, ThreadPoolExecutor(THREADS) as threads:
        working = [threads.submit(ask, address, "/stores") for _ in range(THREADS - 1)]
        for _ in working:
            assert began.acquire(timeout=TIMEOUT_S)
        with connected(address) as connection:
            assert connection.recv(1) == b""
        may_end.set()
        assert [each.result(TIMEOUT_S).status for each in working] == [200] * len(working)


def test_a_client_has_one_deadline_for_a_whole_request(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it sends a byte of it."""
    monkeypatch.setattr(server, "REQUEST_S", 0.2)
    monkeypatch.setattr(server, "_POLL_S", 0.02)
    with served(stage.application) as address, connected(address) as slow:
        slow.settimeout(0.02)
        for number in range(int(TIMEOUT_S / 0.02)):
            try:
                slow.sendall(b"G" if number else b"GET /stores HTTP/1.1\r\nX-Slow: ")
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("the connection is still open")


def test_the_deadline_begins_again_with_each_answer(stage: Stage) -> None:
    listener = Listener(ANY)
    with (
        QueryServer(stage.application, listener) as serving,
        closing(http.client.HTTPConnection(str(listener.address), timeout=TIMEOUT_S)) as client,
    ):
        begins = [0.0]
        for _ in range(3):
            client.request("GET", "/stores")
            response = client.getresponse()
            assert response.status == 200
            response.read()
            [own] = serving._connections()
            ends = time.monotonic() + TIMEOUT_S
            # The client may have the answer before the thread that gave it is done.
            while own.waiting_since == begins[-1] and time.monotonic() < ends:
                time.sleep(0.001)
            begins.append(own.waiting_since)
    assert begins == sorted(set(begins))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
    ],
)
def test_a_machine_is_known_by_its_address_and_of_ipv6_by_its_network(one: str, other: str, same: bool) -> None:
    assert (server._source_of((one, 1)) == server._source_of((other, 2))) == same


def test_a_request_that_is_too_long_is_refused(stage: Stage) -> None:
    with served(stage.application) as address:
        for headers, body in (({"X-Long": "x" * REQUEST_BYTES_MAX}, None), ({}, b"x" * (REQUEST_BYTES_MAX + 1))):
            connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
            with closing(connection):
                connection.request("GET", "/stores", body=body, headers=headers)
                response = connection.getresponse()
                assert response.status in (413, 431)
                assert b"Traceback" not in response.read()
        assert ask(address, "/stores").status == 200


def test_what_is_no_http_is_refused_and_the_server_goes_on(stage: Stage) -> None:
    with served(stage.application) as address:
        for text in (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n"):
            with connected(address) as client:
                client.sendall(text)
                client.shutdown(socket.SHUT_WR)
                while content := client.recv(4_096):
                    assert b"Traceback" not in content
        assert ask(address, "/stores").status == 200


def test_the_end_lets_a_request_finish_and_closes_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits no longer than for the answer."""
    monkeypatch.setattr(server, "STOP_S", 10 * TIMEOUT_S)
    began, may_end = threading.Event(), threading.Event()

    def slow(environ: object, start: Callable[..., Any]) -> list[bytes]:
        began.set()
        assert may_end.wait(TIMEOUT_S)
        start("200 OK", [("Content-Length", "2")])
        return [b"{}"]

    listener = Listener(ANY)
    serving = QueryServer(slow, listener)
    address = str(listener.address)
    with ThreadPoolExecutor(2) as threads:
        reply = threads.submit(ask, address, "/stores")
        assert began.wait(TIMEOUT_S)
        end = threads.submit(serving.close)
        may_end.set()
        assert reply.result(TIMEOUT_S).body == {}
        end.result(TIMEOUT_S)
    with pytest.raises(ConnectionRefusedError):
        connected(address)
    serving.close()


def test_the_end_does_not_wait_for_a_request_that_never_finishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STOP_S", 0.1)
    began, may_end = threading.Event(), threading.Event()

    def stuck(environ: object, start: Callable[..., Any]) -> list[bytes]:
        began.set()
        assert may_end.wait(TIMEOUT_S)
        start("200 OK", [("Content-Length", "2")])
        return [b"{}"]

    listener = Listener(ANY)
    serving = QueryServer(stuck, listener)
    with connected(str(listener.address)) as client, connected(str(listener.address)) as idle:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        idle.sendall(b"GET / HT")
        assert began.wait(TIMEOUT_S)
        serving.close()
        assert not may_end.is_set()
        assert (client.recv(1), idle.recv(1)) == (b"", b"")
        with pytest.raises(ConnectionRefusedError):
            connected(str(listener.address))
    may_end.set()


CLIENTS, KEYS = 50, 20


@pytest.mark.parametrize("backend", ["memory-indexed-batch", "rocksdb", "lmdb-native"])
def test_fifty_clients_see_whole_commits_while_the_task_commits(tmp_path: Path, backend: str) -> None:
    """A page, and its position, are of one commit: all keys have the offset of the last record of the commit."""
    end = threading.Event()

    def client(address: str) -> int:
        pages, newest = 0, -1
        while not end.is_set() or not pages:
            reply = ask(address, "/stores/counts/range", partition=HERE)
            assert reply.status == 200, reply.body
            [offset] = reply.body["position"].values()
            assert [record["value"] for record in reply.body["records"]] == [offset] * KEYS
            assert offset >= newest
            pages, newest = pages + 1, offset
        return pages

    def put_all(context: Any) -> None:
        for key in range(KEYS):
            context.store("counts").put(f"k{key:02}", stage.offset)

    with Stage(tmp_path, backend) as stage:
        stage.process(put_all)
        stage.task.commit()
        with served(stage.application) as address, ThreadPoolExecutor(CLIENTS) as clients:
            running = [clients.submit(client, address) for _ in range(CLIENTS)]
            try:
                for _ in range(100):
                    stage.process(put_all)
                    stage.task.commit()
            finally:
                end.set()
            assert all(each.result(TIMEOUT_S) for each in running)


def test_a_process_with_many_descriptors_is_answered_too(stage: Stage) -> None:
    """select() takes descriptors up to 1,023, and a process with many stores has more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1_300:
        pytest.skip(f"the system allows {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1_300), hard))
    descriptors: list[int] = []
    try:
        while not descriptors or descriptors[-1] < 1_100:
            descriptors.append(os.dup(1))
        with served(stage.application) as address:
            assert ask(address, "/stores").status == 200
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
