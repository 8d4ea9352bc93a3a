"""A snapshot of the changes since the last one restores what a whole one would, and costs what it changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import log2
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stores.changelog.files import PartitionLog, StoreChanges
from stores.changelog.files.format import Header, Record, is_whole, unique_name
from stores.errors import ChangelogError, OffsetOutOfRangeError, ProducerFencedError
from stores.tests.changelog.files.log_model import State, header, opened, with_rows

KEYS = 2_000
"""The keys of the first version. Later ones change a few of them."""


def changes(version: int, seed: int = 0) -> dict[str, StoreChanges]:
    """The same at each call: all keys in version 0, then puts and deletes of some, and marks that come and go."""
    random = Random(f"{seed} {version}")
    numbers = range(KEYS) if version == 0 else random.sample(range(KEYS + 50), 12)
    pairs = {
        b"%05d" % number: None if version and random.random() < 0.3 else random.randbytes(20) for number in numbers
    }
    marks = {f"mark {random.randrange(3)}": None if random.random() < 0.3 else random.randbytes(3)}
    return {"counts": StoreChanges(pairs, marks), "names": StoreChanges({b"%d" % (version % 7): b"%d" % version})}


def applied(state: State, records: Iterator[Record]) -> None:
    for store, is_mark, key, value in records:
        pairs, name = state.setdefault(store, {}), b"mark " + key if is_mark else key
        if value is None:
            pairs.pop(name, None)
        else:
            pairs[name] = value


class Model:
    """A log that is filled version by version, and the state at each of them."""

    def __init__(self, path: Path, seed: int = 0, **retention: int) -> None:
        self.log: PartitionLog = opened(path, **retention).partition(0)
        self.folder = path / "p00000"
        self.seed = seed
        self.states: list[State] = []
        self.snapshot_bytes = 0

    def add(self) -> int:
        """Append the next version, and write snapshots and remove files as a query does; return its number."""
        version = len(self.states)
        state: State = {store: dict(pairs) for store, pairs in self.states[-1].items()} if version else {}
        own, own_changes = header(version, seed=self.seed), changes(version, self.seed)
        for store, each in own_changes.items():
            applied(state, ((store, True, name.encode(), mark) for name, mark in each.marks.items()))
            applied(state, ((store, False, key, value) for key, value in each.pairs.items()))
        self.states.append(state)
        self.log.append(own, own_changes)
        if self.log.snapshot_due(self.log.listing()):
            self.log.write_snapshot(own, self.whole(version))
            self.snapshot_bytes += sum(size for _, size in self.log.listing().snapshots[version])
        self.log.remove_old(self.log.listing())
        return version

    def whole(self, version: int) -> Iterator[Record]:
        for store, pairs in self.states[version].items():
            for key, value in pairs.items():
                yield store, key.startswith(b"mark "), key.removeprefix(b"mark "), value

    def snapshots(self) -> list[str]:
        return sorted(name for files in self.log.listing().snapshots.values() for name, _ in files)

    def restored(self, after: int | None, to: int) -> State:
        """The state that a restore gives, from the state at ``after``."""
        state: State = {}
        if after is not None:
            state = {store: dict(pairs) for store, pairs in self.states[after].items()}
        reached: int | None = after
        for piece in self.log.restore(after, to):
            if piece.fresh:
                state = {}
            applied(state, piece.records)
            reached = piece.reached if piece.reached is not None else reached
        assert reached == to
        return state


def parts_of(model: Model, name: str) -> list[str]:
    with model.log._files.opened(name) as (own, _):
        return own.parts


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_each_version_that_is_kept_is_restored_from_each_state(tmp_path: Path, seed: int) -> None:
    model = Model(tmp_path, seed, snapshot_versions=2, keep_versions=3)
    most_parts = 0
    whole: set[str] = set()
    for _ in range(70):
        version = model.add()
        for to in range(max(0, version - 3), version + 1):
            after = Random(f"{seed} {version} {to}").choice([None, *range(to + 1)])
            assert model.restored(after, to) == model.states[to], (after, to)
        for name in model.snapshots():
            most_parts = max(most_parts, len(parts_of(model, name)))
            whole |= {name} if is_whole(name) else set()
    assert most_parts >= 2
    assert len(whole) == 1


def test_a_snapshot_of_changes_does_not_read_the_whole_state(tmp_path: Path) -> None:
    model = Model(tmp_path, snapshot_versions=3, keep_versions=3)
    for _ in range(3):
        model.add()
    assert [is_whole(name) for name in model.snapshots()] == [True]

    def unread() -> Iterator[Record]:
        raise AssertionError("it is read")
        yield

    model.whole = lambda version: unread()  # type: ignore[method-assign]
    for _ in range(30):
        model.add()
    assert model.restored(None, 32) == model.states[32]


def test_snapshots_cost_what_was_changed_and_are_few(tmp_path: Path) -> None:
    """Ten times the versions write somewhat more than ten times the bytes, and need a file or two more."""
    written, files = [], []
    for versions in (40, 400):
        model = Model(tmp_path / str(versions), snapshot_versions=4, keep_versions=4)
        for _ in range(versions):
            model.add()
        whole_bytes = max(size for each in model.log.listing().snapshots.values() for _, size in each)
        written.append((model.snapshot_bytes - whole_bytes) / versions)
        files.append(len(model.snapshots()))
    change_bytes = sum(model.log.listing().versions.values()) / len(model.log.listing().versions)
    assert written[1] < 3 * written[0] < 6 * change_bytes
    assert files[1] <= 4 + log2(400)


def test_the_snapshot_is_whole_again_when_the_changes_are_as_large(tmp_path: Path) -> None:
    model = Model(tmp_path, snapshot_versions=4, keep_versions=0)
    whole: set[str] = set()
    for _ in range(600):
        model.add()
        new_whole = {name for name in model.snapshots() if is_whole(name)} - whole
        assert not new_whole or len(model.snapshots()) == 1
        whole |= new_whole
        sizes = [size for each in model.log.listing().snapshots.values() for _, size in each]
        assert sum(sizes) <= 2 * max(sizes, default=0)
    assert 2 <= len(whole) <= 5
    assert model.restored(None, 599) == model.states[599]


def test_few_keys_that_change_again_and_again_make_no_large_file_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of a file of changes is that of the newest change of each key."""
    model = Model(tmp_path, snapshot_versions=10, keep_versions=0)

    def few_keys(version: int, seed: int = 0) -> dict[str, StoreChanges]:
        numbers = {0: range(4_000), 15: range(600)}.get(version, range(20))
        random = Random(version)
        return {"counts": StoreChanges({b"%05d" % number: random.randbytes(20) for number in numbers})}

    monkeypatch.setattr(f"{__name__}.changes", few_keys)
    for _ in range(20):
        model.add()
    [whole, large] = model.snapshots()
    written = model.snapshot_bytes
    for _ in range(200):
        version = model.add()
    assert model.snapshots()[:2] == [whole, large]
    assert len(model.snapshots()) == 3
    assert model.snapshot_bytes - written < 20 * 5_000
    assert model.restored(None, version) == model.states[version]


def with_changes(path: Path, **retention: int) -> Model:
    """A log whose newest snapshot is of changes that continue at least two files."""
    model = Model(path, **{"snapshot_versions": 2, "keep_versions": 0, **retention})
    while True:
        model.add()
        names = model.snapshots()
        if len(names) >= 3 and len(parts_of(model, names[-1])) >= 2:
            return model


def test_changes_that_lack_a_file_are_no_snapshot(tmp_path: Path) -> None:
    """A slow attempt wrote them after others had removed that file: what an older snapshot needs is kept."""
    model = with_changes(tmp_path)
    newest = model.add()
    before = sorted(file.name for file in model.folder.iterdir())
    parts = [model.snapshots()[0], unique_name(1, "f" * 16, "changes")]
    model.log._snapshots._write(replace(header(newest, parts=parts), kind="changes"), iter(()))
    assert model.log.remove_old(model.log.listing()) == 0
    assert {*before} <= {file.name for file in model.folder.iterdir()}
    assert model.restored(None, newest) == model.states[newest]
    for _ in range(4):
        version = model.add()
        assert model.restored(None, version) == model.states[version]
    assert unique_name(newest, header(newest).id, "changes") not in model.snapshots()


def test_changes_without_a_whole_snapshot_are_none(tmp_path: Path) -> None:
    model = Model(tmp_path, snapshot_versions=100)
    model.add()
    model.log._snapshots._write(replace(header(0), kind="changes"), iter(()))
    assert model.restored(None, 0) == model.states[0]


def test_a_snapshot_of_a_history_that_a_copy_has_replaced_is_not_read(tmp_path: Path) -> None:
    """The folder was brought back over itself, so files are left of versions that are written once more."""
    model = Model(tmp_path, snapshot_versions=2, keep_versions=0)
    for _ in range(6):
        model.add()
    left = Model(tmp_path / "left", seed=9, snapshot_versions=7, keep_versions=0)
    for _ in range(7):
        left.add()
    [name] = left.snapshots()
    (model.folder / name).write_bytes((left.folder / name).read_bytes())
    assert model.log.snapshot_due(model.log.listing()) is False
    for _ in range(3):
        version = model.add()
        for after in (None, version - 1):
            assert model.restored(after, version) == model.states[version]


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_damaged_changes_are_refused_and_the_next_snapshot_is_whole(tmp_path: Path) -> None:
    model = with_changes(tmp_path, keep_versions=3)
    newest, whole = len(model.states) - 1, model.snapshots()[0]
    damage(model.folder / model.snapshots()[-1])
    with pytest.raises(ChangelogError, match="is damaged"):
        model.restored(None, newest)
    # Who is not far behind needs no snapshot.
    assert model.restored(newest - 1, newest) == model.states[newest]
    for _ in range(8):
        rows = with_rows(model.log, header(len(model.states)), [1]).rows
        newest = model.add()
        assert model.log.listing().rows == [(newest, rows)]
    assert is_whole(model.snapshots()[0])
    assert model.snapshots()[0] != whole
    assert model.restored(None, newest) == model.states[newest]


def test_a_damaged_part_makes_the_next_snapshot_whole(tmp_path: Path) -> None:
    """It would be joined with the changes after it."""
    model = with_changes(tmp_path)
    [_, *parts] = parts_of(model, model.snapshots()[-1])
    for name in (*parts, model.snapshots()[-1]):
        if not is_whole(name):
            damage(model.folder / name)
    for _ in range(2):
        newest = model.add()
    assert is_whole(model.snapshots()[-1])
    assert model.restored(None, newest) == model.states[newest]


def test_a_state_that_is_little_behind_is_not_restored_whole(tmp_path: Path) -> None:
    """The changes alone are smaller than the versions; with what they continue they are not."""
    model = with_changes(tmp_path, snapshot_versions=4, keep_versions=8)
    newest = max(model.log.listing().snapshots)
    assert min(size for _, size in model.log.listing().snapshots[newest]) < sum(
        size for version, size in model.log.listing().versions.items() if newest - 4 < version <= newest
    )
    assert not any(piece.fresh for piece in model.log.restore(newest - 4, newest))


def test_a_damaged_version_makes_the_next_snapshot_whole(tmp_path: Path) -> None:
    model = Model(tmp_path, snapshot_versions=3, keep_versions=0)
    for _ in range(5):
        model.add()
    damage(model.folder / "v000000000004.arrows")
    model.add()
    assert is_whole(model.snapshots()[-1])
    assert model.restored(None, 5) == model.states[5]


def test_changes_that_a_zombie_made_are_not_continued(tmp_path: Path) -> None:
    """A version since the last snapshot is not built on the one before: the state itself is written."""
    model = Model(tmp_path, snapshot_versions=3, keep_versions=0)
    for _ in range(4):
        model.add()
    (model.folder / "v000000000003.arrows").unlink()
    with_other_past = replace(header(3), previous_id="e" * 16)
    model.log.append(with_other_past, changes(3))
    for _ in range(2):
        model.add()
    assert is_whole(model.snapshots()[-1])


def test_a_zombies_version_with_the_number_of_a_continued_snapshot_is_not_read(tmp_path: Path) -> None:
    model = with_changes(tmp_path)
    newest = len(model.states) - 1
    continued = int(parts_of(model, model.snapshots()[-1])[1][1:13])
    assert continued not in model.log.listing().versions
    with pytest.raises(ProducerFencedError):
        model.log.append(header(continued, "f" * 16), changes(continued, seed=9))
    with pytest.raises(OffsetOutOfRangeError, match=f"versions {newest} to {newest}"):
        model.restored(None, continued)
    for after in (None, *range(newest)):
        assert model.restored(after, newest) == model.states[newest], after


def test_removed_files_that_power_loss_brings_back_in_part_do_no_harm(tmp_path: Path) -> None:
    model = Model(tmp_path, snapshot_versions=3, keep_versions=3)
    contents: dict[Path, bytes] = {}
    for _ in range(26):
        contents |= {file: file.read_bytes() for file in model.folder.glob("*")}
        newest = model.add()
    missing = sorted(file for file in contents if not file.exists())
    assert sum("changes" in file.name for file in missing) > 3
    for seed in range(40):
        back = Random(seed).sample(missing, 6)
        for file in back:
            file.write_bytes(contents[file])
        for to in range(newest - 3, newest + 1):
            after = Random(f"{seed} {to}").choice([None, *range(to)])
            assert model.restored(after, to) == model.states[to], (seed, after, to)
        for file in back:
            file.unlink()


def test_a_snapshot_that_is_removed_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    model = with_changes(tmp_path)
    pieces = model.log.restore(None, len(model.states) - 1)
    next(pieces)
    (model.folder / model.snapshots()[-1]).unlink()
    with pytest.raises(OffsetOutOfRangeError):
        list(pieces)


def test_a_file_under_the_name_of_another_snapshot_is_refused(tmp_path: Path) -> None:
    model = with_changes(tmp_path)
    first, *_, newest = model.snapshots()
    (model.folder / first).write_bytes((model.folder / newest).read_bytes())
    with pytest.raises(ChangelogError, match="holds version"):
        model.restored(None, len(model.states) - 1)


@pytest.mark.parametrize("parts", [["../../secret.arrows"], ["v000000000001.arrows"], "v1", [7], None])
def test_parts_that_are_no_files_of_snapshots_are_refused(tmp_path: Path, parts: Any) -> None:
    model = Model(tmp_path, snapshot_versions=100)
    model.add()
    own: Header = header(0, parts=parts)
    model.log._snapshots._write(replace(own, kind="changes"), iter(()))
    with pytest.raises(ChangelogError, match=r"v000000000000-[0-9a-f]{16}\.changes\.arrows"):
        model.restored(None, 0)
