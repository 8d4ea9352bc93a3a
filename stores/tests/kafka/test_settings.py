"""The client's settings: which are passed on, which are refused, and that no secret is ever shown. No broker needed."""

from __future__ import annotations

import logging
import re
from types import SimpleNamespace
from typing import Any

import pytest

from stores.changelog.kafka import KafkaChangelog
from stores.changelog.kafka.changelog import due_settings, loses_records, store_topic_settings
from stores.changelog.kafka.client import OWN, ClientSettings, LostRequests
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
    all_settings = {**NOBODY, "sasl.username": "shop", "sasl.password": SECRET, "ssl.key.pem": SECRET}
    settings = ClientSettings(all_settings)
    assert settings.with_own({"group.id": "g"}) == {**all_settings, "group.id": "g"}
    assert SECRET not in repr(settings)
    assert "shop" in repr(settings)
    assert settings.without_secrets(f"bad {SECRET}!") == "bad (hidden)!"


def test_a_client_gets_no_setting_of_another_kind_of_clients() -> None:
    of_producers = {"queue.buffering.max.kbytes": 1, "transaction.timeout.ms": 2}
    of_consumers = {"queued.max.messages.kbytes": 3, "max.poll.interval.ms": 4}
    settings = ClientSettings({**NOBODY, **of_producers, **of_consumers})
    assert settings.with_own({}, consumes=True) == {**NOBODY, **of_consumers}
    assert settings.with_own({}, consumes=False) == {**NOBODY, **of_producers}


def test_the_client_log_has_the_levels_of_the_settings_and_no_others(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("stores.tests.lost_requests")
    levels = [logging.DEBUG, logging.INFO, logging.ERROR, logging.CRITICAL]
    for settings, contexts, expected in (
        ({}, "broker", levels[1:]),
        ({"log_level": 3}, "broker", levels[2:]),
        ({"log_level": 0}, "broker", levels[3:]),
        ({"debug": ""}, "broker", levels[1:]),
        ({"debug": "cgrp,topic"}, "cgrp,topic,broker", levels),
    ):
        requests = LostRequests(ClientSettings({"bootstrap.servers": "none", **settings}), log)
        assert requests.settings == {"debug": contexts, "logger": requests, "throttle_cb": requests._throttled}
        with caplog.at_level(logging.DEBUG, log.name):
            caplog.clear()
            for level in levels:
                requests.log(level, "%s [%s] %s", "CONNECT", "producer-1", "text")
        assert [record.levelno for record in caplog.records] == expected
        assert not requests.any


def test_the_longest_pause_after_a_quota_was_reached_counts_and_the_caller_hears_of_each() -> None:
    heard: list[Any] = []
    settings = ClientSettings({"bootstrap.servers": "none", "throttle_cb": heard.append})
    requests = LostRequests(settings, logging.getLogger("stores.tests.lost_requests"))
    assert requests.pause_s() == 0
    events = [SimpleNamespace(throttle_time=seconds) for seconds in (10_000.0, 1.0)]
    for event in events:
        requests.settings["throttle_cb"](event)
    assert 9_000 < requests.pause_s() <= 10_000
    assert heard == events


def test_without_a_broker_the_error_names_the_address_and_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    settings = {
        **NOBODY,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "shop",
        "sasl.password": SECRET,
    }
    with caplog.at_level(logging.DEBUG), pytest.raises(ChangelogTimeoutError, match=r"127\.0\.0\.1:9") as error:
        KafkaChangelog(settings, timeout_s=0.2)
    assert SECRET not in f"{error.value!r} {error.value.__cause__!r} {error.value.__context__!r} {caplog.text}"


@pytest.mark.parametrize("expires", [False, True])
def test_a_new_changelog_topic_has_the_retention_that_its_store_needs(expires: bool) -> None:
    assert due_settings("t", store_topic_settings(expires=expires), expires=expires) == {}


def test_brokers_delete_nothing_by_the_wall_clock_or_by_size() -> None:
    assert store_topic_settings(expires=True) == {
        "cleanup.policy": "compact,delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
    }
    assert store_topic_settings(expires=False) == {"cleanup.policy": "compact"}


HISTORY_MS, LAG = 60_000, "min.compaction.lag.ms"


def test_a_topic_of_versions_keeps_their_history_and_a_day_from_compaction() -> None:
    """Source: Kafka Streams, ``VersionedChangelogTopicConfig``."""
    own = store_topic_settings(expires=False, history_ms=HISTORY_MS)
    assert own == {"cleanup.policy": "compact", LAG: str(HISTORY_MS + 86_400_000)}
    assert due_settings("t", own, own, expires=False) == {}
    longer = store_topic_settings(expires=False, history_ms=HISTORY_MS, given={LAG: "90000000"})
    assert longer[LAG] == "90000000"
    assert due_settings("t", longer, own, expires=False) == {}
    short = {"cleanup.policy": "compact", LAG: "0"}
    assert due_settings("t", short, own, expires=False) == {LAG: own[LAG]}
    assert loses_records({LAG: own[LAG]})
    with pytest.raises(ChangelogError):
        due_settings("t", {**own, "cleanup.policy": "compact,delete"}, own, expires=False)
    assert store_topic_settings(expires=False, history_ms=(1 << 62) - 1)[LAG].isdecimal()


@pytest.mark.parametrize(
    ("settings", "expires", "named"),
    [
        ({"cleanup.policy": "delete"}, False, "cleanup.policy=compact"),
        ({"cleanup.policy": "delete"}, True, "cleanup.policy=[compact,delete]"),
        ({"cleanup.policy": "compact,delete", "retention.ms": "-1"}, False, "cleanup.policy=compact"),
        (
            {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"},
            False,
            "message.timestamp.type=CreateTime",
        ),
    ],
)
def test_a_topic_that_its_owner_has_to_change_is_refused_with_the_command(
    settings: dict[str, str], expires: bool, named: str
) -> None:
    with pytest.raises(ChangelogError, match=re.escape(f"--entity-name t --add-config {named}")):
        due_settings("t", settings, expires=expires)


@pytest.mark.parametrize(
    ("settings", "changes", "loses"),
    [
        ({"cleanup.policy": "compact,delete", "retention.ms": "4"}, {"retention.ms": "-1"}, True),
        (
            {"cleanup.policy": "delete, compact", "retention.ms": "-1", "retention.bytes": "1"},
            {"retention.bytes": "-1"},
            True,
        ),
        (
            {"cleanup.policy": "compact", "retention.ms": "-1", "retention.bytes": "-1"},
            store_topic_settings(expires=True),
            False,
        ),
        ({"cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "-1"}, {}, False),
    ],
)
def test_a_topic_of_windows_gets_settings_with_which_only_the_task_deletes(
    settings: dict[str, str], changes: dict[str, str], loses: bool
) -> None:
    assert due_settings("t", settings, expires=True) == changes
    assert loses_records(changes) == loses
