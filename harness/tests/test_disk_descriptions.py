"""The same seed gives the same states, slices of them are the whole, and a description makes one of them again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from harness.crash_states.files import Tree
from harness.crash_states.model import Disk, FolderModel
from harness.crash_states.states import Depth, Description, State, distinct, positions, rebuild, states
from harness.io_trace.recorder import Kind
from harness.tests.disk_script import (
    Script,
    base,
    create_another,
    enumerated,
    files,
    found_everywhere,
    rename_any,
    writes,
)

NAMES = FolderModel.NAMES
BEYOND_MODEL = 3
"""The seed of the scripts whose states are also those that the model does not have."""


def random_script(seed: int, operations: int) -> tuple[Script, Tree]:
    """Operations of every kind on a few files, and what was there before."""
    rng = Random(seed)
    before = base(a=b"a" * 700, f__b=b"b" * 5000)
    script, there = Script(), ["a", "f/b"]

    def unlink() -> None:
        if len(there) > 1:
            script.unlink(there.pop(rng.randrange(len(there))))

    def write() -> None:
        data = bytes([rng.randrange(256)]) * rng.choice((1, 600, 5000))
        script.write(rng.choice(there), rng.randrange(6000), data, synchronous=rng.random() < 0.1)

    doing: list[Callable[[], object]] = [
        lambda: create_another(script, there),
        lambda: rename_any(script, there, rng),
        unlink,
        *[write] * 5,
        lambda: script.truncate(rng.choice(there), rng.randrange(6000)),
        lambda: script.sync(rng.choice([*there, "", "f"])),
        lambda: script.datasync(rng.choice(there)),
        lambda: script.note(f"said {script.end}"),
    ]
    while script.end < operations:
        rng.choice(doing)()
    return script, before


def described(found: list[State]) -> list[tuple[Description, bytes, int, int]]:
    return [(state.description, state.tree.digest(), state.said_before, state.said_by) for state in found]


def test_the_same_seed_gives_the_same_states_and_another_seed_others() -> None:
    before = base(a=b"0" * 40)
    found = [described(enumerated(writes(40), 40, before, seed=seed)) for seed in (1, 1, 2)]
    assert found[0] == found[1]
    assert found[0] != found[2]


@pytest.mark.parametrize("model", list(FolderModel))
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_slices_together_are_the_whole(model: FolderModel, seed: int) -> None:
    script, before = random_script(seed, 40)
    every = positions(script.operations)
    whole = described(list(states(script.operations, before, every, model, seed)))
    parts = [range(7), range(7, 8), range(8, 30), range(30, len(every))]
    assert [
        state for part in parts for state in described(list(states(script.operations, before, part, model, seed)))
    ] == whole
    told = Counter(digest for _, digest, _, _ in whole)
    assert {
        state.tree.digest(): state.states for state in distinct(script.operations, before, every, model, seed)
    } == told


@pytest.mark.parametrize("model", list(FolderModel))
@pytest.mark.parametrize("seed", [0, BEYOND_MODEL, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_a_description_rebuilds_the_state_that_it_came_with(model: FolderModel, seed: int) -> None:
    script, before = random_script(seed, 40)
    depth = Depth(beyond_model=seed == BEYOND_MODEL)
    found = list(distinct(script.operations, before, positions(script.operations), model, seed, depth))
    assert len(found) > 20
    assert len({state.tree.digest() for state in found}) == len(found)
    for state in found[:: max(1, len(found) // 150)]:
        again = Description.from_json(state.description.to_json())
        assert again == state.description
        assert files(rebuild(script.operations, before, again)) == files(state.tree)


@pytest.mark.parametrize("seed", range(4))
def test_a_crash_state_is_the_base_plus_the_kept_operations(seed: int) -> None:
    script, before = random_script(seed, 40)
    operations = [operation for operation in script.operations if operation.kind is not Kind.NOTE]
    for state in states(script.operations, before, positions(script.operations), NAMES, seed):
        if state.description.kind == "all" and state.description.position not in state.description.kept:
            expected = before.copy()
            for operation in operations[: state.description.position]:
                expected.apply(operation)
            assert files(state.tree) == files(expected)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_a_state_is_what_its_operations_make_one_after_the_other(seed: int) -> None:
    rng, script, before = Random(seed), Script(), base(a=b"a" * 3000, b=b"")
    while script.end < 30:
        name = rng.choice("ab")
        if (drawn := rng.random()) < 0.7:
            script.write(name, rng.randrange(9000), rng.randbytes(rng.choice((1, 5000))), synchronous=drawn < 0.1)
        elif drawn < 0.85:
            script.truncate(name, rng.randrange(9000))
        else:
            script.datasync(name)
    for state in states(script.operations, before, positions(script.operations), NAMES, seed, Depth(torn_files=0)):
        position, kept = state.description.position, state.description.kept
        disk = Disk(script.operations, before, NAMES)
        while disk.position < position:
            disk.advance()
        lost = {change.index for change in disk.pending()} - set(kept)
        expected = before.copy()
        for operation in script.operations[: position + (position in kept)]:
            if operation.index not in lost:
                expected.apply(operation)
        assert files(state.tree) == files(expected)


def test_enumerating_leaves_the_base_as_it_was() -> None:
    script, before = random_script(1, 40)
    digest = before.digest()
    found_everywhere(script, before)
    assert before.digest() == digest


@pytest.mark.parametrize("text", ["", "[]", "{}", '["names",0,"none",[]]', '["other",0,"none",[],[]]', "1"])
def test_a_text_that_describes_no_state_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Description.from_json(text)


@pytest.mark.parametrize("position", [-1, 3])
def test_a_position_that_the_recording_does_not_have_is_refused(position: int) -> None:
    with pytest.raises(ValueError):
        rebuild(writes(2).operations, base(a=b""), Description(NAMES, position, "none", ()))


def test_positions_that_do_not_ascend_are_refused() -> None:
    for places in (range(3, 0, -1), [1, 1]):
        with pytest.raises(ValueError):
            next(states(writes(4).operations, base(a=b""), places, NAMES, 7))


def test_the_states_at_a_position_do_not_depend_on_the_positions_before_it() -> None:
    script, before = writes(4), base(a=b"")
    whole = [state.description for state in states(script.operations, before, range(5), NAMES, 7)]
    some = [state.description for state in states(script.operations, before, [0, 2, 4], NAMES, 7)]
    assert some == [description for description in whole if description.position % 2 == 0]
