"""docs/operations.md has blocks that can be read, names that exist, and bounds as the code has them."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # The extra "test" has it through moto[s3].

import stores
from stores.changelog.kafka.reader import READ_AHEAD, READ_AHEAD_KIB
from stores.config import UNCOMMITTED_MAX_BYTES
from stores.registry import backend_named
from stores.telemetry import INSTRUMENTS
from stores.telemetry.prometheus import metric_name
from stores.tests.worker.counting_app import app
from stores.worker.__main__ import FAILED, REFUSED
from stores.worker.probes import LIVE, READY
from stores.worker.settings import SESSION_TIMEOUT_S, WorkerSettings, read_properties

PAGE = (Path(stores.__file__).parents[1] / "docs" / "operations.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def manifests() -> dict[str, Any]:
    """Return the objects of the manifest by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(blocks("yaml")[0])}


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
    own = dict(each.removeprefix("--set=").split("=", 1) for each in worker["args"] if each.startswith("--set="))
    properties = {name: value.replace("$(POD_NAME)", "word-count-0") for name, value in own.items()}
    settings = WorkerSettings.from_properties(app, {**read_properties(file), **properties})
    assert settings.instance_id == "word-count-0"
    ports = {each["name"]: each["containerPort"] for each in worker["ports"]}
    assert settings.server is not None
    assert {"queries": settings.server.port, "metrics": settings.metrics_port} == ports
    mounts = {each["mountPath"]: each["name"] for each in worker["volumeMounts"]}
    assert mounts[str(settings.tasks.state_dir.parent)] == "state"


def test_the_unit_ends_and_restarts_a_worker_as_its_statuses_say() -> None:
    parser = configparser.ConfigParser()
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(blocks("ini")[0])
    service = parser["Service"]
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", str(REFUSED))
    assert str(FAILED) != service["RestartPreventExitStatus"]
    assert float(service["TimeoutStopSec"]) > SESSION_TIMEOUT_S
    assert service["ExecStart"].split()[1:3] == ["worker", "word_count:app"]


def test_the_rules_are_yaml_and_name_metrics_that_exist() -> None:
    [group] = yaml.safe_load(blocks("yaml")[1])["groups"]
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
