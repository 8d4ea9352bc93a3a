"""The application of docs/worker.md runs as it stands, and that of the README is the same."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from pathlib import Path
from urllib.parse import parse_qsl

import stores
from stores.interface import TopicPartition
from stores.records import INT64
from stores.tests.worker.places import EmbeddedPlace, Place, expected_counts
from stores.tests.worker.queries.asking import ask
from stores.tests.worker.worker_process import IDLE, WorkerProcess

ROOT = Path(stores.__file__).parents[1]
WORDS = ["to", "be", "or", "not", "to", "be"]


def program(page: str, name: str = "word-count") -> str:
    """Return the program of a page that makes the Application of that name."""
    found: list[str] = [
        each
        for each in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
        if f'Application("{name}"' in each
    ]
    assert len(found) == 1
    return found[0]


def test_the_word_count_of_the_documentation_counts_each_word_once(place: Place) -> None:
    (place.folder / "word_count.py").write_text(program("docs/worker.md"))
    place.feed(WORDS)
    with WorkerProcess(place.folder, "w", place.properties(), application="word_count:app") as worker:
        place.await_counted(len(WORDS))
        assert worker.terminate() == 0, worker.errors
    assert Counter(place.counted()) == expected_counts(WORDS)


def test_the_queries_of_the_documentation_are_answered(place: Place) -> None:
    page = (ROOT / "docs/worker.md").read_text(encoding="utf-8")
    queries = re.findall(r"curl 'http://127\.0\.0\.1:7070([^']+)'", page)
    assert len(queries) == 4
    [shown] = re.findall(r'^    (\{"store".*\})$', page, re.MULTILINE)
    (place.folder / "word_count.py").write_text(program("docs/worker.md"))
    place.feed(WORDS)
    properties = {**place.properties(), "application.server": "0"}
    with WorkerProcess(place.folder, "w", properties, application="word_count:app") as worker:
        worker.await_line(f"4 {IDLE}")
        [address] = set(re.findall(r"queries at (\S+), ", worker.errors))
        for each in queries:
            path, _, query = each.partition("?")
            reply = ask(address, path, **dict(parse_qsl(query)))
            assert reply.status == 200, reply.body
            if path.endswith("/get"):
                assert list(reply.body) == list(json.loads(shown))
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
        assert [record.value for record in log.read(TopicPartition("priced", 0))] == [b"3", b"0"]


def test_the_readme_has_the_same_program() -> None:
    assert ast.dump(ast.parse(program("README.md"))) == ast.dump(ast.parse(program("docs/worker.md")))
