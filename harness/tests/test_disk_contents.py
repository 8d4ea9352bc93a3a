"""Contents and trees of files in memory do what a file system does to bytes and names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.crash_states.changes import PAGE_BYTES, Content
from harness.crash_states.files import Tree
from harness.io_trace.recorder import IoOperation, Kind
from harness.tests.disk_script import Script, base, files

SIZES = st.integers(0, 3 * PAGE_BYTES)
STEPS = st.lists(
    st.one_of(st.tuples(SIZES, st.binary(max_size=40) | st.binary(min_size=4090, max_size=4100)), SIZES), max_size=8
)


def played(script: Script, before: Tree | None = None) -> Tree:
    tree = (before or Tree()).copy()
    for operation in script.operations:
        tree.apply(operation)
    return tree


@given(STEPS)
def test_a_content_is_what_a_row_of_bytes_would_be(steps: list[tuple[int, bytes] | int]) -> None:
    content, expected = Content(), bytearray()
    for step in steps:
        if isinstance(step, int):
            content = content.resized(step)
            expected = expected[:step].ljust(step, b"\0")
        elif step[1]:
            offset, data = step
            content = content.written(offset, data)
            expected.extend(bytes(max(0, offset + len(data) - len(expected))))
            expected[offset : offset + len(data)] = data
    assert content.read() == bytes(expected)
    assert content.size == len(expected)
    assert content.digest == Content.of(bytes(expected)).digest


@given(st.binary(max_size=9000), st.integers(0, 8999 * 8))
def test_one_bit_makes_another_content(data: bytes, bit: int) -> None:
    if bit >= len(data) * 8:
        return
    other = bytearray(data)
    other[bit // 8] ^= 1 << bit % 8
    assert Content.of(data) != Content.of(bytes(other))


def test_equal_pages_in_another_order_are_another_content() -> None:
    one, two = b"1" * PAGE_BYTES, b"2" * PAGE_BYTES
    assert Content.of(one + two) != Content.of(two + one)


def test_zeros_at_the_end_are_distinguished_by_the_size() -> None:
    assert Content.of(b"a") != Content.of(b"a\0")
    assert Content() != Content.of(bytes(PAGE_BYTES))


def test_a_changed_content_leaves_the_old_one_as_it_was() -> None:
    old = Content.of(b"old" * 3000)
    old.written(2, b"new")
    old.resized(1)
    assert old.read() == b"old" * 3000


def test_a_tree_follows_creations_writes_and_truncations() -> None:
    script = Script().create("a").write("a", 2, b"xy").truncate("a", 3).mkdir("f").create("f/b").write("f/b", 0, b"1")
    assert files(played(script)) == {"a": b"\0\0x", "f/b": b"1"}


def test_an_allocation_lengthens_a_file_only_where_it_says_so() -> None:
    script = Script().create("a").allocate("a", 0, 5, grows=False)
    assert files(played(script)) == {"a": b""}
    assert files(played(script.allocate("a", 1, 4, grows=True).allocate("a", 0, 2, grows=True))) == {"a": bytes(5)}


def test_paths_that_were_read_before_a_change_are_not_those_after_it() -> None:
    tree = played(Script().create("a"))
    assert [path for path, _ in tree.paths] == ["a"]
    tree.apply(IoOperation(1, Kind.RENAME, path="a", target="b"))
    assert [path for path, _ in tree.paths] == ["b"]


def test_a_rename_replaces_what_was_there() -> None:
    script = Script().create("a").write("a", 0, b"A").create("b").write("b", 0, b"B").rename("a", "b")
    assert files(played(script)) == {"b": b"A"}


def test_a_folder_is_renamed_with_everything_below_it() -> None:
    script = Script().mkdir("f").mkdir("f/g").create("f/g/a").rename("f", "h").write("h/g/a", 0, b"A")
    tree = played(script)
    assert [path for path, _ in tree.paths] == ["h", "h/g", "h/g/a"]
    assert files(tree) == {"h/g/a": b"A"}


def test_two_links_are_one_file_until_both_are_removed() -> None:
    script = Script().create("a").link("a", "b").write("b", 0, b"1")
    assert files(played(script)) == {"a": b"1", "b": b"1"}
    assert files(played(script.unlink("a"))) == {"b": b"1"}
    assert files(played(script.unlink("b"))) == {}


def test_a_removed_folder_is_not_on_the_disk() -> None:
    assert played(Script().mkdir("f").rmdir("f")).paths == ()


def test_a_file_of_the_base_is_met_by_its_path_and_known_by_its_number() -> None:
    before = base(a=b"old", f__b=b"deep")
    script = Script().write("a", 0, b"N").rename("a", "c").write("c", 1, b"E").write("f/b", 4, b"er").unlink("f/b")
    assert files(played(script, before)) == {"c": b"NEd"}
    assert files(before) == {"a": b"old", "f/b": b"deep"}


def test_a_renamed_file_of_the_base_is_known_by_the_number_that_the_rename_gave() -> None:
    script = Script().rename("a", "b")
    number = script.operations[0].file
    nameless = IoOperation(2, Kind.WRITE, file=number, data=b"X")
    tree = played(script.unlink("b"), base(a=b"old"))
    tree.apply(nameless)
    assert files(tree) == {}
    assert [content.read() for content in tree.contents.values()] == [b"Xld"]


@pytest.mark.parametrize(
    "operation",
    [
        IoOperation(0, Kind.WRITE, file=5, data=b"1"),
        IoOperation(0, Kind.WRITE, file=5, path="nowhere", data=b"1"),
        IoOperation(0, Kind.RENAME, file=5, path="nowhere", target="b"),
        IoOperation(0, Kind.UNLINK, file=5, path="nowhere"),
        IoOperation(0, Kind.CREATE, file=5, path="nowhere/b"),
        IoOperation(0, Kind.WRITE, file=0, data=b"1"),
    ],
)
def test_an_operation_on_what_is_not_there_is_refused(operation: IoOperation) -> None:
    with pytest.raises(ValueError):
        base(a=b"1").apply(operation)


def test_a_tree_is_the_same_after_it_was_written_and_read(tmp_path: Path) -> None:
    holes = bytes(5 * PAGE_BYTES) + b"x" + bytes(3 * PAGE_BYTES)
    script = Script().create("a").write("a", 0, os.urandom(10_000)).mkdir("f").mkdir("f/empty").create("f/none")
    script.create("f/holes").write("f/holes", 0, holes).create("f/zeros").truncate("f/zeros", 5000).link("a", "f/a")
    tree = played(script)
    tree.write_into(tmp_path)
    assert Tree.read(tmp_path).digest() == tree.digest()
    assert (tmp_path / "f" / "holes").read_bytes() == holes
    assert (tmp_path / "f" / "zeros").read_bytes() == bytes(5000)
    assert (tmp_path / "f" / "empty").is_dir()
    assert (tmp_path / "a").samefile(tmp_path / "f" / "a")


def test_a_tree_that_was_read_goes_on_with_a_recording(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "a").write_bytes(b"old")
    os.link(tmp_path / "f" / "a", tmp_path / "b")
    tree = played(Script().write("b", 0, b"N").create("c"), Tree.read(tmp_path))
    assert files(tree) == {"b": b"Nld", "c": b"", "f/a": b"Nld"}


def test_trees_differ_by_paths_contents_and_folders() -> None:
    trees = [
        base(a=b"1"),
        base(a=b"2"),
        base(b=b"1"),
        base(a=b"1", b=b""),
        base(f__a=b"1"),
        played(Script().mkdir("a")),
        Tree(),
    ]
    assert len({tree.digest() for tree in trees}) == len(trees)
    assert base(a=b"1").digest() == base(a=b"1").digest()
