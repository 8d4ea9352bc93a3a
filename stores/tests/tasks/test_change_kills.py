"""A kill at each failpoint of each change of a store or a folder as a whole: what was there is left, or what is new.

A case names a change, a failpoint where its process is killed, and what counts then. It is checked as the kill left it,
and again after the next opening, which completes the change. A new failpoint without a case is a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from stores.changelog import Changelog, MemoryChangelog, SqliteChangelog
from stores.errors import StoreIncompatibleError
from stores.failpoints import Part, failpoint
from stores.files.creation import is_complete
from stores.files.identity import STEPS, present_version, read_identity
from stores.files.store_directory import STEP_DONE, STEP_NOTED
from stores.interface import Durability
from stores.registry import open_store
from stores.tasks import RestoreReport, StateDirectory, StreamTask, Subtopology, Topology, relocate
from stores.tasks.directory import relocation_journal, replacement, state_directory
from stores.tasks.directory.replacement import DECIDED, RENAMED, SYNCED
from stores.tasks.directory.store_places import SWAP_END, beside, is_streams_store
from stores.tasks.stores import earlier_store, log_follower, log_format, store_format
from stores.tests.files import test_format as formats
from stores.tests.forked_call import call_until_killed
from stores.tests.snapshots.test_kills import FAILPOINTS as KILLS_OF_SNAPSHOTS
from stores.tests.tasks import streams_kinds
from stores.tests.tasks.directory import test_layout_change as layouts
from stores.tests.tasks.directory import test_state_directory as directories
from stores.tests.tasks.directory.relocating import (
    PARTITION,
    PRESENT,
    STORES,
    check_entries_are_beside_their_stores,
    check_laid_out,
    lay_out,
    task_id,
    task_of,
)
from stores.tests.tasks.setup import (
    DIRECT,
    INDEXED,
    checkpoint,
    counting_task,
    store_folder,
)
from stores.tests.tasks.stores import test_log_rewriting as rewriting
from stores.tests.tasks.stores.test_offset_import import DUAL, check_imported, leave_to_import
from stores.tests.tasks.stores.test_takeover import check_and_count_on, left_by_streams
from stores.tests.tasks.streams_folder import streams_folder
from stores.tests.tasks.typed import STORE, feed_times
from stores.tests.tasks.upgrading import (
    ROLLING,
    expected,
    names_beside,
    new_task,
    old_task,
    online_task,
    rewriting_task,
    running_task,
    shown,
    upgrade,
    work,
)
from stores.tests.test_failpoints import declaring_modules

LMDB, NATIVE = "lmdb-indexed-batch", "sqlite-native"
CREATED = "create.built"


class Left(StrEnum):
    """The state that a kill leaves."""

    BEFORE = "before"
    """The old state counts."""
    AFTER = "after"
    """The new state counts, and the next opening completes the change."""
    NEVER = "never"
    """The change ends without reaching the failpoint so often."""


BEFORE, AFTER, NEVER = Left.BEFORE, Left.AFTER, Left.NEVER


class Case(NamedTuple):
    """A change, in one of its variants, whose process is killed."""

    change: str
    variant: tuple[str, ...]
    failpoint: str
    left: Left
    hit: int = 1
    then: tuple[str, ...] = ()
    """The failpoints at which the processes that complete the change are killed, one after the other."""

    def __str__(self) -> str:
        return "-".join([self.change, *self.variant, self.failpoint, str(self.hit), *self.then])


def cases(
    change: str, *variant: str, before: Iterable[str] = (), after: Iterable[str] = (), hits: Iterable[int] = (1,)
) -> Iterator[Case]:
    for left, points in ((BEFORE, before), (AFTER, after)):
        yield from (Case(change, variant, point, left, hit) for point in points for hit in hits)


WRITTEN = log_follower.AFTER_WRITE
RESTORED = (log_follower.BEFORE_WRITE, WRITTEN)
BUILT = (store_format.CAUGHT_UP, SYNCED)
MOVES = (*replacement.FAILPOINTS, relocation_journal.ENTRIES_TAKEN, relocation_journal.ENTRIES_WRITTEN)
AT_ONCE = tuple(point for point in replacement.FAILPOINTS if point != RENAMED)
CASES = [
    *(
        case
        for backend in (INDEXED, LMDB, DIRECT)
        for case in cases(
            "offline upgrade",
            backend,
            before=(*store_format.FAILPOINTS, SYNCED, *RESTORED),
            after=replacement.FAILPOINTS,
        )
    ),
    Case(
        "offline upgrade",
        (INDEXED,),
        DECIDED,
        AFTER,
        then=(RENAMED, RENAMED, replacement.PLACED, replacement.CLEARED, replacement.CLEARED),
    ),
    *cases("online upgrade", before=(store_format.STEPPED, WRITTEN), hits=(1, 2, 3)),
    Case("online upgrade", (), store_format.BEGUN, BEFORE),
    *(Case("online upgrade", (), store_format.BEGUN, NEVER, hit) for hit in (2, 3)),
    *cases("running upgrade", INDEXED, before=(store_format.STEPPED, *BUILT), after=replacement.FAILPOINTS),
    *cases("running upgrade", DIRECT, before=[SYNCED], after=[RENAMED]),
    *cases("running upgrade", NATIVE, after=[replacement.PLACED]),
    *cases("rolling upgrade", INDEXED, before=[CREATED, *RESTORED]),
    *cases("rolling upgrade", NATIVE, before=[WRITTEN]),
    *cases("rolling upgrade", DIRECT, before=[WRITTEN]),
    *cases("rewriting", INDEXED, after=log_format.FAILPOINTS),
    *cases("rewriting", DIRECT, after=log_format.FAILPOINTS),
    *cases("takeover", INDEXED, "left", before=[CREATED, SYNCED], after=replacement.FAILPOINTS),
    *cases("takeover", INDEXED, "left", after=[RENAMED], hits=[2]),
    *cases("takeover", INDEXED, "right", before=[CREATED, SYNCED], after=AT_ONCE, hits=[2]),
    *cases("takeover", INDEXED, "right", after=[RENAMED], hits=[3, 4]),
    *cases("takeover", LMDB, "left", before=[CREATED, SYNCED], after=replacement.FAILPOINTS),
    *(
        case
        for backend, kind in ((INDEXED, "window"), (LMDB, "duplicates"), (NATIVE, "session"), (INDEXED, "versioned"))
        for case in cases("kind takeover", backend, kind, before=[CREATED, SYNCED], after=replacement.FAILPOINTS)
    ),
    *cases("kind takeover", INDEXED, "versioned", after=[RENAMED], hits=[2]),
    *(
        case
        for durability in Durability
        for case in cases("offset import", INDEXED, durability, before=[earlier_store.IMPORTED])
    ),
    *cases("offset import", INDEXED, Durability.CHANGELOG, after=[earlier_store.ADOPTED]),
    *cases("offset import", DUAL, Durability.DISK, before=[earlier_store.IMPORTED]),
    *(
        Case("offset import", (INDEXED, Durability.CHANGELOG), point, left, then=(point,))
        for point, left in zip(earlier_store.FAILPOINTS, (BEFORE, AFTER), strict=True)
    ),
    *cases("relocation", "run", after=MOVES),
    *cases("relocation", "run", after=[RENAMED], hits=[2, len(STORES)]),
    *cases("relocation", "task", after=[RENAMED]),
    *(
        case
        for direction in ("there", "back")
        for case in (
            # The journal is written twice: first it only keeps tasks from opening.
            *cases("layout change", direction, "run", before=[DECIDED]),
            *cases("layout change", direction, "run", after=[*MOVES[1:], relocation_journal.LAYOUT_NOTED]),
            *cases("layout change", direction, "run", after=[DECIDED], hits=[2]),
            *cases("layout change", direction, "run", after=[RENAMED], hits=[2, len(STORES)]),
            *cases("layout change", direction, "task", before=[DECIDED]),
            *cases("layout change", direction, "task", after=[DECIDED, RENAMED], hits=[2]),
        )
    ),
    *(
        case
        for durability in Durability
        for case in cases("migration", durability, before=[STEP_DONE], after=[STEP_NOTED])
    ),
    *cases("removal", after=[state_directory.REMOVING]),
]


class Change(NamedTuple):
    """A change: its preparation, its run in a process of its own, and the check after a kill, each of a variant."""

    begin: Callable[..., object]
    run: Callable[..., object]
    check: Callable[..., None]


def begin_upgrade(folder: Path, backend: str = INDEXED, count: int = 12) -> None:
    with SqliteChangelog(folder / "log.sqlite") as log:
        feed_times(log, range(20))
        work(old_task(folder, log, backend), count)


def begin_running_upgrade(folder: Path, backend: str) -> None:
    begin_upgrade(folder, backend, 6)


def check_old(task: StreamTask, *, restored: bool = False) -> int:
    """Check that the old store counts, which replays nothing; return the number of records that the task has done."""
    [report] = task.open()
    assert not report.wiped
    assert restored or not report.records
    record_count = sum(task.input_offsets().values())
    assert len(shown(task)) == len(expected(record_count))
    return record_count


def check_new(folder: Path, log: Changelog, backend: str, done: int) -> tuple[RestoreReport, int]:
    """Check the new store in its place, and that the task goes on; return its report, and the number of upgrades."""
    with closing(new_task(folder, log, backend)) as task:
        [report] = task.open()
        upgrades = task.metrics.stores["s"].upgrade_total
        assert shown(task) == expected(done)
        task.run(commit=True)
        assert shown(task) == expected(20)
    assert names_beside(folder) == []
    return report, upgrades


def check_offline_upgrade(folder: Path, left: Left, begun: None, backend: str) -> None:
    """The offset of the old store does not count for the new one, if the checkpoint file alone has it."""
    has_offsets = backend != DIRECT
    if not has_offsets:
        assert checkpoint(folder).read() == {}
    with SqliteChangelog(folder / "log.sqlite") as log:
        old = old_task(folder, log, backend)
        if left is AFTER:
            with pytest.raises(StoreIncompatibleError):
                old.open()
        elif has_offsets:
            with closing(old):
                assert check_old(old) == 12
        report, upgrades = check_new(folder, log, backend, 12)
    if has_offsets:
        assert (report.wiped, report.records) == (False, 0)
        assert upgrades == (left is BEFORE)
    else:
        assert report.from_offset == 0


def check_online_upgrade(folder: Path, left: Left, begun: None) -> None:
    """The task has its store, and the steps that were made."""
    with SqliteChangelog(folder / "log.sqlite") as log:
        with closing(online_task(folder, log)) as old:
            done = check_old(old, restored=True)
        check_new(folder, log, INDEXED, done)


def check_running_upgrade(folder: Path, left: Left, begun: None, backend: str) -> None:
    with SqliteChangelog(folder / "log.sqlite") as log:
        with closing(running_task(folder, log, backend)) as task:
            [report] = task.open()
            assert backend == DIRECT or not report.wiped
            assert sum(task.input_offsets().values()) == 8
            assert task.metrics.stores["s"].upgrade_total == 0
            task.run(2, commit=True)
            task.run(2, commit=True)
            assert shown(task) == expected(12)
        check_new(folder, log, backend, 12)


def check_rolling_upgrade(folder: Path, left: Left, begun: None, backend: str) -> None:
    """A new instance that rebuilds disturbs nobody, and makes up for the kill."""
    with SqliteChangelog(folder / "log.sqlite") as log:
        with closing(old_task(folder, log, backend)) as old:
            assert check_old(old) == 12
            old.run(4, commit=True)
            new = new_task(folder / "new", log, backend, mode="roll_over")
            new.rebuild()
            old.run(2, commit=True)
        with closing(new):
            new.open()
            assert shown(new) == expected(18)
            new.run(commit=True)
            assert shown(new) == expected(20)


def check_rewriting(folder: Path, left: Left, begun: None, backend: str) -> None:
    with SqliteChangelog(folder / "log.sqlite") as log:
        with closing(new_task(folder / "other", log, backend)) as task:
            task.open()
            assert shown(task) == expected(12)
        with closing(rewriting_task(folder, log, backend)) as task:
            [report] = task.open()
            assert backend == DIRECT or not report.wiped
            assert shown(task) == expected(12)
            assert {record.headers for record in log.read(STORE, log.start_offset(STORE))} == {rewriting.NEW_HEADERS}
            task.run(commit=True)
            assert shown(task) == expected(20)
        with closing(rewriting.restored(folder / "third", log)) as task:
            task.open()
            assert shown(task) == expected(20)


def begin_takeover(folder: Path, backend: str, name: str) -> None:
    with SqliteChangelog(folder / "log.sqlite") as log:
        left_by_streams(folder, log)


def take_over(folder: Path, backend: str, name: str) -> None:
    counting_task(folder, SqliteChangelog(folder / "log.sqlite"), backend).open()


def check_takeover(folder: Path, left: Left, begun: None, backend: str, name: str) -> None:
    path = store_folder(folder, backend, name)
    is_decided = beside(path, SWAP_END).exists() or (path.is_dir() and is_complete(path) and not is_streams_store(path))
    assert is_decided == (left is AFTER)
    assert is_decided or is_streams_store(streams_folder(folder, name))
    with SqliteChangelog(folder / "log.sqlite") as log:
        check_and_count_on(folder, log, backend, [(False, 0)] * 2)


def begin_kind_takeover(folder: Path, backend: str, kind: str) -> None:
    with SqliteChangelog(folder / "log.sqlite") as log:
        streams_kinds.left_by_streams(folder, log, kind)


def take_over_kind(folder: Path, backend: str, kind: str) -> None:
    streams_kinds.kind_task(folder, SqliteChangelog(folder / "log.sqlite"), kind, backend).open()


def check_kind_takeover(folder: Path, left: Left, begun: None, backend: str, kind: str) -> None:
    path = store_folder(folder, backend, "s")
    is_decided = beside(path, SWAP_END).exists() or (path.is_dir() and is_complete(path) and not is_streams_store(path))
    assert is_decided == (left is AFTER)
    with SqliteChangelog(folder / "log.sqlite") as log:
        for _ in range(2):
            with closing(streams_kinds.kind_task(folder, log, kind, backend)) as task:
                assert [(report.wiped, report.records) for report in task.open()] == [(False, 0)]
                assert streams_kinds.contents(kind, task) == streams_kinds.model(kind, streams_kinds.PUTS)
    assert not streams_kinds.segments_folder(folder).exists()


def begin_offset_import(folder: Path, backend: str, durability: Durability) -> None:
    with SqliteChangelog(folder / "log.sqlite") as log:
        leave_to_import(folder, log, durability)


def import_offsets(folder: Path, backend: str, durability: Durability) -> None:
    counting_task(folder, SqliteChangelog(folder / "log.sqlite"), backend, durability=durability).open()


def check_offset_import(folder: Path, left: Left, begun: None, backend: str, durability: Durability) -> None:
    assert read_identity(store_folder(folder, backend)).backend == (backend if left is AFTER else DIRECT)
    with SqliteChangelog(folder / "log.sqlite") as log:
        check_imported(folder, log, backend, durability)


def complete_by_a_task(folder: Path) -> None:
    """Open and close a task that knows nothing of the change."""
    with MemoryChangelog() as log:
        log.create_topic("input-9", PARTITION + 1)
        task = task_of(Topology({9: Subtopology()}), 9, folder, {"log": log, "topology": None})
        task.open()
        task.close()
    (folder / str(task_id(9)) / ".lock").unlink()
    (folder / str(task_id(9))).rmdir()


def check_relocation(folder: Path, left: Left, inodes: dict[str, int], by: str) -> None:
    """No entry is without its store, also where a task would go on from it."""
    check_entries_are_beside_their_stores(folder)
    if by == "task":
        complete_by_a_task(folder)
    else:
        relocate(folder, PRESENT)
    check_laid_out(folder, inodes)


def begin_layout_change(folder: Path, direction: str, by: str) -> dict[str, int]:
    inodes = lay_out(folder)
    if direction == "back":
        layouts.to_own(folder)
    return inodes


def change_layout(folder: Path, direction: str, by: str) -> None:
    (layouts.to_tasks if direction == "back" else layouts.to_own)(folder)


def check_layout_change(folder: Path, left: Left, inodes: dict[str, int], direction: str, by: str) -> None:
    layouts.check_no_entry_is_alone(folder)
    if by == "task":
        complete_by_a_task(folder)
    else:
        change_layout(folder, direction, by)
    is_changed = by == "run" or left is AFTER
    is_own = is_changed == (direction == "there")
    (layouts.check_own if is_own else layouts.check_by_task)(folder, inodes)


def begin_migration(folder: Path, durability: Durability) -> None:
    formats.made(folder / "store")


def migrate(folder: Path, durability: Durability) -> None:
    STEPS.append(formats.stamp)
    open_store(formats.BACKEND, folder / "store", durability=durability)


def check_migration(folder: Path, left: Left, begun: None, durability: Durability) -> None:
    assert read_identity(folder / "store").format_version == present_version() + (left is AFTER)
    STEPS.append(formats.stamp)
    try:
        with open_store(formats.BACKEND, folder / "store", durability=durability) as store:
            assert dict(store.all()) == {key: b"2:" + value for key, value in formats.OLD.items()}
    finally:
        STEPS.pop()


def move_stores(folder: Path, by: str) -> None:
    relocate(folder, PRESENT)


def remove(folder: Path) -> None:
    StateDirectory(folder).clean(directories.WEEK_S)


def check_removal(folder: Path, left: Left, used: Path) -> None:
    """No task is left, and the next removal finishes it."""
    directory = StateDirectory(folder)
    assert directory.tasks() == []
    directories.used(directory, long_ago=False)
    assert directory.clean(directories.WEEK_S) == []
    assert [entry.name for entry in folder.iterdir() if entry.is_dir()] == [used.name]
    assert directory.offsets(directories.TASK) == {directories.A: 7}


CHANGES = {
    "offline upgrade": Change(begin_upgrade, partial(upgrade, way="offline"), check_offline_upgrade),
    "online upgrade": Change(begin_upgrade, partial(upgrade, way="online"), check_online_upgrade),
    "running upgrade": Change(begin_running_upgrade, partial(upgrade, way="running"), check_running_upgrade),
    "rolling upgrade": Change(begin_upgrade, partial(upgrade, way=ROLLING), check_rolling_upgrade),
    "rewriting": Change(begin_upgrade, partial(upgrade, way="rewriting"), check_rewriting),
    "takeover": Change(begin_takeover, take_over, check_takeover),
    "kind takeover": Change(begin_kind_takeover, take_over_kind, check_kind_takeover),
    "offset import": Change(begin_offset_import, import_offsets, check_offset_import),
    "relocation": Change(lambda folder, by: lay_out(folder), move_stores, check_relocation),
    "layout change": Change(begin_layout_change, change_layout, check_layout_change),
    "migration": Change(begin_migration, migrate, check_migration),
    "removal": Change(lambda folder: directories.used(StateDirectory(folder)), remove, check_removal),
}
REPLACING = ("offline upgrade", "running upgrade", "takeover", "kind takeover", "relocation", "layout change")
"""The changes that reach each failpoint of a replacement."""


def make(folder: Path, change: str, variant: tuple[str, ...]) -> None:
    CHANGES[change].run(folder, *variant)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_kill_leaves_what_was_there_or_what_is_new_and_the_next_opening_completes_it(
    tmp_path: Path, case: Case
) -> None:
    change = CHANGES[case.change]
    before = change.begin(tmp_path, *case.variant)
    assert call_until_killed(make, tmp_path, case.failpoint, case.hit, case.change, case.variant) == (
        case.left is not NEVER
    )
    for later in case.then:
        assert call_until_killed(make, tmp_path, later, 1, case.change, case.variant)
    change.check(tmp_path, case.left, before, *case.variant)


def test_every_failpoint_of_a_change_of_stores_or_folders_is_tried() -> None:
    own = ("stores.tasks.directory.", "stores.tasks.stores.", "stores.files.", "stores.snapshots.")
    names = [name for name, module in declaring_modules() if module.startswith(own)]
    failpoints = {case.failpoint for case in CASES} | KILLS_OF_SNAPSHOTS
    assert {name for name in names if failpoint(name).part is Part.CHANGE} <= failpoints
    for change in REPLACING:
        assert {case.failpoint for case in CASES if case.change == change} >= {*replacement.FAILPOINTS}
