"""A power cut on a real file system leaves a crash state of the model: ext4 and xfs, in images that root mounts.

``make test`` tries one seed on ext4, ``make test-long`` all seeds and stores.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from harness.checkers.prefix import Found, PrefixFinding
from harness.crash_states.files import Tree
from harness.crash_states.model import FolderModel
from harness.experiments.iofaults.case import IoFaultCase
from harness.experiments.iofaults.plan import subjects_with
from harness.experiments.iofaults.power import NEXT_BOOT
from harness.experiments.iofaults.processes import folded
from harness.experiments.iofaults.subjects import subjects
from harness.experiments.iofaults.workshop import Workshop
from harness.folders import quick_folder
from harness.io_trace.recorder import Kind
from harness.processes.fork_server import ForkServer
from harness.tests.disk_membership import why_illegal
from harness.tests.filesystems.crash import Crash, crash
from harness.tests.filesystems.images import FILE_SYSTEMS, FileSystem, missing_for, mounted

SEEDS = (*range(1, 12), 18, 27, 37)
"""Among them are the seeds that refuted earlier models."""
CUTS = 3
CALLS = 120
STORE_SEED = 5
COMMITS = 6
EVERY_FILE_SYSTEM = pytest.mark.parametrize("kind", FILE_SYSTEMS, ids=lambda kind: kind.name)


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder in memory, where there is one: the images are small."""
    folder = Path(tempfile.mkdtemp(prefix="images-", dir=quick_folder()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def need(kind: FileSystem, folder: Path) -> None:
    if missing := missing_for(kind, folder):
        pytest.skip(f"{kind.name}: {missing}")


def randomly_written(fork_server: ForkServer, kind: FileSystem, folder: Path, seed: int) -> Crash:
    """A process that makes plain calls, killed at one of the first 100 operations, and the power cut three times."""
    plan = ["KillAt", Random(f"kill {seed}").randrange(5, 100)]
    arguments = {"seed": seed, "calls": CALLS, "plan": plan, "beside": ""}
    return crash(fork_server, kind, folder, seed, "harness.tests.filesystems.random_writer:run", arguments, CUTS)


def objections_to(made: Crash, counts: Counter[str], promises: str) -> list[str]:
    """Objections to what was found, by the model that promises are held to; counts what every model says."""
    objections = []
    for tree in {tree.digest(): tree for tree in made.found}.values():
        counts["states"] += 1
        for model in FolderModel:
            said = why_illegal(made.recording, Tree(), made.position, tree, model)
            counts[f"legal by {model}"] += not said
            if model is FolderModel.NAMES:
                objections += [f"{promises}: {each}" for each in said]
    return objections


@pytest.mark.long
@EVERY_FILE_SYSTEM
def test_what_a_power_cut_leaves_of_plain_calls_is_a_state_of_the_model(
    fork_server: ForkServer, folder: Path, kind: FileSystem
) -> None:
    need(kind, folder)
    counts: Counter[str] = Counter()
    objections: list[str] = []
    for seed in SEEDS:
        objections += objections_to(randomly_written(fork_server, kind, folder, seed), counts, f"seed {seed}")
    print(f"{kind.name}, seeds {SEEDS}: {dict(counts)}")
    assert objections == []
    assert counts["states"] > len(SEEDS)
    # The stronger model is said to be what these two do.
    assert counts[f"legal by {FolderModel.JOURNAL}"] == counts["states"]


def store_checked(
    fork_server: ForkServer, kind: FileSystem, folder: Path, case: IoFaultCase, seed: int, counts: Counter[str]
) -> tuple[list[str], list[PrefixFinding]]:
    """The subject of ``case`` on a file system whose power is cut: objections to its files, and verdicts on it."""
    with Workshop(case, seed) as shop:
        plan = ["KillAt", Random(f"kill {seed} {case}").randrange(shop.undisturbed())]
        arguments = {"name": case.subject, "level": case.level, "mutant": case.mutant, "commits": case.commits}
        arguments |= {"seed": seed, "plan": plan, "account": str(shop.scratch("account"))}
        made = crash(
            fork_server, kind, folder, seed, "harness.experiments.iofaults.processes:run_writer", arguments, CUTS
        )
        promises = folded(
            [operation.text for operation in made.recording if operation.kind is Kind.NOTE], shop.demanded
        )
        verdicts = []
        for tree in {tree.digest(): tree for tree in made.found}.values():
            shop.place(tree)
            verdicts.append(shop.verdict(promises, boot=NEXT_BOOT))
            counts[verdicts[-1].found] += 1
    return objections_to(made, counts, f"{case.subject} at {case.level}, seed {seed}, {plan}"), verdicts


@pytest.mark.long
@EVERY_FILE_SYSTEM
def test_a_store_on_a_file_system_whose_power_is_cut_keeps_what_it_promised(
    fork_server: ForkServer, folder: Path, kind: FileSystem
) -> None:
    need(kind, folder)
    counts: Counter[str] = Counter()
    objections: list[str] = []
    broken: list[object] = []
    below_disk = [each for each in subjects() if each[1] != "DISK"]
    chosen = [each for each in subjects() if each[1] == "DISK"] + Random(STORE_SEED).sample(below_disk, 3)
    for name, level in chosen:
        case = IoFaultCase(name, level, "power", commits=COMMITS)
        said, verdicts = store_checked(fork_server, kind, folder, case, STORE_SEED, counts)
        objections += said
        broken += [(name, level, verdict) for verdict in verdicts if not verdict.expected]
    print(f"{kind.name}, seed {STORE_SEED}: {dict(counts)}")
    assert objections == []
    assert broken == []


@pytest.mark.long
@EVERY_FILE_SYSTEM
def test_a_store_that_does_not_sync_is_detected_by_a_real_power_cut(
    fork_server: ForkServer, folder: Path, kind: FileSystem
) -> None:
    need(kind, folder)
    name = subjects_with("no-sync")[-1]
    case = IoFaultCase(name, "DISK", "power", commits=COMMITS, mutant="no-sync")
    found: list[Found] = []
    for seed in range(STORE_SEED, STORE_SEED + 20):
        objections, verdicts = store_checked(fork_server, kind, folder, case, seed, Counter())
        print(f"{kind.name}, seed {seed}, {name} without a sync: {verdicts}")
        assert objections == []
        found += [verdict.found for verdict in verdicts if not verdict.expected]
        if found:
            break
    assert set(found) <= {Found.LOST, Found.TORN}
    assert found


def test_nothing_stays_mounted_where_something_goes_wrong(folder: Path) -> None:
    kind = FILE_SYSTEMS[0]
    need(kind, folder)
    image = folder / "image"
    kind.make_in(image)
    with pytest.raises(KeyError):
        with mounted(image, folder / "place"):
            assert str(folder / "place") in Path("/proc/mounts").read_text()
            raise KeyError
    assert str(folder) not in Path("/proc/mounts").read_text()
    assert subprocess.run(["losetup", "-j", image], capture_output=True, check=True).stdout == b""


def test_what_can_not_be_made_here_is_said_to_be_missing(folder: Path) -> None:
    assert missing_for(FileSystem("none", ("mkfs.there-is-none",), 1 << 20), folder)
    assert list(folder.iterdir()) == []


def test_a_disk_that_lacks_a_synced_write_is_illegal(fork_server: ForkServer, folder: Path) -> None:
    kind = FILE_SYSTEMS[0]
    need(kind, folder)
    made = randomly_written(fork_server, kind, folder, seed=1)
    # As if all that was done had been synced, which it was not.
    end = made.position
    claimed = [*made.recording, replace(made.recording[0], index=end, kind=Kind.SYNC_ALL, file=-1, path="")]
    assert why_illegal(made.recording, Tree(), end, made.found[0], FolderModel.NAMES) == []
    assert why_illegal(claimed, Tree(), end + 1, made.found[0], FolderModel.NAMES)
