"""Two instances of one task over Kafka: the older one is a zombie, and can neither commit nor repeat anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from stores.changelog.kafka.testing.broker import Broker
from stores.errors import ProducerFencedError
from stores.tests.kafka import epoch_costs
from stores.tests.kafka.counting import KEYS, changelog, committed_outputs, prepared, task_over
from stores.tests.kafka.independent_reader import IndependentReader
from stores.tests.tasks.setup import INPUT, expected_outputs

pytestmark = pytest.mark.kafka


def test_a_zombie_that_wakes_after_its_successor_has_committed_changes_nothing(tmp_path: Path, broker: Broker) -> None:
    """Each has a state directory of its own, as on two machines. Source: KIP-98, zombie fencing; KIP-447."""
    prepared(tmp_path, broker)
    for name in ("zombie", "successor"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "address").write_text(broker.address)
    with changelog(tmp_path / "zombie") as old_log, changelog(tmp_path / "successor") as new_log:
        zombie = task_over(tmp_path / "zombie", old_log)
        zombie.open()
        zombie.run(7)
        assert zombie.input_offsets() == {INPUT: 7}
        with task_over(tmp_path / "successor", new_log) as successor:
            assert successor.input_offsets() == {INPUT: 6}
            successor.run()
            with pytest.raises(ProducerFencedError):
                zombie.run()
            zombie.close(clean=False)
    assert committed_outputs(tmp_path, len(KEYS)) == expected_outputs(KEYS)


def test_the_costs_of_a_new_epoch_are_measured_with_transactions_that_commit(broker: Broker) -> None:
    times = epoch_costs.measured(broker.address, 1)
    assert [len(each) for each in times.values()] == [1, 1, 1]
    num_records = 3 * (1 + epoch_costs.WARM_UP) * epoch_costs.RECORDS
    with IndependentReader(broker, epoch_costs.OUTPUT) as reader:
        reader.await_records(num_records)
