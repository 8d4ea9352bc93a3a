"""A producer with a transactional ID connects before it takes over: the client's own way may lose half a second."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stores.changelog.kafka.writer import KafkaWriter


class Client:
    """Notes the calls that it gets."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def list_topics(self, timeout: float) -> None:
        assert 0 <= timeout <= 5
        self.calls.append("list_topics")

    def init_transactions(self, timeout: float) -> None:
        assert 0 <= timeout <= 5
        self.calls.append("init_transactions")


def writer(client: Client, transactional_id: str | None) -> KafkaWriter:
    cluster: Any = SimpleNamespace(
        timeout_s=5.0,
        client=lambda *arguments: client,
        asked=lambda doing, ask, **ways: ask(5.0),
        settings=SimpleNamespace(value=lambda name, default: default),
    )
    groups: Any = None
    return KafkaWriter(cluster, groups, transactional_id)


@pytest.mark.parametrize(
    ("transactional_id", "calls"), [("one", ["list_topics", "list_topics", "init_transactions"]), (None, [])]
)
def test_the_client_has_a_lasting_connection_before_it_asks_for_its_coordinator(
    transactional_id: str | None, calls: list[str]
) -> None:
    client = Client()
    writer(client, transactional_id)
    assert client.calls == calls
