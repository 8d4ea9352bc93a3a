"""TLS and the token of queries, and what a worker says where they are off."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from stores.errors import ConfigError, StoreUnavailableError
from stores.tests.worker.counting_app import app
from stores.tests.worker.queries.asking import TIMEOUT_S, ask
from stores.tests.worker.queries.stage import OTHER, THERE, Stage
from stores.worker import Worker
from stores.worker.queries import server
from stores.worker.queries.access import CERTIFICATE, KEY, TOKEN, AccessFiles, ServerAddress
from stores.worker.queries.endpoint import QueryEndpoint, routes_of
from stores.worker.queries.server import Listener, QueryServer

ANY = ServerAddress("127.0.0.1", 0)
SECRET = "0123456789abcdef"
SIGNED = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost "
    "-addext subjectAltName=DNS:localhost,IP:127.0.0.1"
)
EMBEDDED = {"changelog.file": "log.sqlite", "state.dir": "state"}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> AccessFiles:
    folder = tmp_path_factory.mktemp("certificate")
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem")]
    subprocess.run([*SIGNED.split(), *files], check=True, capture_output=True)
    return AccessFiles(folder / "certificate.pem", folder / "key.pem")


@contextmanager
def served(application: Callable[..., Any], access: AccessFiles) -> Iterator[ServerAddress]:
    listener = Listener(ANY)
    with QueryServer(access.guard()(application), listener, access.tls()):
        yield listener.address


@contextmanager
def connection(address: ServerAddress, access: AccessFiles) -> Iterator[HTTPSConnection]:
    trusting = ssl.create_default_context(cafile=str(access.certificate))
    with closing(HTTPSConnection(address.host, address.port, timeout=TIMEOUT_S, context=trusting)) as connection:
        yield connection


def test_queries_are_answered_over_tls_and_several_on_one_connection(stage: Stage, certificate: AccessFiles) -> None:
    with served(stage.application, certificate) as address, connection(address, certificate) as client:
        for _ in range(3):
            client.request("GET", "/stores")
            response = client.getresponse()
            assert (response.status, "counts" in json.loads(response.read())["stores"]) == (200, True)


def test_large_answers_come_whole_over_tls(certificate: AccessFiles) -> None:
    content = bytes(range(256)) * (16 << 10)

    def large(environ: object, start: Callable[..., Any]) -> list[bytes]:
        start("200 OK", [("Content-Length", str(len(content)))])
        return [content]

    with served(large, certificate) as address, connection(address, certificate) as client:
        for _ in range(3):
            client.request("GET", "/")
            assert client.getresponse().read() == content


def test_a_request_longer_than_one_read_is_read_whole_over_tls(stage: Stage, certificate: AccessFiles) -> None:
    """OpenSSL reads more from the connection than it was asked for, and the system knows nothing of the rest."""
    with served(stage.application, certificate) as address, connection(address, certificate) as client:
        client.request("GET", "/stores", headers={"X-Long": "x" * 14_000})
        assert client.getresponse().status == 200


def test_a_client_without_tls_gets_no_answer_and_blocks_no_other_client(stage: Stage, certificate: AccessFiles) -> None:
    with served(stage.application, certificate) as address:
        with closing(socket.create_connection((address.host, address.port), timeout=TIMEOUT_S)) as plain:
            plain.sendall(b"GET /stores HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            with suppress(ConnectionResetError):
                while content := plain.recv(4_096):
                    assert b"HTTP" not in content
        with connection(address, certificate) as client:
            client.request("GET", "/stores")
            assert client.getresponse().status == 200


def test_a_handshake_that_does_not_end_is_ended_by_the_server(
    stage: Stage, certificate: AccessFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 0.1)
    with (
        served(stage.application, certificate) as address,
        closing(socket.create_connection((address.host, address.port), timeout=TIMEOUT_S)) as client,
    ):
        client.sendall(b"\x16\x03\x01")
        assert client.recv(1) == b""


def test_an_older_tls_is_refused(stage: Stage, certificate: AccessFiles) -> None:
    context = certificate.tls()
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_the_answer_of_another_worker_is_asked_over_tls_too(stage: Stage, certificate: AccessFiles) -> None:
    assert stage.ask("counts/get", key="a", partition=THERE).headers["Location"].startswith(f"http://{OTHER}/stores")
    stage.application = routes_of(stage.queries, ANY, certificate.scheme)
    assert stage.ask("counts/get", key="a", partition=THERE).headers["Location"].startswith(f"https://{OTHER}/stores")


def with_token(folder: Path, content: bytes) -> AccessFiles:
    (folder / "token").write_bytes(content)
    return AccessFiles(token=folder / "token")


@pytest.mark.parametrize(
    ("shown", "status"),
    [
        (None, 401),
        ("", 401),
        (SECRET, 401),
        (f"Basic {SECRET}", 401),
        ("Bearer", 401),
        (f"Bearer {SECRET}x", 401),
        (f"Bearer {SECRET[:-1]}", 401),
        (f"Bearer {SECRET.upper()}", 401),
        (f"Bearer {SECRET}", 200),
        (f"bearer  {SECRET}", 200),
    ],
)
@pytest.mark.parametrize("path", ["/stores", "/nothing"])
def test_only_a_client_that_shows_the_token_is_answered(
    stage: Stage, tmp_path: Path, shown: str | None, status: int, path: str
) -> None:
    with (
        served(stage.application, with_token(tmp_path, f"{SECRET}\n".encode())) as address,
        closing(HTTPConnection(str(address), timeout=TIMEOUT_S)) as client,
    ):
        client.request("GET", path, headers={} if shown is None else {"Authorization": shown})
        response = client.getresponse()
        body = json.loads(response.read())
        assert response.status == (404 if status == 200 and path == "/nothing" else status)
        if status == 401:
            assert response.headers["WWW-Authenticate"] == "Bearer"
            assert set(body) == {"error"}
            assert SECRET not in body["error"]


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"short", b"two words of the token", "t\u00f6ken-of-letters".encode(), b"x" * 5_000, b"\xff" * 20],
)
def test_a_file_without_a_token_is_refused_by_its_property(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConfigError, match=r"application\.server\.token\.file=.*token"):
        with_token(tmp_path, content).guard()


def test_files_that_can_not_be_read_are_named(tmp_path: Path, certificate: AccessFiles) -> None:
    with pytest.raises(StoreUnavailableError, match="missing"):
        AccessFiles(token=tmp_path / "missing").guard()
    (tmp_path / "other").write_text("no certificate")
    for wrong in (
        AccessFiles(tmp_path / "missing", certificate.key),
        AccessFiles(tmp_path / "other", certificate.key),
        AccessFiles(certificate.certificate, tmp_path / "other"),
    ):
        with pytest.raises(ConfigError, match=r"ssl\.certificate\.location=.*ssl\.key\.location="):
            wrong.tls()


def test_an_encrypted_private_key_is_refused_without_a_prompt(
    tmp_path: Path, certificate: AccessFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a password OpenSSL asks on the terminal, if the process has one."""
    load, passwords = ssl.SSLContext.load_cert_chain, []

    def noted(context: ssl.SSLContext, certificate: str, key: str, password: str | None = None) -> None:
        passwords.append(password)
        load(context, certificate, key, "")

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", noted)
    command = ["openssl", "pkey", "-in", str(certificate.key), "-aes256", "-passout", "pass:secret"]
    subprocess.run([*command, "-out", str(tmp_path / "key")], check=True, capture_output=True)
    with pytest.raises(ConfigError, match="no password"):
        AccessFiles(certificate.certificate, tmp_path / "key").tls()
    assert passwords == [""]


@pytest.mark.parametrize(
    "given",
    [
        {CERTIFICATE: "c.pem"},
        {KEY: "k.pem", "application.server": "0"},
        {CERTIFICATE: "c.pem", "application.server": "0"},
        {TOKEN: "token"},
        {TOKEN: "", "application.server": "0"},
    ],
)
def test_properties_of_the_access_that_do_not_fit_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"application\.server"):
        Worker(app, {**EMBEDDED, **given})


def test_the_properties_are_those_of_the_worker_s_settings(tmp_path: Path) -> None:
    files = {name: str(tmp_path / name) for name in (CERTIFICATE, KEY, TOKEN)}
    worker = Worker(app, {**EMBEDDED, "application.server": "0", **files})
    assert worker.settings.access == AccessFiles(*(tmp_path / name for name in (CERTIFICATE, KEY, TOKEN)))


@pytest.mark.parametrize(
    ("access", "words"),
    [
        (AccessFiles(), (CERTIFICATE, KEY, TOKEN)),
        (AccessFiles(Path("c"), Path("k")), (TOKEN,)),
        (AccessFiles(token=Path("t")), (CERTIFICATE, KEY)),
        (AccessFiles(Path("c"), Path("k"), Path("t")), ()),
    ],
)
def test_what_is_off_is_named_by_its_properties(access: AccessFiles, words: tuple[str, ...]) -> None:
    warning = access.warning() or ""
    assert tuple(name for name in (CERTIFICATE, KEY, TOKEN) if name in warning) == words


@pytest.mark.parametrize("is_loopback", [True, False])
def test_a_worker_on_a_public_address_warns_of_missing_protection(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_loopback: bool
) -> None:
    monkeypatch.setattr(ServerAddress, "is_loopback", is_loopback)
    with (
        caplog.at_level("WARNING"),
        QueryEndpoint(ANY, _Empty(), {}, {}, stage, None, AccessFiles()) as endpoint,  # type: ignore[arg-type]
    ):
        assert ask(str(endpoint.address), "/stores").status == 200
    assert [TOKEN in record.getMessage() for record in caplog.records] == ([] if is_loopback else [True])


def test_an_endpoint_has_the_token_and_the_certificate_of_its_access(
    stage: Stage, tmp_path: Path, certificate: AccessFiles
) -> None:
    access = AccessFiles(certificate.certificate, certificate.key, with_token(tmp_path, SECRET.encode()).token)
    with (
        QueryEndpoint(ANY, _Empty(), {}, {}, stage, None, access) as endpoint,  # type: ignore[arg-type]
        connection(endpoint.address, access) as client,
    ):
        for headers, status in (({}, 401), ({"Authorization": f"Bearer {SECRET}"}, 200)):
            client.request("GET", "/stores", headers=headers)
            response = client.getresponse()
            response.read()
            assert response.status == status


class _Empty:
    """An application without stores."""

    def __init__(self) -> None:
        self.name = "app"
        self.processors: dict[int, Any] = {}
        self.global_stores: dict[str, Any] = {}
