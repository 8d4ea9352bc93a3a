"""The broker of tests: it starts, answers and survives a kill, and its jars are the ones that were checked."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from stores.changelog.kafka.testing import broker as testing_broker
from stores.changelog.kafka.testing.broker import Broker
from stores.changelog.kafka.testing.jars import expected_checksums, kafka_jars, mismatch
from stores.errors import ChangelogTimeoutError, ConfigError
from stores.interface import TopicPartition
from stores.tests.kafka import broker_cluster as testing_cluster
from stores.tests.kafka.broker_cluster import BrokerCluster
from stores.tests.kafka.fresh import fresh_changelog
from stores.tests.kafka.shared_broker import FOLDER, skip_without_kafka

NO_PROCESS = 1 << 30
"""Above all numbers of processes."""


def topics(broker: Broker) -> set[str]:
    return set(AdminClient({"bootstrap.servers": broker.address}).list_topics(timeout=600).topics)


@pytest.mark.kafka
def test_a_killed_broker_has_its_topics_and_its_address_again(tmp_path: Path) -> None:
    skip_without_kafka()
    with Broker(tmp_path / "data", FOLDER) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic("kept", 2, 1)])["kept"].result(600)
        address, pid = broker.address, broker.pid
        broker.kill()
        broker.start()
        assert (broker.address, broker.pid != pid) == (address, True)
        assert "kept" in topics(broker)


@pytest.mark.kafka
def test_what_java_unpacks_for_a_broker_is_in_its_own_folder(tmp_path: Path) -> None:
    skip_without_kafka()

    def libraries(folder: Path) -> set[Path]:
        return set(folder.glob("liblz4*"))

    shared = Path(tempfile.gettempdir())
    before = libraries(shared)
    with Broker(tmp_path / "data", FOLDER) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        packed = NewTopic("packed", 1, 1, config={"compression.type": "lz4"})
        admin.create_topics([packed])["packed"].result(600)
        producer = Producer({"bootstrap.servers": broker.address})
        producer.produce("packed", b"value")
        assert producer.flush(600) == 0
        broker.kill()
    assert libraries(tmp_path / "data")
    assert libraries(shared) <= before


def test_a_broker_is_paused_when_each_of_its_threads_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [["T", "R", "S"], ["T", "S", "T"], ["T", "T", "T"], []]
    monkeypatch.setattr(testing_broker, "_states", lambda pid, *options: looks.pop(0))
    broker = Broker(tmp_path / "data", FOLDER)
    with subprocess.Popen(["sleep", "60"]) as process:
        broker.pid = process.pid
        broker.pause()
        process.kill()
    assert looks == [[]]


def test_the_states_of_a_process_are_those_of_its_threads() -> None:
    threads = "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); "
    program = f"{threads} print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        num_threads, num_processes = (len(testing_broker._states(process.pid, *each)) for each in (["-L"], []))
        process.kill()
    assert (num_threads, num_processes) == (2, 1)
    assert testing_broker._states(process.pid) == []


@pytest.mark.kafka
def test_records_of_any_age_stay(broker: Broker) -> None:
    with fresh_changelog(broker) as log:
        log.create_topic("a")
        assert log._cluster.topic_settings("a")["retention.ms"] == "-1"


@pytest.mark.kafka
def test_a_broker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    skip_without_kafka()
    program = (
        "import os, sys; from pathlib import Path; from stores.changelog.kafka.testing.broker import Broker\n"
        "broker = Broker(Path(sys.argv[1]), Path(sys.argv[2])); broker.start(); print(broker.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "data"), str(FOLDER)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == -9, run.stderr
    waiting = ["tail", "--pid", run.stdout.strip(), "-f", "/dev/null"]
    assert subprocess.run(waiting, timeout=600, check=False).returncode == 0


@pytest.mark.kafka
def test_the_command_starts_one_broker_that_keeps_its_address_and_stops_it(tmp_path: Path) -> None:
    skip_without_kafka()
    kafka_jars(FOLDER)
    (tmp_path / "jars").symlink_to(FOLDER / "jars")

    def command(name: str) -> str:
        call = [sys.executable, "-m", "stores.changelog.kafka.testing", name, "--folder", str(tmp_path)]
        return subprocess.run(call, stdout=subprocess.PIPE, text=True, timeout=600, check=True).stdout

    def address(said: str) -> str:
        [found] = re.findall(r"127\.0\.0\.1:\d+", said)
        return str(found)

    try:
        answer = command("start")
        assert command("start") == answer
        pid = int(re.findall(r"process (\d+)", answer)[0])
        os.kill(pid, signal.SIGKILL)
        assert address(command("start")) == address(answer)
    finally:
        last_answer = command("stop")
    assert "has stopped" in last_answer
    assert command("stop") == "No Kafka broker runs.\n"


def test_the_data_of_a_further_broker_is_made_without_java_and_has_ids_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {
        "meta.properties": b"#\ncluster.id=c\ndirectory.id=def\nversion=1\n",
        "checkpoint": b"\x00cluster.id=\xff",
    }
    monkeypatch.setitem(testing_broker._formatted, tmp_path, first)
    Broker(tmp_path / "data", FOLDER)._format(["no-java"], tmp_path / "none", tmp_path)
    contents = {each.name: each.read_bytes() for each in (tmp_path / "data" / "logs").iterdir()}
    assert contents.keys() == first.keys()
    assert contents["checkpoint"] == first["checkpoint"]
    [ids] = re.findall(rb"^#\ncluster\.id=(\S{22})\ndirectory\.id=(\S{22})\nversion=1\n$", contents["meta.properties"])
    assert ids[0] != ids[1]


def test_the_brokers_of_a_cluster_have_one_id_and_know_all_controllers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = b"node.id=1\ndirectory.id=def\ncluster.id=c\n"
    monkeypatch.setitem(testing_broker._formatted, tmp_path, {"meta.properties": first})
    voters: set[str] = set()
    ids: list[str] = []
    for node, broker in BrokerCluster(tmp_path / "data", FOLDER).nodes.items():
        broker._format(["no-java"], tmp_path / "none", tmp_path)
        ids += re.findall(r"=(.+)", (broker.data / "logs" / "meta.properties").read_text())
        settings = dict(line.split("=", 1) for line in broker._server_properties({}).splitlines())
        assert settings["node.id"] == str(node)
        voters.add(settings["controller.quorum.voters"])
        assert f"{node}@127.0.0.1:{broker._controller_port}" in settings["controller.quorum.voters"].split(",")
    assert len(voters) == 1
    assert [len(set(ids[at::3])) for at in range(3)] == [3, 3, 1]
    assert ids[::3] == ["1", "2", "3"]


def test_all_records_of_a_cluster_need_two_of_three_brokers(tmp_path: Path) -> None:
    """Trials that cut off one of two replicas would pass without that: it is in sync for longer than they last."""
    for broker in BrokerCluster(tmp_path / "data", FOLDER, settings="mine=1\n").nodes.values():
        assert set(broker._settings.splitlines()) >= {
            "default.replication.factor=3",
            "min.insync.replicas=2",
            "offsets.topic.replication.factor=3",
            "transaction.state.log.replication.factor=3",
            "transaction.state.log.min.isr=2",
            "mine=1",
        }


def described(leader: int, replicas: list[int], isrs: list[int]) -> Mapping[str, SimpleNamespace]:
    """Return the client's description of a topic with one partition."""
    partition = SimpleNamespace(leader=leader, replicas=replicas, isrs=isrs)
    return {"t": SimpleNamespace(partitions={0: partition})}


def start(broker: Broker) -> None:
    assert broker.pid is None
    broker.pid = NO_PROCESS


def test_a_cluster_has_started_once_each_broker_shows_all_replicas_in_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, lacking = described(1, [1, 2], [2, 1]), described(1, [1, 2], [1])
    answers = [whole, whole, None, whole, lacking, whole, whole, whole, whole]
    asked: list[int] = []

    def topics(node: int) -> Mapping[str, SimpleNamespace] | None:
        asked.append(node)
        return answers.pop(0)

    cluster = BrokerCluster(tmp_path / "data", FOLDER)
    cluster.nodes[2].pid = NO_PROCESS  # It runs already.
    monkeypatch.setattr(Broker, "start", start)
    monkeypatch.setattr(cluster, "_topics", topics)
    cluster.start()
    assert (asked, answers) == ([1, 2, 3] * 3, [])


def test_a_partition_is_led_by_a_running_broker_on_which_all_of_them_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = BrokerCluster(tmp_path / "data", FOLDER)
    cluster.nodes[1].pid = cluster.nodes[3].pid = NO_PROCESS
    dead, alive = described(2, [2, 3], [3]), described(3, [2, 3], [3])
    answers = [{}, alive, dead, alive, alive, alive]
    monkeypatch.setattr(cluster, "_topics", lambda node: answers.pop(0))
    assert cluster.leader(TopicPartition("t", 0)) == 3
    assert answers == []


def test_brokers_that_do_not_agree_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing_cluster, "READY_S", 0.0)
    cluster = BrokerCluster(tmp_path / "data", FOLDER)
    with pytest.raises(ChangelogTimeoutError):  # None of them runs.
        cluster.leader(TopicPartition("t", 0))
    cluster.nodes[1].pid = NO_PROCESS
    monkeypatch.setattr(cluster, "_topics", lambda node: described(1, [1], [1]))
    with pytest.raises(ChangelogTimeoutError):  # The topic has no such partition.
        cluster.leader(TopicPartition("t", 1))


def test_jars_that_are_not_the_checked_ones_are_refused(tmp_path: Path) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / "a.jar").write_bytes(b"a")
    right = {"a.jar": "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"}
    assert mismatch(jars, right) is None
    assert mismatch(jars, {"a.jar": "0" * 64}) is not None
    assert mismatch(jars, right | {"b.jar": "0" * 64}) is not None
    (jars / "c.jar").write_bytes(b"c")
    assert mismatch(jars, right) is not None
    with pytest.raises(ConfigError):
        kafka_jars(tmp_path)


def made_up_maven(folder: Path, script: str) -> None:
    folder.mkdir()
    (folder / "mvn").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "mvn").chmod(0o755)


def test_without_maven_or_where_it_fails_nothing_is_kept_and_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match="Maven"):
        kafka_jars(tmp_path / "a", print)
    made_up_maven(tmp_path / "bin", "echo '[ERROR] no way'; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with pytest.raises(ConfigError, match="no way"):
        kafka_jars(tmp_path / "b", print)
    assert list((tmp_path / "b").iterdir()) == []


def test_unlisted_jars_from_maven_are_removed_and_progress_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = next(iter(expected_checksums()))
    made_up_maven(
        tmp_path / "bin",
        'for last; do :; done; folder="${last#-DoutputDirectory=}"; mkdir "$folder"; echo x > "$folder/x.jar"\n'
        f"echo '[INFO] Downloaded from somewhere: scheme://host/path/{jar} (1.5 MB at 2 MB/s)'",
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    lines: list[str] = []
    with pytest.raises(ConfigError, match="checked"):
        kafka_jars(tmp_path / "b", lines.append)
    assert lines[1:] == [f"  {jar}, 1.5 MB"]
    assert list((tmp_path / "b").iterdir()) == []
