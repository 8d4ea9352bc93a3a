"""The properties of queries: the address, the extra that it needs, and the partitioner of the inputs."""

from __future__ import annotations

import pytest

from stores import extras
from stores.errors import ConfigError
from stores.tests.worker.counting_app import app
from stores.worker import Worker
from stores.worker.queries.address import ServerAddress, server_address
from stores.worker.queries.partitioners import PARTITIONERS, murmur2

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


def test_a_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "_is_installed", lambda package: package not in ("bottle", "waitress"))
    monkeypatch.setattr(extras, "find_spec", lambda module: None)
    with pytest.raises(ConfigError, match=r"bottle, waitress are not installed: install the extra 'http' with .*http"):
        Worker(app, {**EMBEDDED, "application.server": "0"})
    Worker(app, EMBEDDED)


def test_an_unknown_partitioner_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"query\.partitioner.*did you mean 'murmur2'"):
        Worker(app, {**EMBEDDED, "query.partitioner": "murmur"})


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_that_of_kafka(key: bytes, signed: int) -> None:
    """Source: Kafka, ``UtilsTest.testMurmur2``."""
    assert murmur2(key) == signed % 2**32
    assert PARTITIONERS["murmur2"](key, 7) == (signed & 0x7FFF_FFFF) % 7


def test_the_address_in_text_has_brackets_around_ipv6() -> None:
    assert [str(ServerAddress("::1", 80)), str(ServerAddress("localhost", 80))] == ["[::1]:80", "localhost:80"]
