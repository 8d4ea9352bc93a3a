"""Tasks keep exactly once whatever a client's own retries do, and the same trials catch a bare loop of the client.

The table of all trials: ``make client-retries``. Source: KIP-890; librdkafka, issue 5423.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.experiments.broker_faults.kafka_proxy import KafkaProxy
from harness.tests.client_retries.__main__ import main
from harness.tests.client_retries.course import EXACTLY_ONCE, Network, Run, network
from harness.tests.client_retries.trial import (
    ABORT,
    BARE,
    BEGUN,
    COMMIT,
    CUT,
    ENDED,
    ENDING,
    LOST,
    OURS,
    SENT,
    SILENT,
    TASK,
    THREAD,
    Trial,
    table,
    trials,
)
from stores.changelog.kafka.writer import KafkaWriter
from stores.tests.kafka.shared_broker import FOLDER, skip_without_kafka

ABORTED = Trial("EndTxn", CUT, SENT, ABORT, TASK, 100)
"""All records of the next transaction are at the brokers when the abort arrives, so they are lost."""
RETURNED = Trial("TxnOffsetCommit", CUT, ENDING, COMMIT, TASK, 0)
"""The input offsets go back by a transaction."""
TRIED = [
    ABORTED,
    RETURNED,
    Trial("EndTxn", CUT, BEGUN, COMMIT, THREAD, 100),
    Trial("EndTxn", SILENT, ENDING, COMMIT, TASK, 0),
    Trial("EndTxn", LOST, "", ABORT, THREAD, 0),
    Trial("Produce", CUT, SENT, ABORT, THREAD, 0),
    Trial("AddPartitionsToTxn", CUT, ENDED, ABORT, TASK, 0),
    Trial("InitProducerId", CUT, "next owner's sent", COMMIT, TASK, 0),
]


@pytest.fixture(scope="module")
def site() -> Iterator[Network]:
    """A broker, and a proxy before it."""
    skip_without_kafka()
    with network(FOLDER) as made:
        yield made


@pytest.mark.kafka
@pytest.mark.parametrize("trial", TRIED, ids=str)
def test_tasks_are_exactly_once_whatever_request_arrives_late(site: Network, tmp_path: Path, trial: Trial) -> None:
    assert Run(trial, OURS, site, tmp_path).result() == EXACTLY_ONCE


@pytest.mark.kafka
@pytest.mark.parametrize(("trial", "found"), [(ABORTED, "400 lost"), (RETURNED, "200 twice")], ids=str)
def test_without_a_new_epoch_tasks_are_not_exactly_once(
    site: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trial: Trial, found: str
) -> None:
    """A broken variant: a writer that forgets that a request may be on its way."""
    monkeypatch.setattr(KafkaWriter, "_late", property(lambda writer: False, lambda writer, late: None), raising=False)
    assert Run(trial, OURS, site, tmp_path).result() == found


@pytest.mark.kafka
def test_a_late_abort_takes_the_next_transaction_of_a_bare_loop(site: Network, tmp_path: Path) -> None:
    """The client reports no error, and commits the input offsets."""
    run = Run(ABORTED, BARE, site, tmp_path)
    assert run.result().endswith("lost")
    assert run.notes == []


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("owner", "name", "found"),
    [(Run, "_deliver", "nothing was delivered"), (KafkaProxy, "deliver", "no answer to the late request")],
)
def test_a_trial_whose_request_does_not_arrive_is_not_exactly_once(
    site: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, found: str
) -> None:
    """Broken variants: a course that delivers nothing, and a proxy that drops the request."""
    monkeypatch.setattr(owner, name, lambda *_: b"")
    assert Run(ABORTED, OURS, site, tmp_path).result() == found


@pytest.mark.parametrize("wrong", [["--only", "EndTnx"], ["--kinds", "theirs"]])
def test_a_name_that_no_trial_has_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: list[str]) -> None:
    monkeypatch.setattr("sys.argv", ["client_retries", *wrong])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2


def test_each_trial_is_of_the_table_once_and_the_tried_ones_are_among_them() -> None:
    assert len(set(trials())) == len(trials())
    assert set(TRIED) <= set(trials())


def test_the_table_counts_results_of_each_kind() -> None:
    names = {"request": "EndTxn", "fault": CUT, "moment": SENT, "end": ABORT}
    results = [(BARE, "400 lost"), (BARE, "800 lost"), (OURS, EXACTLY_ONCE), (OURS, EXACTLY_ONCE)]
    *_, line = table(names | {"kind": kind, "result": result} for kind, result in results).splitlines()
    assert line == f"| EndTxn | {CUT} | {SENT} | {ABORT} | 2 lost | 2 {EXACTLY_ONCE} |"


def test_the_table_has_the_requests_in_their_order_whatever_came_first() -> None:
    names = {"fault": CUT, "moment": SENT, "end": ABORT, "kind": OURS, "result": EXACTLY_ONCE}
    lines = table(names | {"request": request} for request in ("EndTxn", "Produce")).splitlines()
    assert [line.split()[1] for line in lines[2:]] == ["Produce", "EndTxn"]
