"""A process that damages a task's store in each way there is, one after another, and opens the task each time.

It prints a line of JSON for each: what was damaged, how, what the task reported, and what it then holds.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from stores.changelog import SqliteChangelog
from stores.changelog.interface import Record
from stores.errors import StoreCorruptedError, StoreError
from stores.files import open_probe as probe
from stores.interface import Durability
from stores.tasks.context import TaskContext
from stores.tests.damages import damages
from stores.tests.tasks.setup import count, counting_task, feed, state, store_folder

SEED = 3
MORE_KEYS = range(4)
NEVER_READ_BACK = ("LOG", "OPTIONS-", "IDENTITY")
"""The first letters of RocksDB's files without which a store opens: two ways to damage one are enough.

All ways are tried on all files of a store by itself in ``conformance/test_damage``.
"""


def damaged(base: Path, store: Path) -> Iterator[tuple[str, str, Path]]:
    """Copies of ``base``, each with one file or folder of ``store``, a folder in it, damaged: which, and how."""
    entries = sorted(store.rglob("*"))
    for entry in entries:
        ways: list[tuple[str, Callable[[Path], object]]] = [("removed", shutil.rmtree)]
        if entry.is_file():
            ways = [*damages(entry.stat().st_size, SEED), ("followed by garbage", append_garbage)]
        if entry.name.startswith(NEVER_READ_BACK):
            ways = ways[:2]
        for what, damage in ways:
            copy = base.with_name("copy")
            shutil.copytree(base, copy)
            damage(copy / entry.relative_to(base))
            yield str(entry.relative_to(store)), what, copy
            shutil.rmtree(copy)


def append_garbage(file: Path) -> None:
    with open(file, "ab") as stream:
        stream.write(b"\1\2\3\4\0\0\5")


def main() -> None:
    base, backend, durability = sys.argv[1:]
    # Else each probe of what never ends would take that long.
    setattr(probe, "DEADLINE_S", 1)  # noqa: B010
    for file, what, folder in damaged(Path(base), store_folder(Path(base), backend)):
        print(json.dumps({"file": file, "damage": what, **outcome(folder, backend, durability)}), flush=True)


def outcome(folder: Path, backend: str, durability: str) -> dict[str, object]:
    """Open the task, let it read all and change every key there is, and look at what its store holds then."""
    with SqliteChangelog(folder / "log.sqlite") as log:
        task = counting_task(folder, log, backend, durability=Durability(durability), process=scan_and_count)
        try:
            left, right = task.open()
        except StoreError as error:
            return {"error": f"{type(error).__name__}: {error}"}
        feed(log, MORE_KEYS)
        noticed = False
        try:
            task.run()
        except StoreCorruptedError:
            noticed = True
            task.run()
        counts = {key.decode(): int(value) for key, value in state(task, "left").items()}
        task.close()
        return {"wiped": left.wiped, "reason": left.reason, "other": right.wiped, "noticed": noticed, "state": counts}


def scan_and_count(record: Record, context: TaskContext) -> None:
    """Read the whole store, then count: lookups alone need not read a block whose keys are in newer files as well."""
    with context.store("left").all() as pairs:
        list(pairs)
    count(record, context)


if __name__ == "__main__":
    main()
