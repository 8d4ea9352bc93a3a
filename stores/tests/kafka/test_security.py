"""A broker with SASL and one with TLS accept a task with the client's own settings, and refuse wrong ones clearly.

Secrets are in no error, log, ``repr``, report or metric, also with the client's ``debug=all``.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.testing.broker import Broker, BrokerListener
from stores.errors import ChangelogError, ChangelogTimeoutError, ConfigError
from stores.tests.kafka.fresh import remove_all
from stores.tests.kafka.shared_broker import FOLDER, skip_without_kafka
from stores.tests.tasks.setup import MEMORY, counting_task, expected_outputs, feed, outputs

pytestmark = pytest.mark.kafka

MARKER = "Tr0ub4dor-and-3"
"""The secret of all that is right."""
WRONG = "hunter2-hunter2"
USER = "shop"
KEYS = [1, 2, 1]
_LOGIN = "org.apache.kafka.common.security"

_SERVER = f"""
listener.name.plain.sasl.enabled.mechanisms=PLAIN
listener.name.plain.plain.sasl.jaas.config={_LOGIN}.plain.PlainLoginModule required user_{USER}="{MARKER}";
listener.name.scram.sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.scram.scram-sha-512.sasl.jaas.config={_LOGIN}.scram.ScramLoginModule required;
listener.name.tls.ssl.client.auth=required
ssl.keystore.type=PEM
ssl.keystore.location={{folder}}/server.pem
ssl.truststore.type=PEM
ssl.truststore.location={{folder}}/client.crt
"""


def certificate(folder: Path, name: str, *key: str) -> None:
    """Make a key and a self-signed certificate for loopback, valid for two days."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-days", "2", "-subj", f"/CN={name}"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{name}.key", "-out", f"{name}.crt", *key),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with listeners for PLAIN, SCRAM and TLS with certificates of clients."""
    skip_without_kafka()
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not on PATH: it makes the certificates")
    folder = tmp_path_factory.mktemp("guarded")
    certificate(folder, "server", "-nodes")
    certificate(folder, "client", "-passout", f"pass:{MARKER}")
    certificate(folder, "stranger", "-nodes")
    (folder / "server.pem").write_bytes((folder / "server.key").read_bytes() + (folder / "server.crt").read_bytes())
    listeners = (
        BrokerListener("PLAIN", "SASL_PLAINTEXT"),
        BrokerListener("SCRAM", "SASL_PLAINTEXT"),
        BrokerListener("TLS", "SSL"),
    )
    with Broker(folder / "data", FOLDER, settings=_SERVER.format(folder=folder), listeners=listeners) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        mechanism = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        futures = admin.alter_user_scram_credentials([UserScramCredentialUpsertion(USER, mechanism, MARKER.encode())])
        futures[USER].result(600)
        yield broker


def settings_of(broker: Broker, way: str, secret: str = MARKER, **changes: Any) -> dict[str, Any]:
    """Return the client's settings for a listener, with a secret."""
    address = {"bootstrap.servers": f"127.0.0.1:{broker.ports[way]}"}
    if way == "TLS":
        folder = broker.data.parent
        own = {
            "security.protocol": "SSL",
            "ssl.ca.location": str(folder / "server.crt"),
            "ssl.certificate.location": str(folder / "client.crt"),
            "ssl.key.location": str(folder / "client.key"),
            "ssl.key.password": secret,
        }
    else:
        own = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN" if way == "PLAIN" else "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password": secret,
        }
    return {**address, **own, **changes}


def everything(error: BaseException) -> str:
    """Return all that an error can show: itself, its arguments, and its causes with their tracebacks."""
    text = "".join(traceback.format_exception(error))
    while True:
        text += repr(error) + repr(error.args)
        following = error.__cause__ or error.__context__
        if following is None:
            return text
        error = following


@pytest.mark.parametrize("way", ["PLAIN", "SCRAM", "TLS"])
def test_a_task_works_with_credentials_and_shows_none_of_them(
    tmp_path: Path, guarded: Broker, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    remove_all(guarded)
    texts: list[str] = []
    with (
        caplog.at_level(logging.DEBUG),
        KafkaChangelog(settings_of(guarded, way, debug="all"), timeout_s=120) as log,
    ):
        feed(log, KEYS)
        with counting_task(tmp_path, log, MEMORY) as task:
            texts.append(repr(task.restore_reports()))
            task.run(commit=True)
            assert outputs(log) == expected_outputs(KEYS)
            texts += [
                repr(log),
                repr(task),
                repr(task.metrics),
                repr(task.engine_metrics()),
                repr(log.producer("other")),
            ]
        log_text = caplog.text
    assert "txstores" in log_text or "rdkafka" in log_text  # The client's own messages are among them.
    assert MARKER not in "".join(texts) + log_text


@pytest.mark.parametrize("way", ["PLAIN", "SCRAM"])
def test_wrong_credentials_are_refused_at_once_with_advice_and_without_the_secret(
    guarded: Broker, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = settings_of(guarded, way, WRONG, debug="all")
    with caplog.at_level(logging.DEBUG), pytest.raises(ChangelogError, match="credentials") as error:
        KafkaChangelog(wrong, timeout_s=120)
    assert not isinstance(error.value, ChangelogTimeoutError)
    assert f"127.0.0.1:{guarded.ports[way]}" in str(error.value)
    assert WRONG not in everything(error.value) + caplog.text


def test_a_wrong_mechanism_is_refused(guarded: Broker) -> None:
    with pytest.raises(ChangelogError, match="mechanism") as error:
        KafkaChangelog(settings_of(guarded, "SCRAM", **{"sasl.mechanism": "PLAIN"}), timeout_s=120)
    assert MARKER not in everything(error.value)


def test_the_wrong_password_of_a_key_is_an_invalid_setting_without_the_password(guarded: Broker) -> None:
    with pytest.raises(ConfigError) as error:
        KafkaChangelog(settings_of(guarded, "TLS", WRONG), timeout_s=120)
    assert WRONG not in everything(error.value)


def test_a_broker_with_another_certificate_is_refused(guarded: Broker) -> None:
    stranger = str(guarded.data.parent / "stranger.crt")
    with pytest.raises(ChangelogError, match="certificates") as error:
        KafkaChangelog(settings_of(guarded, "TLS", **{"ssl.ca.location": stranger}), timeout_s=120)
    assert not isinstance(error.value, ChangelogTimeoutError)


def test_a_client_with_another_certificate_is_refused(guarded: Broker) -> None:
    folder = guarded.data.parent
    changes = {
        "ssl.certificate.location": str(folder / "stranger.crt"),
        "ssl.key.location": str(folder / "stranger.key"),
    }
    with pytest.raises(ChangelogError, match="certificates") as error:
        KafkaChangelog(settings_of(guarded, "TLS", **changes), timeout_s=120)
    assert MARKER not in everything(error.value)
