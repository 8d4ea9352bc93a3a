"""The properties of queries: the address, the extra that it needs, and the partitioner of the inputs."""

from __future__ import annotations

from contextlib import closing

import pytest

from stores import extras
from stores.errors import ConfigError
from stores.tests.worker.counting_app import app
from stores.worker import Worker
from stores.worker.queries.access import ServerAddress, server_address
from stores.worker.queries.server import Listener

EMBEDDED = {"changelog.file": "log.sqlite", "state.dir": "state"}


@pytest.mark.parametrize(
    ("text", "host", "port", "is_loopback"),
    [
        ("8080", "127.0.0.1", 8080, True),
        (":8080", "127.0.0.1", 8080, True),
        ("0", "127.0.0.1", 0, True),
        ("localhost:1", "localhost", 1, True),
        ("worker-1.example:65535", "worker-1.example", 65_535, False),
        ("192.0.2.7:80", "192.0.2.7", 80, False),
        ("127.9.9.9:80", "127.9.9.9", 80, True),
        ("[::1]:80", "::1", 80, True),
        ("[2001:db8::1]:80", "2001:db8::1", 80, False),
    ],
)
def test_an_address_is_on_loopback_unless_another_host_is_named(
    text: str, host: str, port: int, is_loopback: bool
) -> None:
    address = server_address(text)
    assert (address.host, address.port, address.is_loopback) == (host, port, is_loopback)
    assert server_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "host", "host:", "host:65536", "host:-1", "host:8o", "http://host:80", "host:80/path", "a b:80"),
        *("::1:80", "[host]:80", "[::1]", "0.0.0.0:80", "[::]:80", "-host:80", "hôst:80", f"{'h' * 300}:80"),
    ],
)
def test_an_address_to_which_no_client_can_be_sent_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"application\.server"):
        Worker(app, {**EMBEDDED, "application.server": text})


@pytest.mark.parametrize("text", ["0:0", "0x0:0", "0.0:0", "00.0.0.0:0", "[::ffff:0.0.0.0]:0", "[0::0]:0"])
def test_an_address_that_means_all_interfaces_is_refused_however_it_is_written(text: str) -> None:
    with pytest.raises(ConfigError, match=r"application\.server.*all addresses"):
        Listener(server_address(text))


@pytest.mark.parametrize("text", ["0x7f000001:0", "127.1:0", "[::ffff:127.0.0.1]:0", "localhost:0"])
def test_an_address_of_loopback_is_one_however_it_is_written(text: str) -> None:
    listener = Listener(server_address(text))
    with closing(listener.socket):
        assert listener.address.is_loopback


def test_a_name_that_means_another_machine_s_address_is_not_on_loopback() -> None:
    assert not ServerAddress("localhost", 1, "192.0.2.7").is_loopback
    assert ServerAddress("worker.example", 1, "127.0.1.1").is_loopback
    assert not ServerAddress("worker.example", 1, "0.0.0.0").is_loopback


def test_a_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    required, missing = extras._requirements, ("bottle", "waitress")
    monkeypatch.setattr(extras, "_requirements", lambda package: None if package in missing else required(package))
    monkeypatch.setattr(extras, "find_spec", lambda module: None)
    with pytest.raises(ConfigError, match=r"bottle, waitress are not installed: install the extra 'http' with .*http"):
        Worker(app, {**EMBEDDED, "application.server": "0"})
    Worker(app, EMBEDDED)


def test_an_unknown_partitioner_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"query\.partitioner.*did you mean 'murmur2'"):
        Worker(app, {**EMBEDDED, "query.partitioner": "murmur"})


def test_the_address_in_text_has_brackets_around_ipv6() -> None:
    assert [str(ServerAddress("::1", 80)), str(ServerAddress("localhost", 80))] == ["[::1]:80", "localhost:80"]
