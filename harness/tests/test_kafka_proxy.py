"""The proxy before a broker holds one request by its kind, cuts its client, and delivers the request later."""

from __future__ import annotations

import socket
import struct
import time

import pytest

from harness.experiments.broker_faults.kafka_proxy import (
    _REQUEST,
    ADD_OFFSETS_TO_TXN,
    END_TXN,
    PRODUCE,
    KafkaProxy,
    Messages,
    has_ended_transaction,
)
from harness.tests.test_network_proxy import WAIT_S, connected, echo, received  # noqa: F401


def request(api_key: int, content: bytes) -> bytes:
    # A server that sends it back answers with this correlation ID.
    return _REQUEST.pack(8 + len(content), api_key, 0, api_key << 16) + content


BEFORE, HELD, AFTER = request(PRODUCE, b"before"), request(END_TXN, b"held"), request(PRODUCE, b"after")


def await_got(got: list[bytes], expected: list[bytes]) -> None:
    deadline = time.monotonic() + WAIT_S
    while got != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    assert got == expected


@pytest.mark.parametrize("size", [1, 2, 5, 6, 7, 11, 12, 13, 100])
def test_a_request_is_found_by_its_kind_wherever_pieces_end(size: int) -> None:
    requests = Messages(_REQUEST, lambda api_key, *_: api_key == END_TXN)
    whole, passed = BEFORE + HELD + AFTER, b""
    for begin in range(0, len(whole), size):
        passed += requests.passed(whole[begin : begin + size])
    assert (passed, bytes(requests.held), requests.holds_one) == (BEFORE, HELD, True)


def test_a_held_request_reaches_the_broker_when_it_is_delivered_and_its_client_sees_a_reset(
    echo: tuple[int, list[bytes]],  # noqa: F811
) -> None:
    port, got = echo
    with KafkaProxy(port) as proxy, connected(proxy) as one:
        proxy.hold(END_TXN)
        assert not proxy.await_held(0)
        one.sendall(BEFORE)
        assert received(one, len(BEFORE)) == BEFORE
        one.sendall(HELD)
        assert proxy.await_held(WAIT_S)
        with pytest.raises(ConnectionResetError):
            received(one, 1)
        with connected(proxy) as two:
            two.sendall(HELD)
            assert received(two, len(HELD)) == HELD
            await_got(got, [BEFORE, HELD])
            assert proxy.deliver(WAIT_S) == HELD
            await_got(got, [BEFORE + HELD, HELD])
    assert proxy.cuts == 1


@pytest.mark.parametrize(("error_code", "ends"), [(0, True), (47, False), (51, False)])
def test_the_answer_of_a_broker_says_whether_it_ends_the_transaction(error_code: int, ends: bool) -> None:
    assert has_ended_transaction(struct.pack(">iiih", 10, 7, 100, error_code)) == ends


def test_the_second_request_of_a_kind_can_be_held_and_others_pass(echo: tuple[int, list[bytes]]) -> None:  # noqa: F811
    port, got = echo
    with KafkaProxy(port) as proxy:
        proxy.hold(END_TXN, number=2)
        for _ in range(2):
            with connected(proxy) as one:
                one.sendall(request(ADD_OFFSETS_TO_TXN, b"other") + HELD)
                try:
                    one.shutdown(socket.SHUT_WR)
                    while received(one, 65_536):
                        pass
                except OSError:  # The proxy may have closed the connection already.
                    continue
                assert not proxy.await_held(0)
        assert proxy.await_held(WAIT_S)
        await_got(got, [request(ADD_OFFSETS_TO_TXN, b"other") + HELD, request(ADD_OFFSETS_TO_TXN, b"other")])


def test_a_request_is_held_with_all_that_comes_after_it_while_its_client_stays(
    echo: tuple[int, list[bytes]],  # noqa: F811
) -> None:
    port, got = echo
    with KafkaProxy(port) as proxy, connected(proxy) as one:
        proxy.hold(END_TXN, cuts=False)
        one.sendall(BEFORE + HELD + AFTER)
        assert proxy.await_held(WAIT_S)
        assert received(one, len(BEFORE)) == BEFORE
        await_got(got, [BEFORE])
        assert proxy.deliver(WAIT_S)[: len(HELD)] == HELD
        assert received(one, len(HELD + AFTER)) == HELD + AFTER
        assert proxy.cuts == 0


def test_a_held_request_is_delivered_whose_client_has_closed_its_connection(
    echo: tuple[int, list[bytes]],  # noqa: F811
) -> None:
    port, got = echo
    with KafkaProxy(port) as proxy:
        proxy.hold(END_TXN, cuts=False)
        with connected(proxy) as one:
            one.sendall(HELD)
            assert proxy.await_held(WAIT_S)
        assert proxy.deliver(WAIT_S) == HELD
        await_got(got, [HELD])


@pytest.mark.parametrize("copies", [0, 1, 2])
def test_an_answer_is_held_and_passes_so_often(echo: tuple[int, list[bytes]], copies: int) -> None:  # noqa: F811
    port, got = echo
    with KafkaProxy(port) as proxy, connected(proxy) as one:
        proxy.hold_answer(END_TXN)
        one.sendall(BEFORE + HELD + AFTER)
        assert received(one, len(BEFORE)) == BEFORE
        assert proxy.await_held(WAIT_S)
        await_got(got, [BEFORE + HELD + AFTER])
        proxy.pass_answer(copies)
        assert received(one, len(HELD * copies + AFTER)) == HELD * copies + AFTER


def test_the_client_of_a_dropped_answer_sees_a_reset(echo: tuple[int, list[bytes]]) -> None:  # noqa: F811
    port, _ = echo
    with KafkaProxy(port) as proxy, connected(proxy) as one:
        proxy.hold_answer(END_TXN)
        one.sendall(HELD)
        assert proxy.await_held(WAIT_S)
        proxy.pass_answer(0, cuts=True)
        with pytest.raises(ConnectionResetError):
            received(one, 1)
