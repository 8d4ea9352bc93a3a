"""The declared topology, and the command that relocates by it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stores.errors import ConfigError, StoreUnavailableError
from stores.registry import open_store
from stores.relocate import main
from stores.tasks import StateDirectory, Subtopology, TaskId, Topology

TOLD = {"subtopologies": {"2": {"stores": ["counts", "names"], "inputs": ["orders"]}, "3": {"stores": ["totals"]}}}
SAME = Topology({2: Subtopology(("counts", "names"), ("orders",)), 3: Subtopology(("totals",))})


def test_a_topology_is_read_from_an_object_by_number_or_a_list_and_from_a_file(tmp_path: Path) -> None:
    assert Topology.from_dict(TOLD) == SAME
    as_list = {"subtopologies": [{}, {}, *TOLD["subtopologies"].values()]}
    assert Topology.from_dict(as_list).stores == SAME.stores
    assert Topology.from_dict(as_list).fingerprint == SAME.fingerprint
    (tmp_path / "topology.json").write_text(json.dumps(TOLD))
    assert Topology.from_file(tmp_path / "topology.json") == SAME
    assert [SAME.subtopology_of(name) for name in ("counts", "names", "totals", "none")] == [2, 2, 3, None]


@pytest.mark.parametrize(
    "told",
    [
        None,
        [],
        {},
        {"subtopologies": {}, "more": 1},
        {"subtopologies": 7},
        {"subtopologies": {"x": {}}},
        {"subtopologies": {"01": {}}},
        {"subtopologies": {"-1": {}}},
        {"subtopologies": {"9" * 5_000: {}}},
        {"subtopologies": {str(2**64): {}}},
        {"subtopologies": {"0": []}},
        {"subtopologies": {"0": {"store": ["a"]}}},
        {"subtopologies": {"0": {"stores": "counts"}}},
        {"subtopologies": {"0": {"stores": 7}}},
        {"subtopologies": {"0": {"stores": [7]}}},
        {"subtopologies": {"0": {"stores": {"counts": []}}}},
        {"subtopologies": {"0": {"inputs": {"orders": []}}}},
        {"subtopologies": {"0": {"stores": ["../a"]}}},
        {"subtopologies": {"0": {"stores": ["a.new"]}}},
        {"subtopologies": {"0": {"inputs": ["a b"]}}},
        {"subtopologies": {"0": {"stores": ["a", "a"]}}},
        {"subtopologies": {"0": {"inputs": ["a", "a"]}}},
        {"subtopologies": {"0": {"stores": ["a"]}, "1": {"stores": ["a"]}}},
        {"subtopologies": [{"stores": ["a"]}, {"stores": ["a"]}]},
    ],
)
def test_what_can_t_be_a_topology_is_refused(told: Any, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, TypeError)):
        Topology.from_dict(told)
    (tmp_path / "file").write_text(json.dumps(told))
    with pytest.raises(ConfigError):
        Topology.from_file(tmp_path / "file")


def test_a_store_that_is_named_twice_is_named_in_the_error_with_both_numbers() -> None:
    with pytest.raises(ConfigError) as refused:
        Topology({4: Subtopology(("counts",)), 17: Subtopology(("counts",))})
    assert all(text in str(refused.value) for text in ("'counts'", "4", "17"))


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, '{"subtopologies": {"0": {"stores": ["a"]}, "0": {}}}', "\xff"]
)
def test_a_file_that_is_no_topology_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError):
        Topology.from_file(tmp_path / "file")
    with pytest.raises(StoreUnavailableError):
        Topology.from_file(tmp_path / "none")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A state directory with a store in the right place, one in the wrong place, and one that is not named."""
    for number, name in ((2, "counts"), (2, "totals"), (3, "former")):
        open_store("lmdb", tmp_path / "state" / f"{number}_0" / "lmdb" / name).close()
    (tmp_path / "topology.json").write_text(json.dumps(TOLD))
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, run in a folder of somebody's own."""
    within = folder / "within"
    within.mkdir(exist_ok=True)
    for name in ("json", "argparse", "lmdb", "types"):
        (within / f"{name}.py").write_text("raise RuntimeError('a file of the working folder was imported')")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, "-P", "-m", "stores.relocate", *arguments],
        cwd=within,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_command_shows_what_it_would_do_and_does_it(folder: Path) -> None:
    arguments = ("../state", "--topology", "../topology.json")
    before = sorted((folder / "state").rglob("*"))
    shown = run(folder, *arguments, "--dry-run")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert sorted((folder / "state").rglob("*")) == before
    done = run(folder, *arguments)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, len(shown.stdout.splitlines()))
    for text in ("2_0/lmdb/totals", "3_0/lmdb/totals", "3_0/lmdb/former"):
        assert text in shown.stdout
        assert text in done.stdout
    assert "counts" not in shown.stdout
    assert (folder / "state" / "3_0" / "lmdb" / "totals" / "store.json").exists()
    again = run(folder, *arguments)
    assert again.returncode == 0
    assert "totals" not in again.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("../state",),
        ("../none", "--topology", "../topology.json"),
        ("../topology.json", "--topology", "../topology.json"),
        ("../state", "--topology", "../none"),
        ("../state", "--topology", "../state"),
        ("../state", "--topology", "../bad.json"),
        ("../state", "--topology", "../topology.json", "--more"),
    ],
)
def test_a_user_s_mistake_is_told_in_a_line_or_two_and_changes_nothing(
    folder: Path, arguments: tuple[str, ...]
) -> None:
    (folder / "bad.json").write_text('{"subtopologies": {"0": {"stores": ["a"]}, "1": {"stores": ["a"]}}}')
    before = sorted((folder / "state").rglob("*"))
    done = run(folder, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert done.stderr
    assert sorted((folder / "state").rglob("*")) == before


def test_an_open_task_is_told_with_its_process_and_nothing_is_moved(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = StateDirectory(folder / "state").lock(TaskId(2, 0), "somebody")
    arguments = [str(folder / "state"), "--topology", str(folder / "topology.json")]
    done = run(folder, *arguments)
    assert done.returncode == 2
    assert str(os.getpid()) in done.stderr
    lock.release()
    assert main(arguments) == 0
    assert "3_0/lmdb/totals" in capsys.readouterr().out
