"""The declared topology, and the command that relocates by it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stores
from stores.changelog import MemoryChangelog
from stores.errors import (
    ConfigError,
    StoreCorruptedError,
    StoreIncompatibleError,
    StoreMisplacedError,
    StoreUnavailableError,
)
from stores.registry import open_store
from stores.relocate import main
from stores.tasks import (
    DirectoryLayout,
    StateDirectory,
    StoreConfig,
    StreamTask,
    Subtopology,
    TaskId,
    TaskSettings,
    Topology,
    change_layout,
)
from stores.tasks.directory.store_places import LAYOUT_FILE, RELOCATE, read_layout

TOLD = {"subtopologies": {"2": {"stores": ["counts", "names"], "inputs": ["orders"]}, "3": {"stores": ["totals"]}}}
SAME = Topology({2: Subtopology(("counts", "names"), ("orders",)), 3: Subtopology(("totals",))})


def test_a_topology_is_read_from_an_object_by_number_or_a_list_and_from_a_file(tmp_path: Path) -> None:
    assert Topology.from_dict(TOLD) == SAME
    as_list = {"subtopologies": [{}, {}, *TOLD["subtopologies"].values()]}
    assert Topology.from_dict(as_list).stores == SAME.stores
    assert Topology.from_dict(as_list).fingerprint == SAME.fingerprint
    (tmp_path / "topology.json").write_text(json.dumps(TOLD))
    assert Topology.from_file(tmp_path / "topology.json") == SAME
    assert Topology({number: SAME.subtopologies[number] for number in (3, 2)}).fingerprint == SAME.fingerprint
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
    with pytest.raises(ConfigError) as error:
        Topology({4: Subtopology(("counts",)), 17: Subtopology(("counts",))})
    assert all(text in str(error.value) for text in ("'counts'", "4", "17"))


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
        [sys.executable, *RELOCATE.split()[1:], *arguments],
        cwd=within,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture
def called(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """As ``run``, in this process."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        try:
            status = main(arguments)
        except SystemExit as ended:
            status = int(ended.code or 0)
        return subprocess.CompletedProcess(arguments, status, *capsys.readouterr())

    (folder / "within").mkdir()
    monkeypatch.chdir(folder / "within")
    return call


def test_the_command_shows_what_it_would_do_and_does_it(
    folder: Path, called: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    arguments = ("../state", "--topology", "../topology.json")
    before = sorted((folder / "state").rglob("*"))
    result = called(*arguments, "--dry-run")
    assert (result.returncode, result.stderr) == (0, "")
    assert sorted((folder / "state").rglob("*")) == before
    process = run(folder, *arguments)
    assert (process.returncode, len(process.stdout.splitlines())) == (0, len(result.stdout.splitlines()))
    for text in ("2_0/lmdb/totals", "3_0/lmdb/totals", "3_0/lmdb/former"):
        assert text in result.stdout
        assert text in process.stdout
    assert "counts" not in result.stdout
    assert (folder / "state" / "3_0" / "lmdb" / "totals" / "store.json").exists()
    again = called(*arguments)
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
def test_a_user_s_mistake_is_reported_in_a_line_or_two_and_changes_nothing(
    folder: Path, called: Callable[..., subprocess.CompletedProcess[str]], arguments: tuple[str, ...]
) -> None:
    (folder / "bad.json").write_text('{"subtopologies": {"0": {"stores": ["a"]}, "1": {"stores": ["a"]}}}')
    before = sorted((folder / "state").rglob("*"))
    result = run(folder, *arguments) if "../bad.json" in arguments else called(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr
    assert result.stderr
    assert sorted((folder / "state").rglob("*")) == before


def test_an_open_task_is_reported_with_its_process_and_nothing_is_moved(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = StateDirectory(folder / "state").lock(TaskId(2, 0), "somebody")
    arguments = [str(folder / "state"), "--topology", str(folder / "topology.json")]
    result = run(folder, *arguments)
    assert result.returncode == 2
    assert str(os.getpid()) in result.stderr
    lock.release()
    assert main(arguments) == 0
    assert "3_0/lmdb/totals" in capsys.readouterr().out


def misplaced(state: Path, log: MemoryChangelog) -> str:
    """A store under another number."""
    topology = Topology.from_dict(TOLD)
    task = StreamTask(
        "app",
        TaskId(2, 0),
        state_dir=state,
        changelog=log,
        stores={},
        process=lambda record, context: None,
        inputs=[],
        settings=TaskSettings(topology=topology, automatic_state_relocation=False),
    )
    with pytest.raises(StoreMisplacedError) as error:
        task.open()
    return str(error.value)


def without_note(state: Path, log: MemoryChangelog) -> str:
    """Stores as another layout has them than the directory notes."""
    change_layout(state, DirectoryLayout.STORE_PARTITION)
    (state / LAYOUT_FILE).unlink()
    task = StreamTask(
        "app",
        TaskId(2, 0),
        state_dir=state,
        changelog=log,
        stores={"counts": StoreConfig("lmdb")},
        process=lambda record, context: None,
        inputs=[],
    )
    with pytest.raises(StoreIncompatibleError) as error:
        task.open()
    return str(error.value)


def damaged_note(state: Path, log: MemoryChangelog) -> str:
    """The file of the layout contains garbage; it is removed, as the error asks for."""
    change_layout(state, DirectoryLayout.STORE_PARTITION)
    (state / LAYOUT_FILE).write_text("garbage")
    with pytest.raises(StoreCorruptedError) as error:
        read_layout(state)
    (state / LAYOUT_FILE).unlink()
    return str(error.value)


@pytest.mark.parametrize(
    ("refuse", "given"),
    [
        (misplaced, {"FILE": "../topology.json"}),
        (without_note, {"FILE": "../all.json"}),
        (damaged_note, {"LAYOUT": "store-partition"}),
    ],
)
def test_the_command_that_an_error_recommends_works_as_it_stands(
    folder: Path, log: MemoryChangelog, refuse: Callable[[Path, MemoryChangelog], str], given: dict[str, str]
) -> None:
    """From any working folder, and for a path with a blank in it."""
    state = (folder / "state").rename(folder / "a state")
    (folder / "all.json").write_text('{"subtopologies": [{"stores": ["counts", "totals", "former"]}]}')
    (command,) = re.findall(rf"{RELOCATE} '[^']+'(?: --[a-z]+ [A-Za-z-]+)+", refuse(state, log))
    result = run(folder, *(given.get(word, word) for word in shlex.split(command)[4:]))
    assert result.returncode == 0
    assert "moved: " in result.stdout or refuse is damaged_note


def test_the_command_is_written_in_one_way_wherever_it_is_written() -> None:
    root = Path(stores.__file__).parents[1]
    files = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "stores").rglob("*.py")]
    commands = []
    for file in files:
        text = file.read_text()
        if file != Path(__file__) and "stores.relocate" in text:
            # As one text, also where a string goes on in the next line.
            text = re.sub(r"\"?\s*\n\s*f?\"?", " ", text)
            commands += [(file.name, each) for each in re.findall(r"(?:\S+ +){0,3}-m +stores\.relocate", text)]
    assert {name for name, _ in commands} >= {"tasks.md", "relocate.py", "store_places.py"}
    assert [each for each in commands if RELOCATE not in each[1]] == []
