"""A rolling restart of three workers under load. The long form is the command ``rolling_restart`` beside it."""

from __future__ import annotations

import pytest

from stores.changelog.kafka.testing.broker import Broker
from stores.tests.kafka.shared_broker import broker  # noqa: F401
from stores.tests.worker.places import KafkaPlace
from stores.tests.worker.rolling_restart import restart_all
from stores.tests.worker.worker_process import DEADLINE_S, SESSION


@pytest.mark.kafka
@pytest.mark.long
def test_a_rolling_restart_under_load_costs_no_session_timeout_and_each_record_has_one_output(
    kafka_place: KafkaPlace,
    broker: Broker,  # noqa: F811
) -> None:
    """A worker that ends without leaving the group costs a session timeout, which is longer than all that is awaited.

    The command has the narrower bound.
    """
    for each in restart_all(kafka_place, broker.address, seconds=1.0, seed=1, more=SESSION).each:
        assert each.status == 0, str(each)
        assert each.wait_s < DEADLINE_S, str(each)
