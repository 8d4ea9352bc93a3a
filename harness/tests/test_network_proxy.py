"""The proxy of the harness passes bytes on, holds them while it stalls, and cuts connections at a given byte."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace

import pytest

from harness.experiments.broker_faults.network_proxy import NetworkProxy

WAIT_S = 600.0


@pytest.fixture
def echo() -> Iterator[tuple[int, list[bytes]]]:
    """A server that sends back what it gets; the list has all that it got, per connection."""
    listening = socket.create_server(("127.0.0.1", 0))
    got: list[bytes] = []

    def serve(end: socket.socket, place: int) -> None:
        with end, suppress(ConnectionError):
            while piece := end.recv(65_536):
                got[place] += piece
                end.sendall(piece)

    def listen() -> None:
        while True:
            try:
                end, _ = listening.accept()
            except OSError:
                return
            got.append(b"")
            threading.Thread(target=serve, args=(end, len(got) - 1), daemon=True).start()

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    yield listening.getsockname()[1], got
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join()


def connected(proxy: NetworkProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=WAIT_S)


def received(end: socket.socket, num_bytes: int) -> bytes:
    whole = b""
    while len(whole) < num_bytes and (piece := end.recv(65_536)):
        whole += piece
    return whole


def test_all_bytes_pass_in_both_directions_and_large_ones_too(echo: tuple[int, list[bytes]]) -> None:
    port, got = echo
    large = bytes(range(256)) * 20_000
    with NetworkProxy(port) as proxy, connected(proxy) as one, connected(proxy) as two:
        one.sendall(b"hello")
        assert received(one, 5) == b"hello"
        sending = threading.Thread(target=two.sendall, args=(large,))
        sending.start()
        assert received(two, len(large)) == large
        sending.join()
    assert sorted(got, key=len) == [b"hello", large]


def test_a_stalled_proxy_holds_all_bytes_and_new_connections_until_it_resumes(echo: tuple[int, list[bytes]]) -> None:
    port, got = echo
    with NetworkProxy(port) as proxy, connected(proxy) as one:
        one.sendall(b"a")
        assert received(one, 1) == b"a"
        proxy.stall()
        one.sendall(b"b")
        with connected(proxy) as two:
            two.sendall(b"c")
            one.settimeout(0.2)
            with pytest.raises(TimeoutError):
                one.recv(1)
            assert got == [b"a"]
            proxy.resume()
            one.settimeout(WAIT_S)
            assert received(one, 1) == b"b"
            assert received(two, 1) == b"c"


def test_a_cut_resets_connections_and_lets_new_ones_through(echo: tuple[int, list[bytes]]) -> None:
    port, _ = echo
    with NetworkProxy(port) as proxy:
        with connected(proxy) as one:
            one.sendall(b"a")
            assert received(one, 1) == b"a"
            proxy.cut()
            with pytest.raises(ConnectionResetError):
                one.recv(1)
        assert proxy.cuts == 1
        with connected(proxy) as two:
            two.sendall(b"b")
            assert received(two, 1) == b"b"


def test_a_cut_within_a_message_lets_the_bytes_before_it_through(echo: tuple[int, list[bytes]]) -> None:
    port, got = echo
    with NetworkProxy(port) as proxy, connected(proxy) as one:
        one.sendall(b"abc")
        assert received(one, 3) == b"abc"
        proxy.cut_after(4)
        one.sendall(b"defghi")
        with pytest.raises(ConnectionResetError):
            while one.recv(65_536):
                pass
        with connected(proxy) as two:
            two.sendall(b"z")
            assert received(two, 1) == b"z"
    # Each connection has a thread that reads it, and one may be late.
    deadline = time.monotonic() + WAIT_S
    while got != [b"abcdefg", b"z"] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert got == [b"abcdefg", b"z"]


def test_a_proxy_without_a_target_or_closed_refuses_connections() -> None:
    proxy = NetworkProxy(1)  # Nobody listens on port 1.
    with connected(proxy) as one:
        assert one.recv(1) == b""
    proxy.close()
    proxy.close()
    with pytest.raises(ConnectionRefusedError):
        connected(proxy)


@pytest.mark.parametrize("of_clients", [True, False])
def test_a_half_closed_connection_ends_for_one_side_which_may_still_send(
    echo: tuple[int, list[bytes]], *, of_clients: bool
) -> None:
    port, got = echo
    with NetworkProxy(port) as proxy, connected(proxy) as one:
        one.sendall(b"a")
        assert received(one, 1) == b"a"
        proxy.half_close(of_clients=of_clients)
        # The server closes its own end then, and with it the connection.
        assert one.recv(1) == b""
        if of_clients:
            one.sendall(b"b")
            deadline = time.monotonic() + WAIT_S
            while got != [b"ab"]:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        with connected(proxy) as two:
            two.sendall(b"c")
            assert received(two, 1) == b"c"


def test_a_slow_proxy_passes_on_few_bytes_at_a_time_until_it_resumes(
    echo: tuple[int, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, got = echo
    pauses: list[float] = []
    monkeypatch.setattr("harness.experiments.broker_faults.network_proxy.time", SimpleNamespace(sleep=pauses.append))
    large = bytes(100_000)
    with NetworkProxy(port) as proxy, connected(proxy) as one:
        proxy.slow(1_000)
        sending = threading.Thread(target=one.sendall, args=(large,))
        sending.start()
        assert received(one, len(large)) == large
        sending.join()
        # In both directions.
        assert sum(pauses) >= 2 * len(large) / 1_000
        proxy.resume()
        paused = len(pauses)
        one.sendall(large)
        assert received(one, len(large)) == large
    assert len(pauses) == paused
    assert got == [2 * large]
