"""docs/operations.md, and the files of a service that it names, can be read and run; its names and bounds exist."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

import stores
from stores.changelog import SqliteChangelog
from stores.changelog.kafka.client import READ_AHEAD
from stores.changelog.kafka.reader import READ_AHEAD_KIB
from stores.config import UNCOMMITTED_MAX_BYTES
from stores.interface import TopicPartition
from stores.records import INT64
from stores.registry import backend_named
from stores.telemetry import INSTRUMENTS
from stores.telemetry.prometheus import metric_name
from stores.tests.worker.counting_app import app
from stores.tests.worker.worker_process import WorkerProcess
from stores.worker.__main__ import FAILED, REFUSED
from stores.worker.probes import LIVE, READY
from stores.worker.settings import SESSION_TIMEOUT_S, WorkerSettings, read_properties

DOCS = Path(stores.__file__).parents[1] / "docs"
PAGE = (DOCS / "operations.md").read_text(encoding="utf-8")
SERVICE = DOCS / "examples" / "service"
UNIT = SERVICE / "word-count.service"


def manifests() -> dict[str, Any]:
    """Return the objects of the manifest by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all((SERVICE / "kubernetes.yaml").read_text())}


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser()
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser["Service"]


def given(arguments: list[str]) -> dict[str, str]:
    """Return the properties that arguments of a worker set."""
    return dict(each.split("=", 1) for each in re.findall(r"--set[ =](\S+)", " ".join(arguments)))


def test_the_page_names_each_file_of_the_service_and_has_no_copy() -> None:
    for file in SERVICE.iterdir():
        if file.is_file():
            assert f"(examples/service/{file.name})" in PAGE
    assert "ExecStart" not in PAGE
    assert "kind:" not in PAGE
    assert "FROM" not in PAGE


def test_the_manifest_is_yaml_whose_parts_name_each_other() -> None:
    objects = manifests()
    assert {*objects} == {"ConfigMap", "Service", "StatefulSet", "PodDisruptionBudget"}
    spec = objects["StatefulSet"]["spec"]
    pod = spec["template"]["spec"]
    [worker] = pod["containers"]
    labels = spec["template"]["metadata"]["labels"]
    assert labels == spec["selector"]["matchLabels"] == objects["Service"]["spec"]["selector"]
    assert labels == objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]
    assert spec["serviceName"] == objects["Service"]["metadata"]["name"]
    volumes = {each["name"] for each in pod["volumes"]} | {
        each["metadata"]["name"] for each in spec["volumeClaimTemplates"]
    }
    assert {each["name"] for each in worker["volumeMounts"]} == volumes
    ports = {each["name"]: each["containerPort"] for each in worker["ports"]}
    assert ports == {each["name"]: each["port"] for each in objects["Service"]["spec"]["ports"]}
    probes = {each: worker[f"{each}Probe"]["httpGet"] for each in ("liveness", "readiness")}
    assert probes["liveness"] == {"path": LIVE, "port": "metrics"}
    assert probes["readiness"] == {"path": READY, "port": "metrics"}
    assert pod["terminationGracePeriodSeconds"] > SESSION_TIMEOUT_S


def test_a_worker_takes_the_properties_of_the_manifest(tmp_path: Path) -> None:
    objects = manifests()
    file = tmp_path / "worker.properties"
    file.write_text(objects["ConfigMap"]["data"]["worker.properties"])
    [worker] = objects["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    properties = {name: value.replace("$(POD_NAME)", "word-count-0") for name, value in given(worker["args"]).items()}
    settings = WorkerSettings.from_properties(app, {**read_properties(file), **properties})
    assert settings.instance_id == "word-count-0"
    ports = {each["name"]: each["containerPort"] for each in worker["ports"]}
    assert settings.server is not None
    assert {"queries": settings.server.port, "metrics": settings.metrics_port} == ports
    mounts = {each["mountPath"]: each["name"] for each in worker["volumeMounts"]}
    assert mounts[str(settings.tasks.state_dir.parent)] == "state"


def test_the_unit_ends_and_restarts_a_worker_as_its_statuses_say() -> None:
    service = unit()
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", str(REFUSED))
    assert str(FAILED) != service["RestartPreventExitStatus"]
    assert float(service["TimeoutStopSec"]) > SESSION_TIMEOUT_S


def test_systemd_finds_no_mistake_in_the_unit(tmp_path: Path) -> None:
    """The program is not at its place here, so another one is named."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    program = unit()["ExecStart"].split()[0]
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(program, sys.executable))
    verified = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")


def test_the_command_of_the_unit_runs_the_worker_until_sigterm(tmp_path: Path) -> None:
    """Over the embedded changelog, in place of the brokers."""
    shutil.copy(SERVICE / "word_count.py", tmp_path)
    _, *command = unit()["ExecStart"].split()
    assert command[:4] == ["worker", "word_count:app", "--config", "worker.properties"]
    properties = {**read_properties(SERVICE / "worker.properties"), **given(command)}
    assert properties.pop("bootstrap.servers")
    state = unit()["StateDirectory"]
    assert properties["state.dir"] == f"/var/lib/{state}"
    own = {"state.dir": state, "changelog.file": "log.sqlite", "metrics.port": "0", "application.server": "0"}
    with SqliteChangelog(tmp_path / "log.sqlite") as log:
        log.create_topic("lines", 4)
        with log.producer() as producer:
            producer.send(TopicPartition("lines", 2), None, b"to be or not to be")
            producer.flush()
        shell = ("-m", "stores", "worker")
        with WorkerProcess(tmp_path, "w", {**properties, **own}, application="word_count:app", command=shell) as worker:
            worker.await_line("8 tasks, .* lag 0$")
            while sum(log.end_offset(TopicPartition("counted", number)) for number in range(4)) < 6 and worker.runs:
                time.sleep(0.1)
            assert worker.terminate() == 0, worker.report
        records = [record for number in range(4) for record in log.read(TopicPartition("counted", number))]
    counted = sorted((record.key, INT64.deserialize(record.value or b"")) for record in records)
    assert counted == [(b"be", 1), (b"be", 2), (b"not", 1), (b"or", 1), (b"to", 1), (b"to", 2)]


def test_the_image_starts_the_worker_that_the_manifest_gives_arguments() -> None:
    instructions = dict(re.findall(r"^(ENTRYPOINT|CMD|COPY) (.*)$", (SERVICE / "Dockerfile").read_text(), re.MULTILINE))
    assert json.loads(instructions["ENTRYPOINT"]) == ["txstores", "worker", "word_count:app"]
    assert instructions["COPY"].split()[0] == "word_count.py"
    [worker] = manifests()["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert worker["args"][0] == "=".join(json.loads(instructions["CMD"]))


def test_the_rules_are_yaml_and_name_metrics_that_exist() -> None:
    [rules] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    [group] = yaml.safe_load(rules)["groups"]
    assert all({*rule} == {"alert", "expr", "annotations"} for rule in group["rules"])
    names = {*re.findall(r"txstores_(?:task|store)_\w+", PAGE)}
    assert names <= {metric_name(each) for each in INSTRUMENTS}
    assert {name for rule in group["rules"] for name in re.findall(r"txstores_\w+", rule["expr"])} <= names


def test_the_bounds_of_memory_are_those_of_the_code() -> None:
    rocksdb, sqlite = (backend_named(name).options for name in ("rocksdb-indexed-batch", "sqlite-indexed-batch"))
    for size, name in (
        (UNCOMMITTED_MAX_BYTES, "statestore.uncommitted.max.bytes"),
        (rocksdb["shared_memory_bytes"], "store.option.shared_memory_bytes"),
        (sqlite["cache_size_bytes"], "store.option.cache_size_bytes"),
        (READ_AHEAD_KIB << 10, READ_AHEAD),
    ):
        assert isinstance(size, int)
        assert f"| {size >> 20} MiB | `{name}` |" in PAGE
