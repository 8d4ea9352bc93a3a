"""After any damage to a store's files, opening its task ends with the changelog's state, and reports the reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stores.changelog import SqliteChangelog
from stores.interface import Durability
from stores.registry import backend_named, backends
from stores.tests.tasks.setup import counting_task, expected_state, feed, run_until_killed, state, store_folder
from stores.tests.tasks.stores.damaged import MORE_KEYS

KEYS = [number % 4 for number in range(12)]
PERSISTENT = [name for name, backend in backends().items() if backend.persistent]
CLOSED = ("lmdb-native", "sqlite-native")
"""Damaged after a clean close by ``make test``, which damages RocksDB after a kill alone."""
LONG = set(PERSISTENT) - {"rocksdb-indexed-batch", "lmdb-native", "sqlite-native"}
"""Of each engine, the backends but one: damaged after a kill by ``make test-long``."""
REFUSED = {
    "data": {"removed"},
    "data/CURRENT": {"removed", "emptied"},
    "data/MANIFEST": {"removed", "emptied", "garbled", "followed by garbage"},
    "data/data.mdb": {"removed", "emptied", "zeroed", "garbled", "garbled at its start"},
    "store.json": {"removed", "emptied", "cut", "zeroed", "garbled"},
    "open": {"emptied", "cut", "cut by a byte", "zeroed", "garbled"},
}
"""By a file's name, without its number: damage that leaves nothing to go on from."""
REFUSED_WHEN_CLOSED = {"data/store.db": {"removed", "emptied", "cut", "zeroed", "garbled", "garbled at its start"}}
"""As ``REFUSED``, unless there is a log with all of it beside."""


def closed(folder: Path, backend: str, durability: Durability) -> None:
    """A task that has processed all there is, and was closed."""
    with SqliteChangelog(folder / "log.sqlite") as log:
        feed(log, KEYS)
        task = counting_task(folder, log, backend, durability=durability)
        task.open()
        task.run()
        task.close()


def killed(folder: Path, backend: str, durability: Durability) -> None:
    """A task that has processed all there is, and was killed."""
    with SqliteChangelog(folder / "log.sqlite") as log:
        feed(log, KEYS)
    settings = {"durability": durability, "commit_every_records": 3}
    assert run_until_killed(counting_task, folder, "task.after_checkpoint", len(KEYS) // 3, backend, **settings)


def outcomes(folder: Path, backend: str, durability: Durability) -> list[dict[str, Any]]:
    """Run the task of ``folder`` in each of its damaged copies. None may crash the process."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.run(
        [sys.executable, "-m", "stores.tests.tasks.stores.damaged", folder, backend, durability],
        env=environment,
        stdout=subprocess.PIPE,
        timeout=600,
        check=False,
    )
    starts = [json.loads(line) for line in process.stdout.splitlines()]
    assert process.returncode == 0, starts[-1:]
    return starts


@pytest.mark.parametrize(
    ("backend", "ended"),
    [pytest.param(backend, killed, marks=pytest.mark.long if backend in LONG else []) for backend in PERSISTENT]
    + [
        # A closed store has the files of its engine alone, whatever its strategy.
        pytest.param(backend, closed, marks=[] if backend in CLOSED else pytest.mark.long)
        for backend in PERSISTENT
    ],
)
def test_a_task_opens_with_the_state_of_its_changelog_after_any_damage_to_its_stores(
    path: Path, backend: str, ended: Callable[[Path, str, Durability], None]
) -> None:
    """Damage that only reading finds is made good when the function comes upon it."""
    level = min(backend_named(backend).durabilities - {Durability.CHANGELOG})
    base = path.with_name("base")
    base.mkdir()
    ended(base, backend, level)
    starts = outcomes(base, backend, level)
    assert len(starts) > 20
    assert any(start["wiped"] for start in starts)
    expected = {key.decode(): int(value) for key, value in expected_state([*KEYS, *MORE_KEYS]).items()}
    fatal = REFUSED if ended is killed else REFUSED | REFUSED_WHEN_CLOSED
    for told in starts:
        assert told.get("state") == expected, told
        assert (told["reason"] is not None) is told["wiped"], told
        assert not told["other"] or backend_named(backend).strategy == "direct", told
        if told["damage"] in fatal.get(told["file"].split("-")[0], ()):
            assert told["wiped"], told


@pytest.mark.parametrize("backend", PERSISTENT)
def test_a_store_that_was_open_in_an_earlier_boot_is_restored_where_power_loss_may_have_torn_it(
    tmp_path: Path, backend: str
) -> None:
    for level in sorted(backend_named(backend).durabilities):
        folder = tmp_path / level
        folder.mkdir()
        closed(folder, backend, level)
        tearable = backend_named(backend).load_engine().torn_by_power_loss(level)
        mark = {"boot": "an earlier one", "pid": 1, "durability": level, "tearable": tearable}
        (store_folder(folder, backend) / "open").write_text(json.dumps(mark))
        with SqliteChangelog(folder / "log.sqlite") as log:
            task = counting_task(folder, log, backend, durability=level)
            left, right = task.open()
            # One that mixes its writes was wiped for that alone.
            assert left.wiped is (tearable or backend_named(backend).strategy == "direct")
            assert (left.reason is not None, right.wiped) == (left.wiped, False)
            assert state(task, "left") == expected_state(KEYS)
            task.close()
