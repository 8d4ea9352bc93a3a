"""The client's settings: which are passed on, which are refused, and that no secret is ever shown. No broker needed."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.client_settings import OWN, ClientSettings
from stores.changelog.kafka.store_topics import ADDITIONAL_RETENTION_MS, check_store_topic, store_topic_settings
from stores.errors import ChangelogError, ChangelogTimeoutError, ConfigError

NOBODY = {"bootstrap.servers": "127.0.0.1:9"}
SECRET = "correct-horse-battery"


@pytest.mark.parametrize("name", OWN)
def test_a_setting_that_the_changelog_decides_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        KafkaChangelog({**NOBODY, name: "x"})


def test_a_misspelt_setting_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"sasl\.password"):
        KafkaChangelog({**NOBODY, "sasl.pasword": SECRET})


@pytest.mark.parametrize(
    "arguments",
    [
        {"settings": {}},
        {"settings": {"bootstrap.servers": ""}},
        {"settings": {"bootstrap.servers": " "}},
        {"settings": {"bootstrap.servers": ["127.0.0.1:9"]}},
        {"settings": NOBODY, "timeout_s": 0},
        {"settings": NOBODY, "timeout_s": "5"},
        {"settings": NOBODY, "replication_factor": 0},
        {"settings": {**NOBODY, "linger.ms": "soon"}},
    ],
)
def test_invalid_settings_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        KafkaChangelog(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"settings": None},
        {"settings": [("bootstrap.servers", "127.0.0.1:9")]},
        {"settings": "127.0.0.1:9"},
        {"settings": {**NOBODY, 5: "x"}},
        {"settings": NOBODY, "topic_settings": [("retention.ms", "-1")]},
        {"settings": NOBODY, "topic_settings": "retention.ms"},
        {"settings": NOBODY, "topic_settings": {"retention.ms": -1}},
    ],
)
def test_settings_of_wrong_types_are_refused_before_a_broker_is_asked(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        KafkaChangelog(**arguments)


def test_settings_pass_on_whole_and_their_secrets_are_not_shown() -> None:
    given = {**NOBODY, "sasl.username": "shop", "sasl.password": SECRET, "ssl.key.pem": SECRET}
    settings = ClientSettings(given)
    assert settings.with_own({"group.id": "g"}) == {**given, "group.id": "g"}
    assert SECRET not in repr(settings)
    assert "shop" in repr(settings)
    assert settings.without_secrets(f"bad {SECRET}!") == "bad (hidden)!"


def test_without_a_broker_the_error_names_the_address_and_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    settings = {
        **NOBODY,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "shop",
        "sasl.password": SECRET,
    }
    with caplog.at_level(logging.DEBUG), pytest.raises(ChangelogTimeoutError, match=r"127\.0\.0\.1:9") as raised:
        KafkaChangelog(settings, timeout_s=0.2)
    assert SECRET not in f"{raised.value!r} {raised.value.__cause__!r} {raised.value.__context__!r} {caplog.text}"


def test_a_new_topic_of_a_store_keeps_what_the_store_needs() -> None:
    for retention_ms in (None, 0, 86_400_000):
        check_store_topic("t", store_topic_settings(retention_ms), retention_ms)
    assert store_topic_settings(5) == {
        "cleanup.policy": "compact,delete",
        "retention.ms": str(5 + ADDITIONAL_RETENTION_MS),
    }


@pytest.mark.parametrize(
    ("settings", "retention_ms", "named"),
    [
        ({"cleanup.policy": "delete"}, None, "cleanup.policy"),
        ({"cleanup.policy": "delete"}, 5, "cleanup.policy"),
        ({"cleanup.policy": "compact,delete", "retention.ms": "-1"}, None, "cleanup.policy"),
        ({"cleanup.policy": "compact,delete", "retention.ms": "4"}, 5, "retention.ms"),
        ({"cleanup.policy": "compact,delete", "retention.ms": "5", "retention.bytes": "1"}, 5, "retention.bytes"),
        ({"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}, None, "message.timestamp.type"),
    ],
)
def test_a_topic_that_would_lose_records_is_refused_by_the_name_of_the_setting(
    settings: dict[str, str], retention_ms: int | None, named: str
) -> None:
    with pytest.raises(ChangelogError, match=named):
        check_store_topic("t", settings, retention_ms)
