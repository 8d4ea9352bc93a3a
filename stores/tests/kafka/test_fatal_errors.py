"""A producer that was fenced says so, also if the client reports it after the first call that fails for it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from stores.changelog.kafka import writer
from stores.changelog.kafka.client_errors import translated
from stores.changelog.kafka.client_settings import ClientSettings
from stores.changelog.producer import AppendRequest, ProducerIdentity
from stores.errors import ChangelogError, ProducerFencedError
from stores.interface import TopicPartition

REQUEST = AppendRequest(ProducerIdentity("p", 0), None, True, {TopicPartition("a", 0): [b"k", b"v", -1, None]})


class Client:
    """It fails for good, and reports the reason when it is polled, if at all: as an error, or to the callback."""

    def __init__(self, on_error: Callable[[KafkaError], None], reason: KafkaError | None, raises: bool) -> None:
        self._on_error, self._reason, self._raises = on_error, reason, raises
        self._polls_until_it_knows = -1

    def begin_transaction(self) -> None:
        """Begin: the client knows nothing yet."""

    def produce(self, *record: object) -> None:
        self._polls_until_it_knows = 2
        raise KafkaException(KafkaError(KafkaError._FATAL))

    def poll(self, wait_s: float) -> None:
        self._polls_until_it_knows -= 1
        if self._polls_until_it_knows != 0:
            return
        if self._reason is not None and self._raises:
            raise KafkaException(self._reason)
        if self._reason is not None:
            self._on_error(self._reason)


def writer_with(reason: KafkaError | None, raises: bool = False) -> writer.KafkaWriter:
    cluster: Any = SimpleNamespace(
        timeout_s=30.0,
        settings=ClientSettings({"bootstrap.servers": "none"}),
        client=lambda kind, own, on_error: Client(on_error, reason, raises),
        asked=lambda doing, ask, producing: None,
        check_open=lambda: None,
        record_bytes_max=lambda topic: 1_000,
        failure=lambda error, doing: translated(error, doing, "servers", str),
    )
    groups: Any = None
    return writer.KafkaWriter(cluster, groups, "p")


@pytest.mark.parametrize("raises", [True, False])
def test_a_fence_that_is_reported_late_is_a_fence(*, raises: bool) -> None:
    fenced = getattr(KafkaError, "_FENCED")  # noqa: B009
    with pytest.raises(ProducerFencedError):
        writer_with(KafkaError(fenced, "fenced", fatal=True), raises).append(REQUEST)


def test_a_fatal_error_that_is_never_reported_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_REPORT_S", 0.0)
    with pytest.raises(ChangelogError) as raised:
        writer_with(None).append(REQUEST)
    assert not isinstance(raised.value, ProducerFencedError)
