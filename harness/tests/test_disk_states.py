"""The crash states that are enumerated, and their descriptions."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.checkers.prefix import demand
from harness.crash_states.changes import Rest, WriteTear
from harness.crash_states.files import ROOT, Tree
from harness.crash_states.model import FolderModel
from harness.crash_states.states import Depth, State, distinct, positions, rebuild, said, states
from harness.experiments.iofaults.power import states_after
from harness.tests.disk_script import (
    NO_TEARS,
    Script,
    base,
    enumerated,
    files,
    found_at,
    found_everywhere,
    writes,
)

NAMES = FolderModel.NAMES


@pytest.mark.parametrize("count", range(7))
def test_the_subsets_of_up_to_six_unsynced_writes_are_all_there(count: int) -> None:
    found = found_at(writes(count), count, base(a=bytes(6)), depth=NO_TEARS)
    assert len(found) == 2**count


def test_of_more_writes_each_prefix_each_missing_and_each_alone_is_there() -> None:
    found = [state["a"] for state in found_at(writes(9), 9, base(a=b"0" * 9), depth=NO_TEARS)]
    for place in range(9):
        assert b"1" * place + b"0" * (9 - place) in found
        assert b"1" * place + b"0" + b"1" * (8 - place) in found
        assert b"0" * place + b"1" + b"0" * (8 - place) in found
    assert b"1" * 9 in found
    assert len(found) < 50


def test_of_many_files_each_is_missing_and_each_alone() -> None:
    script = Script()
    for place in range(4):
        script.write("a", place, b"1").write("b", place, b"1").write("c", place, b"1")
    before = base(a=b"0" * 4, b=b"0" * 4, c=b"0" * 4)
    found = found_at(script, before=before, depth=replace(NO_TEARS, random_subsets=0))
    for changed in ("", "a", "b", "c", "ab", "ac", "bc", "abc"):
        assert {name: (b"1" if name in changed else b"0") * 4 for name in "abc"} in found


def test_of_many_operations_names_are_kept_without_bytes_and_bytes_without_names() -> None:
    script = Script().create("n").write("n", 0, b"1").rename("n", "a")
    for place in range(6):
        script.write("b", place, b"1")
    found = found_at(script, before=base(a=b"O", b=b"0" * 6), depth=replace(NO_TEARS, random_subsets=0))
    assert {"a": b"", "b": b"0" * 6} in found
    assert {"a": b"O", "b": b"1" * 6} in found
    assert {"a": b"O", "n": b"1", "b": b"1" * 6} in found


@pytest.mark.parametrize("model", [FolderModel.NAMES, FolderModel.JOURNAL])
def test_of_many_operations_too_the_latest_names_are_lost_first(model: FolderModel) -> None:
    script = Script()
    for place in range(5):
        script.create(f"c{place}").write(f"c{place}", 0, b"1")
    found = [set(state) for state in found_at(script, model=model)]
    prefixes = [{f"c{place}" for place in range(count)} for count in range(6)]
    assert all(names in prefixes for names in found)
    assert all(names in found for names in prefixes)


def test_of_many_writes_every_subset_of_the_last_is_there_over_the_others() -> None:
    depth = Depth(torn_files=0, random_subsets=0, recent_operations=5)
    found = [state["a"] for state in found_at(writes(9), before=base(a=b"0" * 9), depth=depth)]
    assert {data for data in found if data.startswith(b"1111")} >= {b"1111" + f"{n:05b}".encode() for n in range(32)}


def test_an_unread_file_is_always_whole_and_the_others_have_every_subset() -> None:
    script = Script()
    for place in range(9):
        script.write("f/LOG", place, b"1")
    for place in range(5):
        script.write("f/a", place, b"1")
    before = base(f__LOG=b"", f__a=b"0" * 5)
    found = found_at(script, before=before, depth=Depth(unread=("*/LOG",)))
    assert len(found) == 2**5
    assert {state["f/LOG"] for state in found} == {b"1" * 9}
    # States that differ in it alone are one, and each can be made again.
    unread = Depth(unread=("*/LOG",))
    every = list(distinct(script.operations, before, positions(script.operations), NAMES, 7, unread))
    assert len(every) == 2**5
    for state in every:
        assert files(rebuild(script.operations, before, state.description)) == files(state.tree)


def test_more_random_subsets_find_more_states() -> None:
    before = base(a=bytes(20))
    few, many = (found_at(writes(20), 20, before, depth=replace(NO_TEARS, random_subsets=n)) for n in (0, 30))
    assert len(many) > len(few) + 20


def test_the_last_write_is_torn_at_sectors_of_the_file() -> None:
    old, new = b"o" * 2000, b"n" * 1500
    script = Script().write("a", 100, new)
    found = [state["a"] for state in found_at(script, before=base(a=old))]
    whole = old[:100] + new + old[1600:]
    expected = [old, whole]
    for place in (512, 1024, 1536):
        expected += [whole[:place] + old[place:], old[:place] + whole[place:]]
    assert sorted(found) == sorted(expected)


def test_a_write_within_a_sector_is_never_torn() -> None:
    assert len(found_at(Script().write("a", 512, b"n" * 512), before=base(a=b"o" * 2000))) == 2


def test_a_long_write_is_torn_at_sectors_and_at_blocks_as_often_as_asked() -> None:
    script = Script().write("a", 0, b"n" * 50_000)
    torn = [
        state.description.tears[0].at
        for state in enumerated(script, 1, base(a=b"o" * 50_000), Depth(tears=5))
        if state.description.kind == "torn"
    ]
    assert all(at % 512 == 0 for at in torn)
    assert len({at for at in torn if at % 4096 == 0}) >= 5
    assert len({at for at in torn if at % 4096 != 0}) >= 3
    assert len(set(torn)) <= 10


def test_a_longer_file_may_end_in_zeros() -> None:
    script = Script().write("a", 1, b"n" * 600).write("a", 601, b"m")
    found = [state["a"] for state in found_at(script, before=base(a=b"o"))]
    assert b"o" + b"n" * 600 + b"\0" in found
    assert b"o" + bytes(601) in found


def test_a_torn_write_that_lengthens_a_file_leaves_zeros_or_a_shorter_file() -> None:
    found = [state["a"] for state in found_at(Script().write("a", 0, b"n" * 1000), before=base(a=b"o"))]
    assert b"n" * 512 in found
    assert b"n" * 512 + bytes(488) in found
    assert b"o" + bytes(511) + b"n" * 488 in found


def test_the_last_writes_of_several_files_are_torn_and_no_synced_one() -> None:
    script = Script()
    for name in "abcd":
        script.write(name, 0, b"n" * 1000)
    script.sync("d")
    before = base(a=b"o" * 1000, b=b"o" * 1000, c=b"o" * 1000, d=b"o" * 1000)
    found = enumerated(script, 5, before, Depth(torn_files=2))
    assert {tear.operation for state in found for tear in state.description.tears} == {1, 2}


def test_garbage_and_small_tears_are_there_only_when_asked_for() -> None:
    script, before = Script().write("a", 0, b"n" * 600), base(a=b"o" * 100)
    within = enumerated(script, 1, before)
    beyond = enumerated(script, 1, before, Depth(beyond_model=True, tears=20))
    assert all(
        tear.rest is not Rest.NOISE and tear.at % 512 == 0 for state in within for tear in state.description.tears
    )
    assert all(state.description.tears for state in beyond)
    assert {tear.at for state in beyond for tear in state.description.tears} == set(range(0, 600, 64))
    noisy = [state for state in beyond if state.description.tears[0] == WriteTear(0, 64, Rest.NOISE)]
    data = files(noisy[0].tree)["a"]
    assert len(data) == 600
    assert data.startswith(b"n" * 64 + b"o" * 36)
    assert len(set(data[100:])) > 100


def test_no_more_states_than_asked_for_and_nothing_and_all_among_them() -> None:
    before = base(a=bytes(30))
    found = enumerated(writes(30), 30, before, Depth(states_per_position=9))
    assert len(found) == 9
    assert [state.description.kind for state in found[:2]] == ["none", "all"]
    assert {files(state.tree)["a"] for state in found} >= {bytes(30), b"1" * 30}


def test_of_few_states_every_kind_of_choice_is_among_them() -> None:
    before = base(a=bytes(30))
    every = {state.description.kind for state in enumerated(writes(30), 30, before)}
    few = enumerated(writes(30), 30, before, Depth(states_per_position=len(every)))
    assert len(every) > 5
    assert {state.description.kind for state in few} == every


# Telling states apart


def test_a_state_met_at_several_positions_is_yielded_once_and_counted() -> None:
    script = Script().write("a", 0, b"1").sync("a").datasync("a")
    found = found_everywhere(script, base(a=b"0"))
    assert [files(state.tree)["a"] for state in found] == [b"0", b"1"]
    assert [state.description.position for state in found] == [0, 1]
    every = list(states(script.operations, base(a=b"0"), positions(script.operations), NAMES, 7))
    assert sum(state.states for state in found) == len(every)
    assert [state.states for state in found] == [2, 3]


def test_what_was_said_holds_a_state_to_the_most_and_the_least_of_its_positions() -> None:
    script = Script().note("try 1").write("a", 0, b"1").sync("a").note("done 1").note("try 2").sync("a").sync("a")
    recording = script.operations
    nothing, one = found_everywhere(script, base(a=b"0"))
    assert said(recording, nothing.said_before) == ()
    assert said(recording, nothing.said_by) == ("try 1",)
    # Before the sync nothing had been acknowledged; after it "done 1" had, and the state is the same.
    assert said(recording, one.said_before) == ("try 1",)
    assert said(recording, one.said_by) == ("try 1", "done 1", "try 2")


def test_at_the_end_everything_was_said() -> None:
    script = Script().write("a", 0, b"1").sync("a").note("done")
    last = found_everywhere(script, base(a=b"0"))[-1]
    assert said(script.operations, last.said_by) == ("done",)


def test_a_synchronous_write_under_way_was_attempted_and_not_acknowledged() -> None:
    script = Script().note("try 1").write("a", 0, b"1", synchronous=True).note("done 1")
    _, under_way = enumerated(script, 0, base(a=b"0"))
    assert files(under_way.tree) == {"a": b"1"}
    assert said(script.operations, under_way.said_before) == ("try 1",)
    assert said(script.operations, under_way.said_by) == ("try 1",)
    nothing, one = found_everywhere(script, base(a=b"0"))
    assert said(script.operations, one.said_before) == ("try 1",)
    assert said(script.operations, one.said_by) == ("try 1", "done 1")
    assert said(script.operations, nothing.said_by) == ("try 1",)


def test_the_first_state_is_yielded_before_the_next_is_asked_for() -> None:
    endless = states(writes(6).operations, base(a=b""), range(6, 7), NAMES, 7)
    assert files(next(endless).tree) == {"a": b""}


# What was synced


@st.composite
def synced_recordings(draw: st.DrawFn) -> tuple[Script, list[dict[str, dict[int, bytes]]]]:
    """Draw a recording that writes each place of a file once, and the bytes synced before each position.

    These do not come from the model. They are given by file and place. Each file is created and its folder synced at
    first.
    """
    script = Script()
    names = ["a", "b"]
    must: dict[str, dict[int, bytes]] = {}
    written: dict[str, dict[int, bytes]] = {name: {} for name in names}
    so_far: list[dict[str, dict[int, bytes]]] = [{}]

    def note() -> None:
        so_far.extend([{name: dict(places) for name, places in must.items()}] * (script.end + 1 - len(so_far)))

    for name in names:
        script.create(name)
        note()
    script.sync()
    must.update({name: {} for name in names})
    note()
    for step, (name, what, bytes_written) in enumerate(
        draw(
            st.lists(
                st.tuples(
                    st.sampled_from(names),
                    st.sampled_from(["write", "write", "direct", "sync", "datasync", "other"]),
                    st.sampled_from([1, 700, 4096, 5000]),
                ),
                max_size=14,
            )
        )
    ):
        if what in ("write", "direct"):
            data = bytes([step + 1]) * bytes_written
            offset = step * 6000 if step % 2 else sum(map(len, written[name].values()))
            if any(at < offset + len(data) and offset < at + len(other) for at, other in written[name].items()):
                offset = step * 6000 + 200_000
            script.write(name, offset, data, synchronous=what == "direct")
            written[name][offset] = data
            if what == "direct":
                must[name][offset] = data
        elif what == "other":
            script.create(f"c{step}").rename(f"c{step}", "c")
        else:
            script.sync(name) if what == "sync" else script.datasync(name)
            must[name].update(written[name])
        note()
    return script, so_far


@settings(max_examples=60, deadline=None)
@given(synced_recordings(), st.sampled_from(list(FolderModel)), st.integers(0, 99))
def test_every_state_contains_what_was_synced_before_it(
    made: tuple[Script, list[dict[str, dict[int, bytes]]]], model: FolderModel, seed: int
) -> None:
    script, so_far = made
    assert len(so_far) == script.end + 1
    for state in states(
        script.operations, Tree(), positions(script.operations), model, seed, Depth(random_subsets=4, tears=1)
    ):
        there = state.tree.files
        for name, places in so_far[state.description.position].items():
            data = there[name].read()
            for offset, expected in places.items():
                assert data[offset : offset + len(expected)] == expected


def continued() -> Script:
    """A process whose sync failed, and one that acknowledges two commits of the same content, and closes."""
    script = Script().create("log").sync().write("log", 0, b"1").fail_to_sync("log")
    script.note("open 0").write("log", 0, b"1")
    for number in (1, 2):
        script.note(f"attempt {number}").write("log", 0, b"1").sync("log").note(f"ack {number}")
    return script.create("closed").sync("closed").sync()


def states_of(script: Script, bound: int | None = None) -> list[State]:
    case = SimpleNamespace(variant="names", states_per_position=bound)
    shop: Any = SimpleNamespace(case=case, seed=1, demanded=demand("DISK", "power"))
    return list(states_after(script.operations, 3, shop))


def test_equal_content_is_checked_again_where_more_was_acknowledged() -> None:
    script = continued()
    acknowledged = [operation.index for operation in script.operations if operation.text.startswith("ack")]
    at_each = [[state for state in states_of(script) if state.description.position == at] for at in acknowledged]
    assert [len(at_one) for at_one in at_each] == [1, 1]
    [first], [second] = at_each
    assert first.tree.digest() == second.tree.digest()


def test_the_end_is_checked() -> None:
    script = continued()
    last = states_of(script)[-1]
    assert last.description.position == script.end
    assert (ROOT, "closed") in last.tree.names
