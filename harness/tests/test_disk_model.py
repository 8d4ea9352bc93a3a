"""Each rule of the persistence model about what power loss may take, shown by a recording written by hand."""

from __future__ import annotations

import pytest

from harness.crash_states.files import Tree
from harness.crash_states.model import Disk, FolderModel
from harness.crash_states.states import Depth
from harness.io_trace.recorder import IoOperation, Kind
from harness.tests.disk_script import NO_TEARS, Files, Script, base, found_at

NAMES, JOURNAL, STRICT = FolderModel.NAMES, FolderModel.JOURNAL, FolderModel.STRICT
EVERY_MODEL = pytest.mark.parametrize("model", list(FolderModel))
IN_ORDER = pytest.mark.parametrize("model", [NAMES, JOURNAL])


def kept(
    script: Script, before: Tree | None = None, model: FolderModel = NAMES, position: int | None = None
) -> list[Files]:
    return found_at(script, position, before, model, NO_TEARS)


def same(found: list[Files], expected: list[Files]) -> bool:
    """Each expected state is found, once, and no other."""
    return len(found) == len(expected) and all(state in expected for state in found)


@EVERY_MODEL
def test_a_write_after_the_last_sync_may_be_missing(model: FolderModel) -> None:
    script = Script().write("a", 0, b"1").sync("a").write("a", 1, b"2")
    assert same(kept(script, base(a=b"."), model), [{"a": b"1"}, {"a": b"12"}])


@EVERY_MODEL
@pytest.mark.parametrize("how", ["sync", "datasync", "sync_all"])
def test_a_synced_write_is_never_missing(model: FolderModel, how: str) -> None:
    script = Script().write("a", 0, b"12").truncate("a", 1).write("a", 1, b"3")
    script.sync_all() if how == "sync_all" else getattr(script, how)("a")
    assert kept(script, base(a=b"."), model) == [{"a": b"13"}]


def test_a_sync_of_one_file_leaves_another_pending() -> None:
    script = Script().write("a", 0, b"1").write("b", 0, b"1").sync("b")
    assert same(kept(script, base(a=b"0", b=b"0")), [{"a": b"0", "b": b"1"}, {"a": b"1", "b": b"1"}])


@pytest.mark.parametrize("how", ["sync", "datasync", "sync_all"])
def test_data_lost_by_a_failed_sync_stays_lost(how: str) -> None:
    script = Script().write("a", 0, b"1").fail_to_sync("a").write("a", 1, b"2")
    script.sync_all() if how == "sync_all" else getattr(script, how)("a")
    assert same(kept(script, base(a=b"0.")), [{"a": b"02"}, {"a": b"12"}])


def test_data_written_again_after_a_failed_sync_is_made_durable_by_the_next() -> None:
    script = Script().write("a", 0, b"1").fail_to_sync("a").write("a", 0, b"1").sync("a")
    assert kept(script, base(a=b"0")) == [{"a": b"1"}]


def test_a_failed_sync_of_one_file_says_nothing_of_another() -> None:
    script = Script().write("a", 0, b"1").write("b", 0, b"1").fail_to_sync("b").sync("a")
    assert same(kept(script, base(a=b"0", b=b"0")), [{"a": b"1", "b": b"0"}, {"a": b"1", "b": b"1"}])


def test_only_the_write_whose_own_sync_failed_stays_lost() -> None:
    script = Script().write("a", 0, b"1").write("a", 1, b"2", unkept=True).sync("a")
    assert same(kept(script, base(a=b"0.")), [{"a": b"1."}, {"a": b"12"}])


@EVERY_MODEL
def test_names_lost_by_a_failed_sync_of_their_folder_stay_lost(
    model: FolderModel,
) -> None:
    script = Script().rename("a", "b").fail_to_sync("").sync("").sync("b")
    assert same(kept(script, base(a=b"1"), model), [{"a": b"1"}, {"b": b"1"}])


@EVERY_MODEL
def test_a_later_durable_change_of_a_folder_includes_names_lost_by_a_failed_sync(
    model: FolderModel,
) -> None:
    script = Script().rename("a", "b").fail_to_sync("").create("c").sync("").unlink("c").sync("")
    assert kept(script, base(a=b"1"), model) == [{"b": b"1"}]


def test_before_its_sync_has_returned_a_write_may_be_missing() -> None:
    script = Script().write("a", 0, b"1").sync("a")
    assert same(kept(script, base(a=b"0"), position=1), [{"a": b"0"}, {"a": b"1"}])


def test_a_synchronous_write_is_durable_once_it_returned_and_no_earlier_one_is_by_it() -> None:
    script = Script().write("a", 0, b"1").write("a", 2, b"3", synchronous=True)
    assert same(kept(script, base(a=b"...")), [{"a": b"..3"}, {"a": b"1.3"}])


def test_a_synchronous_write_may_be_there_before_it_returns() -> None:
    script = Script().write("a", 0, b"1").write("a", 2, b"3", synchronous=True)
    expected = [{"a": b"..."}, {"a": b"1.."}, {"a": b"..3"}, {"a": b"1.3"}]
    assert same(kept(script, base(a=b"..."), position=1), expected)


def test_a_synchronous_write_under_way_may_be_torn() -> None:
    script = Script().write("a", 0, b"n" * 1024, synchronous=True)
    before, halves = base(a=b"o" * 1024), (b"n" * 512 + b"o" * 512, b"o" * 512 + b"n" * 512)
    found = found_at(script, 0, before)
    assert same(found, [{"a": data} for data in (b"o" * 1024, b"n" * 1024, *halves)])
    assert found_at(script, 1, before) == [{"a": b"n" * 1024}]


@EVERY_MODEL
def test_unsynced_writes_reach_the_disk_in_any_order(model: FolderModel) -> None:
    script = Script().write("a", 0, b"1").write("b", 0, b"1")
    expected: list[Files] = [{"a": a, "b": b} for a in (b"0", b"1") for b in (b"0", b"1")]
    assert same(kept(script, base(a=b"0", b=b"0"), model), expected)


def test_a_write_behind_a_lost_one_leaves_zeros_between() -> None:
    script = Script().write("a", 0, b"1").write("a", 1, b"2")
    assert same(kept(script, base(a=b"")), [{"a": b""}, {"a": b"1"}, {"a": b"\x002"}, {"a": b"12"}])


def test_a_truncation_may_be_lost_while_a_later_write_is_kept() -> None:
    script = Script().truncate("a", 0).write("a", 0, b"1")
    assert same(kept(script, base(a=b"old")), [{"a": b"old"}, {"a": b""}, {"a": b"1ld"}, {"a": b"1"}])


def test_an_allocation_that_lengthens_a_file_may_be_lost() -> None:
    script = Script().allocate("a", 0, 3, grows=True).allocate("a", 0, 9, grows=False)
    assert same(kept(script, base(a=b"1")), [{"a": b"1"}, {"a": b"1\0\0"}])


def test_an_allocation_lengthens_a_file_whose_longer_write_was_lost() -> None:
    script = Script().write("a", 0, b"12345").allocate("a", 0, 3, grows=True)
    assert same(kept(script, base(a=b"")), [{"a": b""}, {"a": b"12345"}, {"a": bytes(3)}])


def test_of_a_write_behind_the_end_there_may_be_some_of_the_zeros_before_it_alone() -> None:
    script = Script().write("a", 9000, b"2")
    found = found_at(script, before=base(a=b"1"))
    assert {"a": b"1" + bytes(4095)} in found
    assert {"a": b"1" + bytes(8191)} in found


def test_an_allocation_never_cuts_a_file_whose_truncation_was_lost() -> None:
    script = Script().truncate("a", 1).allocate("a", 0, 3, grows=True)
    assert same(kept(script, base(a=b"12345")), [{"a": b"12345"}, {"a": b"1"}, {"a": b"1\0\0"}])


# Names


@EVERY_MODEL
def test_an_unsynced_rename_over_a_file_leaves_either(model: FolderModel) -> None:
    script = Script().create("new").write("new", 0, b"N").sync("new").sync().rename("new", "a")
    assert same(kept(script, base(a=b"O"), model), [{"a": b"O", "new": b"N"}, {"a": b"N"}])


@EVERY_MODEL
def test_a_rename_is_durable_once_its_folder_is_synced(model: FolderModel) -> None:
    script = Script().create("new").write("new", 0, b"N").sync("new").rename("new", "a").sync()
    assert kept(script, base(a=b"O"), model) == [{"a": b"N"}]


@EVERY_MODEL
def test_a_rename_may_be_kept_while_the_bytes_of_its_file_are_lost(model: FolderModel) -> None:
    script = Script().create("new").write("new", 0, b"N").rename("new", "a").sync()
    assert same(kept(script, base(a=b"O"), model), [{"a": b""}, {"a": b"N"}])


@EVERY_MODEL
def test_a_created_file_may_be_lost_with_its_writes(model: FolderModel) -> None:
    script = Script().create("a").write("a", 0, b"1")
    assert same(kept(script, model=model), [{}, {"a": b""}, {"a": b"1"}])


@EVERY_MODEL
def test_an_unlinked_file_may_come_back_with_its_bytes(model: FolderModel) -> None:
    assert same(kept(Script().unlink("a"), base(a=b"1"), model), [{"a": b"1"}, {}])


@EVERY_MODEL
def test_a_file_unlinked_durably_takes_its_unsynced_writes_with_it(model: FolderModel) -> None:
    script = Script().write("a", 0, b"2").write("a", 1, b"3").unlink("a").sync()
    disk = Disk(script.operations, base(a=b"1"), model)
    for _ in script.operations:
        disk.advance()
    assert disk.pending() == []
    assert kept(script, base(a=b"1"), model) == [{}]


@IN_ORDER
@pytest.mark.parametrize("how", ["sync", "datasync"])
def test_a_sync_of_a_new_file_makes_its_name_durable(model: FolderModel, how: str) -> None:
    script = Script().create("a").write("a", 0, b"1")
    getattr(script, how)("a")
    assert kept(script, model=model) == [{"a": b"1"}]


def test_by_the_strict_model_only_the_folder_makes_a_name_durable() -> None:
    script = Script().create("a").write("a", 0, b"1").sync("a")
    assert same(kept(script, model=STRICT), [{}, {"a": b"1"}])
    assert kept(script.sync(), model=STRICT) == [{"a": b"1"}]


@IN_ORDER
def test_a_sync_of_a_new_file_makes_the_folders_above_it_durable(model: FolderModel) -> None:
    script = Script().mkdir("f").mkdir("f/g").create("f/g/a").sync("f/g/a")
    assert kept(script, model=model) == [{"f/g/a": b""}]


def test_by_the_strict_model_each_folder_is_lost_apart() -> None:
    script = Script().mkdir("f").create("f/a").sync("f/a").sync("f")
    assert same(kept(script, model=STRICT), [{}, {"f/a": b""}])
    assert kept(script.sync(), model=STRICT) == [{"f/a": b""}]


def test_by_the_journal_a_sync_of_a_longer_file_commits_all_earlier_names_and_by_the_gate_its_own() -> None:
    script = Script().unlink("old").create("a").write("a", 0, b"1").sync("a")
    before = base(old=b"O")
    assert kept(script, before, JOURNAL) == [{"a": b"1"}]
    assert same(kept(script, before, NAMES), [{"a": b"1"}, {"a": b"1", "old": b"O"}])
    # Strictly the sync was of no name at all, and any of them may be missing.
    strict = kept(script, before, STRICT)
    assert same(strict, [{}, {"old": b"O"}, {"a": b"1"}, {"a": b"1", "old": b"O"}])


@IN_ORDER
def test_a_sync_of_a_file_that_has_nothing_to_commit_commits_nothing_of_others(model: FolderModel) -> None:
    script = Script().sync("a").rename("b", "c").write("a", 0, b"2").sync("a")
    assert same(kept(script, base(a=b"1", b=b"B"), model), [{"a": b"2", "b": b"B"}, {"a": b"2", "c": b"B"}])


@EVERY_MODEL
def test_a_datasync_of_a_folder_is_not_relied_on(model: FolderModel) -> None:
    script = Script().rename("a", "b").datasync("")
    assert same(kept(script, base(a=b"1"), model), [{"a": b"1"}, {"b": b"1"}])


@IN_ORDER
def test_a_datasync_of_an_empty_new_file_makes_its_name_durable(model: FolderModel) -> None:
    assert kept(Script().create("a").datasync("a"), model=model) == [{"a": b""}]


@IN_ORDER
def test_a_sync_of_a_longer_file_commits_no_name_that_changed_after_its_last_write(model: FolderModel) -> None:
    # The write may have been written back, and its size committed, before the name changed.
    others = Script().write("a", 1, b"2").unlink("old").datasync("a")
    expected = [{"a": b"12"}, {"a": b"12", "old": b"O"}]
    assert same(kept(others, base(a=b"1", old=b"O"), model), expected)
    own = Script().write("a", 1, b"2").rename("a", "b").datasync("b")
    assert same(kept(own, base(a=b"1"), model), [{"a": b"12"}, {"b": b"12"}])


@IN_ORDER
def test_a_datasync_after_a_rename_leaves_the_rename_pending_and_a_sync_does_not(model: FolderModel) -> None:
    renamed = Script().rename("a", "b").write("b", 0, b"2").datasync("b")
    assert same(kept(renamed, base(a=b"1"), model), [{"a": b"2"}, {"b": b"2"}])
    assert kept(renamed.sync("b"), base(a=b"1"), model) == [{"b": b"2"}]


@IN_ORDER
def test_a_write_through_o_dsync_that_lengthens_a_new_file_makes_its_name_durable(model: FolderModel) -> None:
    script = Script().create("a").write("a", 0, b"1", synchronous=True)
    assert kept(script, model=model) == [{"a": b"1"}]


@IN_ORDER
def test_of_pending_names_the_latest_are_lost_first(model: FolderModel) -> None:
    script = Script().create("a").create("b").unlink("c")
    found = kept(script, base(c=b"C"), model)
    assert same(found, [{"c": b"C"}, {"a": b"", "c": b"C"}, {"a": b"", "b": b"", "c": b"C"}, {"a": b"", "b": b""}])


def test_by_the_strict_model_any_pending_name_may_be_lost() -> None:
    assert len(kept(Script().create("a").create("b").unlink("c"), base(c=b"C"), STRICT)) == 8


def test_a_sync_of_a_folder_leaves_names_in_other_folders_pending() -> None:
    script = Script().create("f/a").create("g/b").sync("g")
    found = kept(script, base(f__x=b"", g__x=b""), NAMES)
    assert same(found, [{"f/x": b"", "g/x": b"", "g/b": b""}, {"f/a": b"", "f/x": b"", "g/x": b"", "g/b": b""}])


def test_a_rename_between_folders_is_strictly_durable_when_both_are_synced() -> None:
    script = Script().rename("f/a", "g/a").sync("g")
    before = base(f__a=b"1", g__x=b"")
    moved, unmoved = {"g/a": b"1", "g/x": b""}, {"f/a": b"1", "g/x": b""}
    assert kept(script, before, NAMES) == [moved]
    assert same(kept(script, before, STRICT), [unmoved, moved])
    assert kept(script.sync("f"), before, STRICT) == [moved]


@IN_ORDER
def test_a_folder_built_under_another_name_is_whole_or_not_there_by_its_name(model: FolderModel) -> None:
    script = Script().mkdir("s.new").create("s.new/a").write("s.new/a", 0, b"1").sync("s.new/a").sync("s.new")
    script.rename("s.new", "s")
    assert same(kept(script, model=model), [{"s.new/a": b"1"}, {"s/a": b"1"}])
    assert kept(script.sync(), model=model) == [{"s/a": b"1"}]


@IN_ORDER
def test_a_file_made_and_synced_in_a_renamed_folder_makes_the_rename_durable(model: FolderModel) -> None:
    script = Script().rename("f", "g").create("g/a").sync("g/a")
    assert kept(script, base(f__x=b""), model) == [{"g/a": b"", "g/x": b""}]


def test_where_a_links_name_is_lost_the_file_is_there_by_its_other_name() -> None:
    script = Script().link("a", "b").write("b", 0, b"2").datasync("b")
    assert same(kept(script, base(a=b"1")), [{"a": b"2"}, {"a": b"2", "b": b"2"}])


@EVERY_MODEL
def test_a_sync_of_everything_leaves_one_state(model: FolderModel) -> None:
    script = Script().mkdir("f").create("f/a").write("f/a", 0, b"1").rename("f", "g").unlink("o").sync_all()
    assert kept(script, base(o=b"1"), model) == [{"g/a": b"1"}]


def test_every_state_of_the_journal_is_one_of_the_gate_and_every_one_of_the_gate_is_strictly_one() -> None:
    script = Script().create("n").write("n", 0, b"1").sync("n").rename("n", "a").create("m").datasync("m").unlink("b")
    script.create("k").write("k", 0, b"2", synchronous=True).link("k", "l").sync("k")
    everything = Depth(subset_operations_max=10, torn_files=0)
    for position in range(script.end + 1):
        found = [
            found_at(script, position, base(a=b"0", b=b"0"), model, everything) for model in (JOURNAL, NAMES, STRICT)
        ]
        assert all(state in found[1] for state in found[0])
        assert all(state in found[2] for state in found[1])
    assert len(found[0]) < len(found[1]) < len(found[2])


def test_a_map_and_a_note_are_no_operations() -> None:
    script = Script().note("begun").map_writable("a").write("a", 0, b"1").note("done")
    assert same(kept(script, base(a=b"0")), [{"a": b"0"}, {"a": b"1"}])


def test_a_recording_with_a_hole_is_refused() -> None:
    with pytest.raises(ValueError):
        Disk([IoOperation(1, Kind.SYNC_ALL)], Tree(), NAMES)


def test_a_recording_that_speaks_of_an_unknown_file_is_refused() -> None:
    with pytest.raises(ValueError):
        found_at(Script().sync("nowhere"), 1)
