"""Damage at rest does exactly what it says, to one file."""

from __future__ import annotations

from collections import Counter

import pytest

from harness.disk.damage import Cut, Damage, Flip, Missing, damaged, damages
from harness.disk.files import Tree
from harness.tests.disk_script import Script, base, files

TREE = base(a=b"some bytes", f__b=bytes(range(256)) * 40, none=b"")


def test_a_flip_changes_one_bit() -> None:
    found = files(damaged(TREE, Flip("a", 9)))
    assert found == files(TREE) | {"a": b"s" + bytes([ord("o") ^ 2]) + b"me bytes"}


def test_a_cut_leaves_the_first_bytes() -> None:
    assert files(damaged(TREE, Cut("f/b", 5000)))["f/b"] == (bytes(range(256)) * 40)[:5000]


def test_a_missing_file_is_missing_and_no_other() -> None:
    assert files(damaged(TREE, Missing("f/b"))) == {"a": b"some bytes", "none": b""}
    assert [path for path, _ in damaged(TREE, Missing("f/b")).paths] == ["a", "f", "none"]


def test_both_names_of_a_file_see_its_damage() -> None:
    tree = Tree()
    for effect in Script().create("a").write("a", 0, b"12").link("a", "b").effects:
        tree.apply(effect)
    assert files(damaged(tree, Cut("b", 1))) == {"a": b"1", "b": b"1"}
    assert files(damaged(tree, Missing("b"))) == {"a": b"12"}


def test_damage_leaves_the_tree_itself_as_it_was() -> None:
    digest = TREE.digest()
    for damage in damages(TREE, 1):
        assert damaged(TREE, damage).digest() != digest
    assert TREE.digest() == digest


def test_each_file_is_missing_once_cut_and_flipped_as_often_as_asked() -> None:
    found = Counter((type(damage), damage.path) for damage in damages(TREE, 1, flips_per_file=20, cuts_per_file=3))
    expected: dict[tuple[type[Damage], str], int] = {(Missing, path): 1 for path in ("a", "f/b", "none")}
    expected |= {(Cut, path): 3 for path in ("a", "f/b")} | {(Flip, path): 20 for path in ("a", "f/b")}
    assert found == expected
    assert Cut("a", 0) in list(damages(TREE, 1))


def test_a_small_file_is_not_damaged_twice_in_one_place() -> None:
    found = list(damages(base(a=b"1"), 1, flips_per_file=20, cuts_per_file=5))
    assert len(found) == len(set(found)) == 1 + 1 + 8


def test_no_cuts_or_flips_where_none_were_asked_for() -> None:
    assert [type(damage) for damage in damages(base(a=b"1"), 1, flips_per_file=0, cuts_per_file=0)] == [Missing]


def test_the_same_seed_damages_alike_whatever_other_files_there_are() -> None:
    def of_a(tree: Tree, seed: int) -> list[Damage]:
        return [damage for damage in damages(tree, seed) if damage.path == "a"]

    alone = base(a=b"some bytes")
    assert of_a(TREE, 1) == of_a(alone, 1)
    assert of_a(TREE, 1) != of_a(TREE, 2)


def test_two_files_alike_are_damaged_in_places_of_their_own() -> None:
    twins = base(a=bytes(500), b=bytes(500))
    flipped = {
        name: {damage.bit for damage in damages(twins, 1) if isinstance(damage, Flip) and damage.path == name}
        for name in "ab"
    }
    assert flipped["a"] != flipped["b"]


@pytest.mark.parametrize("damage", [Missing("nowhere"), Cut("f", 0), Cut("a", 10), Flip("a", 80), Flip("none", 0)])
def test_damage_to_what_is_not_there_is_refused(damage: Damage) -> None:
    with pytest.raises(ValueError):
        damaged(TREE, damage)
