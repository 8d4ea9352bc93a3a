"""The end of a transaction in which the client has failed: its client, and the error for the caller. No broker."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from stores.changelog.kafka.client import ClientSettings, translated
from stores.changelog.kafka.producer import KafkaProducer
from stores.changelog.kafka.writer import KafkaWriter
from stores.errors import ChangelogError, ChangelogTimeoutError, CommitInDoubtError, ProducerFencedError
from stores.interface import TopicPartition

A = TopicPartition("a", 0)


class Client:
    """It raises the errors in ``errors`` in the calls of those names, and keeps the names of its calls."""

    def __init__(self) -> None:
        self.errors: dict[str, KafkaError] = {}
        self.calls: list[str] = []
        self.undelivered = 0
        self.on_flush: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        def call(*_: object, **__: object) -> Any:
            self.calls.append(name)
            if name == "flush":
                self.on_flush()
            if name in self.errors:
                raise KafkaException(self.errors[name])
            return self.undelivered if name == "flush" else 0

        return call

    def __len__(self) -> int:
        return 0


class Clients:
    """All clients that a writer has made, in order, and a producer over the writer, with a record in a transaction."""

    def __init__(self, transactional_id: str | None = "p") -> None:
        self.made: list[Client] = []

        def asked(doing: str, ask: Any, *, producing: bool = False) -> Any:
            try:
                return ask(1.0)
            except KafkaException as exception:
                raise failure(exception.args[0], doing) from None

        def failure(error: KafkaError, doing: str) -> ChangelogError:
            return translated(error, doing, ClientSettings({"bootstrap.servers": "servers"}))

        def client(kind: object, own: object, on_error: Any) -> Client:
            self.on_error = on_error
            self.made.append(Client())
            return self.made[-1]

        cluster: Any = SimpleNamespace(
            timeout_s=5.0,
            settings=ClientSettings({"bootstrap.servers": "none"}),
            client=client,
            asked=asked,
            failure=failure,
            check_open=lambda: None,
            ended=lambda *_: None,
            check_partition=lambda partition: None,
            record_bytes_max=lambda topic: 1_000,
        )
        groups: Any = None
        self.producer = KafkaProducer(KafkaWriter(cluster, groups, transactional_id), transactional_id)
        if transactional_id is not None:
            self.producer.begin()
        self.producer.send(A, b"k", b"v")


def error(name: str, text: str = "", /, **traits: bool) -> KafkaError:
    return KafkaError(getattr(KafkaError, name), text or name, **traits)


@pytest.mark.parametrize(
    ("call", "name", "traits"),
    [
        ("begin_transaction", "_STATE", {}),
        ("produce", "_STATE", {}),
        ("commit_transaction", "OUT_OF_ORDER_SEQUENCE_NUMBER", {"txn_requires_abort": True}),
        ("commit_transaction", "_TIMED_OUT", {"txn_requires_abort": True}),
        ("commit_transaction", "MSG_SIZE_TOO_LARGE", {"txn_requires_abort": True}),
    ],
)
def test_a_transaction_in_which_the_client_has_failed_is_aborted_and_the_next_one_is_that_of_a_new_client(
    call: str, name: str, traits: dict[str, bool]
) -> None:
    clients = Clients()
    clients.made[0].errors[call] = error(name, **traits)
    with pytest.raises(ChangelogError) as failure:
        clients.producer.commit()
    assert isinstance(failure.value, ChangelogTimeoutError) == (name != "MSG_SIZE_TOO_LARGE")
    clients.producer.abort()
    assert len(clients.made) == 2
    # A producer that was fenced learns it here, before its new client fences the other one.
    assert ("abort_transaction" in clients.made[0].calls) == (call != "begin_transaction")
    assert "init_transactions" in clients.made[1].calls
    clients.producer.begin()
    clients.producer.send(A, b"k", b"v")
    clients.producer.commit()
    assert clients.made[1].calls.count("commit_transaction") == 1
    clients.producer.begin()
    clients.producer.send(A, b"k", b"v")
    clients.producer.abort()
    assert len(clients.made) == 2


def test_after_records_that_are_not_acknowledged_in_time_there_is_a_new_client() -> None:
    clients = Clients()
    clients.made[0].undelivered = 1
    with pytest.raises(ChangelogTimeoutError):
        clients.producer.commit()
    clients.producer.abort()
    assert len(clients.made) == 2


def test_a_transaction_with_a_record_that_the_broker_refused_is_aborted_by_a_new_client() -> None:
    clients = Clients()
    message = SimpleNamespace(topic=lambda: "a", partition=lambda: 0)
    clients.made[0].on_flush = lambda: clients.producer._writer._delivered(error("INVALID_RECORD"), message)
    with pytest.raises(ChangelogError):
        clients.producer.commit()
    clients.producer.abort()
    assert len(clients.made) == 2


def test_what_a_client_that_was_replaced_reports_later_is_about_no_transaction() -> None:
    """It is served on while its call does not return."""
    clients = Clients()
    writer = clients.producer._writer
    old, heard = writer._reports, clients.on_error
    clients.made[0].undelivered = 1
    with pytest.raises(ChangelogTimeoutError):
        clients.producer.commit()
    clients.producer.abort()
    clients.made[1].undelivered = 0
    clients.producer.begin()
    clients.producer.send(A, b"k", b"v")
    clients.producer._append(ends=False)
    old.delivered(error("_PURGE_QUEUE"), SimpleNamespace(topic=lambda: "a", partition=lambda: 0))
    heard(error("_FENCED", fatal=True))
    clients.producer.commit()
    assert clients.made[1].calls.count("commit_transaction") == 1


def test_a_transaction_without_a_failure_is_aborted_by_its_own_client() -> None:
    clients = Clients()
    clients.producer._append(ends=False)
    clients.producer.abort()
    assert len(clients.made) == 1
    assert "abort_transaction" in clients.made[0].calls


def test_an_abort_that_fails_is_done_by_a_new_client_when_it_is_called_again() -> None:
    clients = Clients()
    clients.producer._append(ends=False)
    clients.made[0].errors["abort_transaction"] = error("INVALID_TXN_STATE", fatal=True)
    with pytest.raises(ChangelogTimeoutError):
        clients.producer.abort()
    clients.producer.abort()
    assert len(clients.made) == 2


def test_a_new_client_that_cannot_begin_is_replaced_at_the_next_abort() -> None:
    clients = Clients()
    clients.made[0].errors["produce"] = error("_STATE")
    with pytest.raises(ChangelogTimeoutError):
        clients.producer.commit()
    make = Client.__init__

    def failing(self: Client) -> None:
        make(self)
        self.errors["init_transactions"] = error("UNKNOWN", fatal=True)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(Client, "__init__", failing)
        with pytest.raises(ChangelogTimeoutError):
            clients.producer.abort()
    clients.producer.abort()
    assert len(clients.made) == 3


def test_a_fenced_producer_makes_no_new_client_which_would_fence_the_instance_that_owns_the_task() -> None:
    clients = Clients()
    clients.made[0].errors["produce"] = error("_FENCED", fatal=True)
    with pytest.raises(ProducerFencedError):
        clients.producer.commit()
    clients.made[0].errors["abort_transaction"] = error("_FENCED", fatal=True)
    clients.producer.abort()
    assert len(clients.made) == 1


@pytest.mark.parametrize(
    "answer",
    [
        error("UNKNOWN", "EndTxn commit failed: Unknown broker error", txn_requires_abort=True),
        error(
            "_TIMED_OUT", "EndTxn failed with _TIMED_OUT but transaction had already failed", txn_requires_abort=True
        ),
        error("INVALID_TXN_STATE", "Failed to end transaction", fatal=True),
        error("_TIMED_OUT", "Transactional API operation (commit_transaction) timed out", retriable=True),
        error("_STATE", "EndTxn commit failed", txn_requires_abort=True),
    ],
    ids=lambda answer: str(answer.name()),
)
def test_a_commit_that_the_brokers_may_have_begun_is_in_doubt(answer: KafkaError) -> None:
    clients = Clients()
    clients.made[0].errors["commit_transaction"] = answer
    with pytest.raises(CommitInDoubtError):
        clients.producer.commit()


def test_a_producer_without_transactions_that_has_failed_for_good_is_replaced() -> None:
    clients = Clients(None)
    clients.made[0].errors["produce"] = error("_GAPLESS_GUARANTEE", fatal=True)
    with pytest.raises(ChangelogTimeoutError):
        clients.producer.flush()
    clients.producer.abort()
    assert len(clients.made) == 2
    clients.producer.send(A, b"k", b"v")
    clients.producer.flush()


def test_a_producer_without_transactions_that_may_go_on_keeps_its_client() -> None:
    clients = Clients(None)
    clients.made[0].errors["produce"] = error("_TIMED_OUT")
    with pytest.raises(ChangelogTimeoutError):
        clients.producer.flush()
    clients.producer.abort()
    assert len(clients.made) == 1
