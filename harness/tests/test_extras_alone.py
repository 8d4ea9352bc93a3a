"""Each extra alone: blocks of pages, examples and features, in an environment made from the wheel of this checkout.

A page names the extras of a block (``stores/tests/test_extras_of_pages.py``), and the list of examples those of a
program. Whatever needs the same extras runs in one environment, word by word, in the order of the page. An environment
is made once: a test is all that happens in it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.tests.test_examples import EXAMPLES, PRINTED_BY_EXAMPLES
from harness.tests.test_packaging import HARNESS, wheels  # noqa: F401
from harness.tests.test_readme import ON_SPARK, PRINTED, ROOT, SPARK_VARIABLES, blocks_of, spark_input
from stores.changelog.kafka.testing.broker import Broker
from stores.tests.kafka.shared_broker import broker  # noqa: F401
from stores.tests.records.loopback_registry import loopback_registry
from stores.tests.test_extras_of_pages import NEEDS
from stores.tests.worker.places import EmbeddedPlace
from stores.tests.worker.queries.asking import ask
from stores.tests.worker.worker_process import IDLE, WorkerProcess

Extras = frozenset[str]
FEATURES = {
    "arrow": """
from stores import TopicPartition
from stores.changelog import MemoryChangelog
from stores.tasks import StreamTask, TaskId
lengths = []
with MemoryChangelog() as log:
    log.create_topic("words")
    with log.producer() as producer:
        producer.send(TopicPartition("words", 0), None, b"be")
        producer.flush()
    with StreamTask(
        "t",
        TaskId(0, 0),
        state_dir="state",
        changelog=log,
        stores=[],
        process_batch=lambda batch, _: lengths.append(batch.table().num_rows),
        inputs=[TopicPartition("words", 0)],
    ) as task:
        task.run(commit=True)
assert lengths == [1], lengths
""",
    "opentelemetry": """
from stores import open_store
from stores.telemetry import MetricsRegistry
from stores.telemetry.opentelemetry import export_metrics
export_metrics(MetricsRegistry())
""",
    "sqlite": """
from stores import open_store
from stores.files import sqlite_library
assert sqlite_library.NAME == "apsw", sqlite_library.NAME
with open_store("sqlite", "store") as store:
    store.put(b"a", b"1")
    store.commit()
with open_store("sqlite", "store") as store:
    assert store.get(b"a") == b"1"
""",
}
"""Code for the features of extras that no block and no example needs alone."""
BY_REGISTRY = """
import sys
from stores.records.schema_registry import SchemaRegistry, avro, json_schema, protobuf
AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "cents", "type": "long"}]}'
JSON = '{"title": "Order", "type": "object", "properties": {"cents": {"type": "integer"}}}'
registry = SchemaRegistry(sys.argv[1])
for number, (make, schema) in enumerate(((avro, AVRO), (json_schema, JSON))):
    serde = make(registry, schema).of_topic(f"orders-{number}", "value")
    print(serde.deserialize(serde.serialize({"cents": 3})))
"""
COMMANDS = {
    "inspection": "inspect {store} --tables",
    "conformance": "conformance --backend lmdb-native -q -k test_scans",
}
"""Commands of ``txstores`` that need an extra; ``{store}`` is a SQLite store."""
KILLED_AT_EACH_OPERATION = """
{"case": {"subject": "sqlite-native", "level": "DISK", "fault": "kill", "commits": 1}}
"""
"""A writer that is killed at each of its I/O operations, which needs the recorder."""
ON_THEIR_OWN = {"http", "kafka", "recorder", "schema-registry", "spark"}
"""Extras with a test of their own below: they need a process beside, more time, or the wheel of the harness."""
NOT_OF_USERS = {"test", "long", "lint", "release", "docs"}


def extras_of_block(code: str) -> Extras:
    """Return the extras that a block needs."""
    return frozenset(extra for part, extra in NEEDS.items() if part in code)


def needed_by_examples() -> dict[str, Extras]:
    """Return the extras of each example, as the list of examples names them."""
    rows = re.findall(r"^\| \[([^\]]+\.py)\].*\|([^|]*)\|$", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    return {program: frozenset(re.findall(r"`([\w-]+)`", needs)) for program, needs in rows}


def groups() -> dict[Extras, list[tuple[str, int]]]:
    """Return the blocks of pages that need no broker by the extras that they need, in the order of the pages."""
    found: dict[Extras, list[tuple[str, int]]] = defaultdict(list)
    for document, printed in PRINTED.items():
        for number, code in enumerate(blocks_of(document)):
            if printed[number] is not None:
                found[extras_of_block(code)].append((document, number))
    return found


def cases() -> list[Extras]:
    """Return the sets of extras for which an environment is made, but for those with a test of their own."""
    alone = {frozenset({extra}) for extra in all_extras()}
    examples = {needed_by_examples()[program] for program in PRINTED_BY_EXAMPLES}
    return sorted((groups().keys() | alone | examples) - {frozenset({extra}) for extra in ON_THEIR_OWN}, key=sorted)


def all_extras() -> set[str]:
    """Return the extras of both distributions."""
    projects = (tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder in (".", HARNESS))
    return {extra for project in projects for extra in project["optional-dependencies"]} - NOT_OF_USERS


@dataclass(frozen=True)
class Environment:
    """A venv with the wheel and some extras. ``folder`` is empty, and for what runs."""

    python: Path
    folder: Path

    @classmethod
    def make(cls, place: Path, wheel: Path, extras: Extras) -> Environment:
        """Make one in the new folder ``place``, with the versions of constraints.txt."""
        subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True)
        folder = place / "work"
        folder.mkdir()
        made = cls(place / "venv/bin/python", folder)
        made.install(f"{wheel}[{','.join(sorted(extras))}]" if extras else str(wheel))
        return made

    def install(self, *requirements: str) -> None:
        install = [str(self.python), "-m", "pip", "install", "-q", "--no-compile", "-c", str(ROOT / "constraints.txt")]
        subprocess.run([*install, *requirements], check=True)

    def run(self, *arguments: str | Path, is_spark: bool = False, variables: Mapping[str, str] | None = None) -> str:
        """Return what its Python prints; of standard error there is nothing, unless Spark runs."""
        names = ("PATH", "HOME", "JAVA_HOME")
        here = SPARK_VARIABLES if is_spark else {name: os.environ[name] for name in names if name in os.environ}
        own = here if variables is None else variables
        ended = subprocess.run(
            [self.python, *arguments],
            cwd=self.folder, env=own, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert (ended.returncode, "" if is_spark else ended.stderr) == (0, ""), ended.stdout + ended.stderr
        return ended.stdout

    def run_blocks(self, blocks: list[tuple[str, int]]) -> None:
        """Run blocks of pages, each page in a folder that its first block finds empty."""
        last = ""
        for document, number in blocks:
            if document != last:
                shutil.rmtree(self.folder)
                self.folder.mkdir()
                last = document
                if document == ON_SPARK:
                    spark_input(self.folder)
            printed = self.run("-c", blocks_of(document)[number], is_spark=document == ON_SPARK)
            assert printed == PRINTED[document][number], (document, number)


def test_every_extra_of_users_has_something_that_runs() -> None:
    run = {extra for extras in (*groups(), *needed_by_examples().values()) for extra in extras}
    assert all_extras() <= run | FEATURES.keys() | COMMANDS.keys() | ON_THEIR_OWN
    assert set(PRINTED_BY_EXAMPLES) <= needed_by_examples().keys()


@pytest.mark.long
@pytest.mark.parametrize("extras", cases(), ids=lambda extras: ",".join(sorted(extras)) or "none")
def test_what_needs_these_extras_runs_with_them_alone(
    tmp_path: Path,
    wheels: tuple[Path, Path],  # noqa: F811
    extras: Extras,
) -> None:
    environment = Environment.make(tmp_path, wheels[0], extras)
    environment.run_blocks(groups().get(extras, []))
    for program, printed in PRINTED_BY_EXAMPLES.items():
        if needed_by_examples()[program] == extras:
            assert environment.run(EXAMPLES / program) == printed, program
    if len(extras) == 1:
        [extra] = extras
        environment.run("-c", FEATURES.get(extra, ""))
        if extra in COMMANDS:
            environment.run("-c", "from stores import open_store; open_store('sqlite', 'made').close()")
            environment.run("-m", "stores", *COMMANDS[extra].format(store="made").split())


@pytest.mark.long
def test_a_worker_answers_queries_with_the_extra_http_alone(
    tmp_path: Path,
    wheels: tuple[Path, Path],  # noqa: F811
) -> None:
    environment = Environment.make(tmp_path, wheels[0], frozenset({"http"}))
    (environment.folder / "word_count.py").write_text(blocks_of("docs/worker.md")[0])
    place = EmbeddedPlace(environment.folder)
    properties = {**place.properties(), "application.server": "0"}
    with WorkerProcess(
        environment.folder, "w", properties, application="word_count:app", python=environment.python
    ) as worker:
        worker.await_line(f"8 {IDLE}")
        [address] = set(re.findall(r"queries at (\S+), ", worker.errors))
        assert ask(address, "/stores").status == 200
        assert worker.terminate() == 0, worker.errors


@pytest.mark.long
def test_topics_have_schemas_with_the_extra_schema_registry_alone(
    tmp_path: Path,
    wheels: tuple[Path, Path],  # noqa: F811
) -> None:
    extras = frozenset({"schema-registry"})
    environment = Environment.make(tmp_path, wheels[0], extras)
    environment.run_blocks(groups()[extras])
    with loopback_registry() as registry:
        assert environment.run("-c", BY_REGISTRY, registry.url) == 2 * "{'cents': 3}\n"


@pytest.mark.kafka
def test_the_page_about_kafka_runs_with_the_extra_kafka_alone(
    tmp_path: Path,
    wheels: tuple[Path, Path],  # noqa: F811
    broker: Broker,  # noqa: F811
) -> None:
    environment = Environment.make(tmp_path, wheels[0], frozenset({"kafka"}))
    [program] = [
        blocks_of(document)[number]
        for document, printed in PRINTED.items()
        for number, output in enumerate(printed)
        if output is None
    ]
    (environment.folder / "count_words.py").write_text(program)
    assert "'" in environment.run("count_words.py", broker.address)


@pytest.mark.long
def test_the_pages_about_spark_and_the_harness_need_the_extra_spark_and_its_wheel(
    tmp_path: Path,
    wheels: tuple[Path, Path],  # noqa: F811
) -> None:
    library, harness_wheel = wheels
    environment = Environment.make(tmp_path, library, frozenset({"spark"}))
    environment.run_blocks(groups()[frozenset({"spark"})])
    environment.install("--find-links", str(library.parent), str(harness_wheel))
    listed = environment.run("-m", "harness", "list")
    assert {"rocksdb-dual-store", "kill_during_commit"} <= set(listed.split())


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_io_faults_need_no_c_compiler_with_the_extra_recorder_alone(
    tmp_path: Path,
    wheels: tuple[Path, Path],  # noqa: F811
) -> None:
    library, harness_wheel = wheels
    environment = Environment.make(tmp_path, library, frozenset())
    environment.install("--find-links", str(library.parent), f"{harness_wheel}[recorder]")
    no_compiler = {"PATH": "/nowhere", "HOME": str(environment.folder)}
    printed = environment.run("-m", "harness", "repeat", "iofaults", KILLED_AT_EACH_OPERATION, variables=no_compiler)
    trials, wrong = map(int, re.findall(r"\d+", printed.splitlines()[-1]))
    assert (trials > 50, wrong) == (True, 0), printed
    assert len(list(environment.folder.rglob("recorder-*.so"))) == 1
