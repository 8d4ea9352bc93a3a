"""Files that a disk may hold after power loss are distinguished from impossible ones, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from harness.crash_states.changes import Content
from harness.crash_states.files import Tree
from harness.crash_states.model import FolderModel
from harness.crash_states.states import positions, states
from harness.tests.disk_membership import why_illegal
from harness.tests.disk_script import Script, base, create_another, rename_any

NAMES, JOURNAL, STRICT = FolderModel.NAMES, FolderModel.JOURNAL, FolderModel.STRICT
SECTOR = 512


def objections(script: Script, before: Tree, found: Tree, model: FolderModel = NAMES) -> list[str]:
    return why_illegal(script.operations, before, script.end, found, model)


def whole_sectors(seed: int, operations: int) -> Script:
    """Operations that cover whole sectors, so that a sector that lost a write shows an earlier one whole."""
    rng = Random(seed)
    script, there = Script(), ["a", "f/b"]

    def write() -> None:
        data = rng.randbytes(SECTOR) * rng.randint(1, 12)
        script.write(rng.choice(there), SECTOR * rng.randrange(20), data, synchronous=rng.random() < 0.1)

    doing: list[Callable[[], object]] = [
        lambda: create_another(script, there),
        lambda: rename_any(script, there, rng),
        *[write] * 5,
        lambda: script.truncate(rng.choice(there), SECTOR * rng.randrange(12)),
        lambda: script.allocate(rng.choice(there), SECTOR * rng.randrange(12), SECTOR * rng.randint(1, 12), True),
        lambda: script.sync(rng.choice([*there, "", "f"])),
        lambda: script.datasync(rng.choice(there)),
    ]
    while script.end < operations:
        rng.choice(doing)()
    return script


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3, 4))])
@pytest.mark.parametrize("model", list(FolderModel))
def test_every_state_that_is_enumerated_is_legal(model: FolderModel, seed: int) -> None:
    script, before = whole_sectors(seed, 14), base(a=b"a" * 1024, f__b=b"b" * 5120)
    checked = 0
    for state in states(script.operations, before, positions(script.operations), model, seed):
        at = state.description.position
        if at not in state.description.kept:
            assert why_illegal(script.operations, before, at, state.tree, model) == [], (seed, state.description)
            checked += 1
    assert checked > 100


@pytest.mark.parametrize("model", list(FolderModel))
def test_a_synced_write_that_is_missing_is_objected_to(model: FolderModel) -> None:
    script = Script().write("a", 0, b"2" * 600).sync("a").write("a", 0, b"3" * 600)
    before = base(a=b"1" * 600)
    assert objections(script, before, base(a=b"2" * 600), model) == []
    assert objections(script, before, base(a=b"3" * 512 + b"2" * 88), model) == []
    assert objections(script, before, base(a=b"1" * 600), model)
    assert objections(script, before, base(a=b"2" * 512 + b"1" * 88), model)


def test_bytes_that_were_never_there_are_objected_to() -> None:
    script = Script().write("a", 0, b"2" * 600)
    assert objections(script, base(a=b"1" * 600), base(a=b"2" * 599 + b"x"))
    # A sector is atomic.
    assert objections(script, base(a=b"1" * 600), base(a=b"2" * 100 + b"1" * 500))


def test_a_size_that_no_choice_of_changes_gives_is_objected_to() -> None:
    script = Script().write("a", 0, b"1" * 3000).truncate("a", 700).write("a", 9000, b"2")
    for size, legal in ((0, True), (700, True), (1024, True), (2000, False), (3000, True), (4096, True), (9002, False)):
        data = (b"1" * min(size, 700)).ljust(size, b"\0")
        assert (objections(script, base(a=b""), base(a=data)) == []) == legal, size


def test_zeros_are_legal_where_a_file_grew_and_nowhere_else() -> None:
    script = Script().write("a", 512, b"2" * 1024)
    before = base(a=b"1" * 512)
    assert objections(script, before, base(a=b"1" * 512 + bytes(512) + b"2" * 512)) == []
    assert objections(script, before, base(a=bytes(512) + b"2" * 1024))


def test_a_name_that_is_durable_is_missed_and_one_that_never_was_is_objected_to() -> None:
    script = Script().create("b").sync("b").create("c")
    assert objections(script, base(a=b""), base(a=b"", b=b"")) == []
    assert objections(script, base(a=b""), base(a=b"", b=b"", c=b"")) == []
    assert objections(script, base(a=b""), base(a=b""))
    assert objections(script, base(a=b""), base(a=b"", b=b"", d=b""))


def test_names_out_of_their_order_are_strictly_legal_alone() -> None:
    script = Script().create("f/a").create("b").unlink("c")
    before, found = base(f__x=b"", c=b""), base(f__x=b"", b=b"", c=b"")
    assert objections(script, before, found, NAMES)
    assert objections(script, before, found, JOURNAL)
    assert objections(script, before, found, STRICT) == []
    assert objections(script.sync(), before, found, STRICT)


def test_two_names_of_one_file_are_not_two_files() -> None:
    script = Script().link("a", "b").sync()
    linked = Tree({(0, "a"): 1, (0, "b"): 1}, {1: Content.of(b"1")})
    assert objections(script, base(a=b"1"), linked) == []
    apart = Tree({(0, "a"): 1, (0, "b"): 2}, {1: Content.of(b"1"), 2: Content.of(b"1")})
    assert objections(script, base(a=b"1"), apart)


def test_a_folder_is_no_file() -> None:
    script = Script().mkdir("f").sync()
    assert objections(script, Tree(), Tree({(0, "f"): 1})) == []
    assert objections(script, Tree(), base(f=b""))


def test_of_a_file_that_was_mapped_the_bytes_are_not_checked() -> None:
    script = Script().create("m").truncate("m", 512).map_writable("m").sync("m").create("a").sync("a")
    assert objections(script, Tree(), base(m=b"x" * 512, a=b"")) == []
    assert objections(script, Tree(), base(m=b"x" * 513, a=b""))
    assert objections(script, Tree(), base(m=b"x" * 512, a=b"x"))
