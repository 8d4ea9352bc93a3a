"""Mutants are built in by declared seams, and leave nothing behind; inner names are replaced in one module only."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from harness import mutants
from harness.mutants import (
    BROKER_TRIALS,
    CRASH_TRIALS,
    IO_MUTANTS,
    LIBRARY_TESTS,
    MUTANTS,
    QUERY_TRIALS,
    READER_TRIALS,
    patch,
)
from harness.mutants.mutant import FILE_FUNCTIONS, INTERFACES, IoFault, Patches
from stores import failpoints
from stores.engines.memory import MemoryEngine
from stores.errors import ConfigError
from stores.files import plain_files
from stores.registry import backends
from stores.strategies.indexed_batch import IndexedBatchStaging
from stores.strategies.store import Store

INNER = "inner_names.py"
SUBJECT = "sqlite-indexed-batch"


def test_each_mutant_names_what_must_detect_it() -> None:
    by_experiments = {*CRASH_TRIALS, *IO_MUTANTS, *READER_TRIALS, *QUERY_TRIALS, *BROKER_TRIALS}
    assert set(MUTANTS) == {*by_experiments, *LIBRARY_TESTS}
    assert all(mutant.detected_by for mutant in MUTANTS.values())


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_leaves_nothing_behind(mutant: str) -> None:
    fits = [by.fits for by in MUTANTS[mutant].detected_by if isinstance(by, IoFault)]
    subject = next((name for name in backends() if fits and fits[0](name)), SUBJECT)
    owners = [
        *(backend.load_engine() for backend in backends().values()),
        *(backend.load_strategy() for backend in backends().values()),
        Store,
        *INTERFACES,
    ]
    before = [dict(vars(owner)) for owner in owners]
    functions = [getattr(os, name) for name in FILE_FUNCTIONS]
    with patch(mutant, subject):
        pass
    assert [dict(vars(owner)) for owner in owners] == before
    assert [getattr(os, name) for name in FILE_FUNCTIONS] == functions
    assert not failpoints._armed


@pytest.mark.parametrize(
    ("owner", "name"),
    [(plain_files, "sync_folder"), (IndexedBatchStaging, "commit"), (os, "system"), (MemoryEngine, "_keys")],
    ids=str,
)
def test_a_name_that_nothing_declares_is_refused(owner: object, name: str) -> None:
    with pytest.raises(ValueError, match="declares no"):
        Patches().replace(owner, name, None)


def test_a_name_that_does_not_exist_is_refused() -> None:
    with pytest.raises(AttributeError):
        Patches().replace_inner(plain_files, "no_such_name", None)


def test_an_unknown_mutant_is_refused() -> None:
    with pytest.raises(ConfigError, match="no-sync"):
        patch("no-snyc", SUBJECT)


def test_inner_names_are_replaced_in_one_module_only() -> None:
    harness = Path(mutants.__path__[0]).parent
    using = {
        path.name
        for path in harness.rglob("*.py")
        if path.parent.name != "tests" and "replace_inner" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr == "replace_inner"
    }
    assert using == {INNER, "mutant.py"}


def test_each_use_of_an_inner_name_says_why_no_seam_serves() -> None:
    tree = ast.parse((Path(mutants.__path__[0]) / INNER).read_text())
    replacing = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(each, ast.Attribute) and each.attr == "replace_inner" for each in ast.walk(node))
    ]
    assert len(replacing) >= 1
    assert [node.name for node in replacing if "No seam: " not in (ast.get_docstring(node) or "")] == []
