"""The application of docs/worker.md runs as it stands, with the commands of the page. That of README is the same."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

import stores
from stores.changelog.kafka.testing.jars import BROKER, kafka_jars
from stores.interface import TopicPartition
from stores.records import INT64
from stores.tests.kafka.shared_broker import FOLDER
from stores.tests.worker.places import EmbeddedPlace, KafkaPlace, Place, expected_counts
from stores.tests.worker.queries.asking import ask
from stores.tests.worker.worker_process import DEADLINE_S, IDLE, WorkerProcess
from stores.worker.queries import server, store_queries
from stores.worker.queries.query_request import WAIT_MAX_MS

ROOT = Path(stores.__file__).parents[1]
WORDS = ["to", "be", "or", "not", "to", "be"]


def python_blocks(page: str, part: str) -> list[str]:
    """Return the Python code of a page, by block, that has a part."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    return [each for each in blocks if part in each]


def program(page: str, name: str = "word-count") -> str:
    """Return the program of a page that makes the Application of that name."""
    [block] = python_blocks(page, f'Application("{name}"')
    return block


def shell_commands(address: str) -> list[str]:
    """Return the commands of Kafka's tools on the page, with the address of a broker."""
    page = (ROOT / "docs/worker.md").read_text(encoding="utf-8")
    commands = re.findall(r"^    ((?:.*org\.apache\.kafka\.tools.*)(?:\n        .*)*)", page, re.MULTILINE)
    return [each.replace("127.0.0.1:PORT", address) for each in commands]


def check_counts(place: Place) -> None:
    """Check the outputs after the line was written three times: each count of each word once, up to the whole one."""
    assert Counter(place.counted()) == expected_counts(3 * WORDS)
    assert Counter(dict(sorted(place.counted()))) == {"to": 6, "be": 6, "or": 3, "not": 3}


@pytest.mark.kafka
def test_the_word_count_counts_lines_of_the_console_producer_whole(kafka_place: KafkaPlace) -> None:
    """As the page says: lines without a key, each run of the producer in a partition of its choice, then the reader."""
    address = kafka_place.properties()["bootstrap.servers"]
    write, read = shell_commands(address)
    (kafka_place.folder / "word_count.py").write_text(program("docs/worker.md"))
    kafka_jars(FOLDER, name=BROKER)
    with WorkerProcess(kafka_place.folder, "w", kafka_place.properties(), application="word_count:app") as worker:
        worker.await_line(f"8 {IDLE}")
        for _ in range(3):
            shell(write)
        kafka_place.await_counted(3 * len(WORDS))
        assert worker.terminate() == 0, worker.errors
    check_counts(kafka_place)
    output = Counter(line for line in shell(f"{read} --timeout-ms 10000").splitlines() if "\t" in line)
    assert output == Counter(f"{word}\t{number}" for word, number in expected_counts(3 * WORDS))


def shell(command: str) -> str:
    """Run a command of the page in the root folder of the clone, as the page does; return its output."""
    process = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_the_word_count_counts_lines_of_the_embedded_changelog_whole(tmp_path: Path) -> None:
    [write_and_read] = python_blocks("docs/worker.md", 'SqliteChangelog("log.sqlite")')
    place = EmbeddedPlace(tmp_path)
    (tmp_path / "word_count.py").write_text(program("docs/worker.md"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    properties = {**place.properties(), "changelog.file": "log.sqlite"}
    with WorkerProcess(tmp_path, "w", properties, application="word_count:app") as worker:
        worker.await_line(f"8 {IDLE}")
        for number in range(1, 4):
            command = [sys.executable, "-c", write_and_read]
            process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
            assert process.stdout.startswith("["), process.stderr
            place.await_counted(number * len(WORDS))
        assert worker.terminate() == 0, worker.errors
    check_counts(place)


def test_the_queries_of_the_documentation_are_answered(place: Place) -> None:
    page = (ROOT / "docs/worker.md").read_text(encoding="utf-8")
    queries = re.findall(r"curl 'http://127\.0\.0\.1:7070([^']+)'", page)
    assert len(queries) == 4
    [answer] = re.findall(r'^    (\{"store".*\})$', page, re.MULTILINE)
    (place.folder / "word_count.py").write_text(program("docs/worker.md"))
    properties = {**place.properties(), "application.server": "0", "query.partitioner": "murmur2"}
    with WorkerProcess(place.folder, "w", properties, application="word_count:app") as worker:
        worker.await_line(f"8 {IDLE}")
        with place.open() as log, log.producer() as producer:
            producer.send(TopicPartition("lines", 2), None, " ".join(WORDS).encode())
            producer.flush()
        place.await_counted(len(WORDS))
        [address] = set(re.findall(r"queries at (\S+), ", worker.errors))
        for each in queries:
            path, _, query = each.partition("?")
            reply = ask(address, path, **dict(parse_qsl(query)))
            assert reply.status == 200, reply.body
            if path.endswith("/get"):
                expected = json.loads(answer)
                deadline = time.monotonic() + DEADLINE_S
                # The store's commit follows that of the outputs.
                while reply.body["value"] != expected["value"] and time.monotonic() < deadline:
                    reply = ask(address, path, **dict(parse_qsl(query)))
                # Control records of a broker take offsets as well.
                assert {**reply.body, "position": None} == {**expected, "position": None}
                assert reply.body["position"].keys() == expected["position"].keys()
                if isinstance(place, EmbeddedPlace):
                    assert reply.body == expected
        assert worker.terminate() == 0, worker.errors


def test_the_global_store_of_the_documentation_has_the_prices(tmp_path: Path) -> None:
    place = EmbeddedPlace(tmp_path)
    (tmp_path / "shop.py").write_text(program("docs/worker.md", "shop"))
    with place.open() as log:
        for topic in ("orders", "prices"):
            log.create_topic(topic, 1)
        with log.producer() as producer:
            producer.send(TopicPartition("prices", 0), b"tea", INT64.serialize(3))
            producer.send_all(TopicPartition("orders", 0), [(None, b"tea", 0), (None, b"sand", 0)])
            producer.flush()
    with WorkerProcess(tmp_path, "w", place.properties(), application="shop:app") as worker:
        worker.await_line("1 tasks, .* lag 0; global stores: lag 0$")
        assert worker.terminate() == 0, worker.errors
    with place.open() as log:
        priced = [record for number in range(4) for record in log.read(TopicPartition("priced", number))]
    assert sorted((record.key, record.value) for record in priced) == [(b"sand", b"0"), (b"tea", b"3")]


def test_the_readme_has_the_same_program() -> None:
    assert ast.dump(ast.parse(program("README.md"))) == ast.dump(ast.parse(program("docs/worker.md")))


def test_the_page_has_the_bounds_of_queries_as_they_are() -> None:
    page = " ".join((ROOT / "docs/worker.md").read_text(encoding="utf-8").split())
    for line in (
        f"the records of a page, 1 to {store_queries.LIMIT_MAX:,} ({store_queries.LIMIT} by default)",
        f"or {store_queries.PAGE_BYTES_MAX >> 20} MiB of JSON",
        f"may still be reached, up to {WAIT_MAX_MS:,}",
        f"up to {server.CONNECTIONS_MAX} connections are open",
        f"A client has {server.REQUEST_S:.0f} seconds for a whole request",
        f"more than {server._UNREAD_BYTES_MAX >> 20} MiB of answers unread",
    ):
        assert line in page
