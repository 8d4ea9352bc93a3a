"""A failpoint's declaration is enough to plan a crash trial with, and is refused where it contradicts itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import stores
from stores import failpoints
from stores.failpoints import Part, declare, declared, failpoint
from stores.registry import backends


@pytest.fixture(autouse=True)
def undeclared() -> Iterator[None]:
    """Forgets afterwards what a test declares."""
    yield
    failpoints._declared.pop("made.up", None)


def test_a_declaration_may_be_repeated_and_not_changed() -> None:
    assert declare("made.up", "something is true") == "made.up"
    declare("made.up", "something is true")
    for change in ({"part": Part.RECOVERY}, {"twice": True}, {"options": {"size": 1}}, {"transaction_bytes": 1}):
        with pytest.raises(ValueError):
            declare("made.up", "something is true", **change)


@pytest.mark.parametrize("after", ["no.such", {"CHANGELOG": "restore.before_write", "DISK": "no.such"}])
def test_a_plan_with_an_undeclared_failpoint_is_refused(after: str | dict[str, str]) -> None:
    with pytest.raises(ValueError):
        declare("made.up", "something is true", part=Part.RECOVERY, after=after)
    assert "made.up" not in declared()


def test_what_a_recovery_comes_after_is_a_failpoint_of_the_same_backend_at_each_level() -> None:
    for backend in backends().values():
        for name in backend.failpoints:
            point = failpoint(name)
            assert point.part in (Part.CREATION, Part.COMMIT, Part.RECOVERY, Part.RESTORE)
            for level in backend.durabilities:
                assert point.after_at(level) in {"", *backend.failpoints}
            assert set(point.options) <= set(backend.options)


def declaring_modules() -> Iterator[tuple[str, str]]:
    """Yield the name of each failpoint of the library, and its module, which is imported."""
    library = Path(stores.__file__).parent
    for file in library.rglob("*.py"):
        names = re.findall(r"\bdeclare\(\s*\"([\w.]+)\"", file.read_text(encoding="utf-8"))
        if names and "tests" not in file.parts:
            module = import_module(".".join(file.with_suffix("").relative_to(library.parent).parts))
            yield from ((name, module.__name__) for name in names)


def test_a_failpoint_of_no_backend_is_in_no_part_of_a_store_s_own_life() -> None:
    """Else a crash trial that asks for the failpoints of that part would wait for one that no store reaches."""
    of_backends = {name for backend in backends().values() for name in backend.failpoints}
    own = (Part.CREATION, Part.COMMIT, Part.RECOVERY)
    assert {name for name, _ in declaring_modules() if failpoint(name).part in own} <= of_backends
