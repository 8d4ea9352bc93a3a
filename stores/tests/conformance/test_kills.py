"""SIGKILL at every failpoint of a backend, and again while it recovers: the store is whole, at some commit.

At PROCESS and DISK no acknowledged commit is lost. Source: KIP-844, KIP-892 ("atomic" in "Proposed Changes").
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stores import Durability, TopicPartition
from stores.tests.conformance.cases import AT_THE_END, Case
from stores.tests.conformance.script import Script
from stores.tests.store_process import ProcessDied, StoreProcess


def run(script: Script) -> bool:
    """Work through the script; whether the process was killed."""
    try:
        for step in script.steps():
            step()
    except ProcessDied as died:
        assert died.status == -9
        return True
    return False


def crash_at(case: Case, failpoint: str, path: Path) -> Script | None:
    """Run the script in a process that is killed at ``failpoint``; None if that was never reached."""
    with StoreProcess() as process:
        process.call("load_backend", case.backend.name)
        if failpoint != AT_THE_END:
            process.call("kill_at", failpoint)
        script = Script(process, case, path)
        return script if run(script) or failpoint == AT_THE_END else None


def crash_while_opening(case: Case, failpoint: str, path: Path) -> bool:
    """Open in a process that is killed at ``failpoint``; whether it was reached."""
    with StoreProcess() as process:
        process.call("load_backend", case.backend.name)
        process.call("kill_at", failpoint)
        try:
            Script(process, case, path).open()
            process.call("close")
        except ProcessDied as died:
            assert died.status == -9
            return True
    return False


def from_the_middle(failpoints: tuple[str, ...]) -> list[str]:
    """The failpoints, those first that lie in the middle: about there a protocol leaves most to recover."""
    return sorted(failpoints, key=lambda failpoint: abs(failpoints.index(failpoint) - len(failpoints) // 2))


def crash_somehow(case: Case, failpoint: str, path: Path) -> tuple[Script, Path] | None:
    """Kill at ``failpoint`` and return what was left where; None if neither work nor a recovery reaches it.

    A failpoint that work never reaches is one of recovery: the first kill is then at one leading there.
    """
    script = crash_at(case, failpoint, path)
    if script is not None:
        return script, path
    for number, other in enumerate(from_the_middle(case.backend.failpoints)):
        tried = path.with_name(f"{path.name}{number}")
        script = crash_at(case, other, tried)
        if script is not None and crash_while_opening(case, failpoint, tried):
            crash_while_opening(case, failpoint, tried)
            return script, tried
    return None


def test_a_kill_at_a_failpoint_leaves_some_commit_whole(case: Case, failpoint: str, path: Path) -> None:
    left = crash_somehow(case, failpoint, path)
    if left is None and case.options:
        # With tiny limits everything is spilled: a protocol may have steps for a commit that fits into memory.
        case = replace(case, options={})
        left = crash_somehow(case, failpoint, path.with_name("as it is"))
    assert left is not None, f"nothing leads to {failpoint}"
    script, path = left
    survives_kills = case.durability is not Durability.CHANGELOG
    for _ in range(2):
        with case.open(path) as store:
            script.check(store, survives_kills=survives_kills)
            before = list(store.all())
            store.put(b"after", b"1")
            store.rollback()
            if store.transactional:
                assert list(store.all()) == before
            script.written[b"after"] = {b"1"}
    assert not path.with_name(path.name + ".new").exists()
    with case.open(path) as store:
        store.put(b"after", b"2")
        store.commit({TopicPartition("other", 0): 1})
    with case.open(path) as store:
        assert store.get(b"after") == (b"2" if store.persistent else None)


@pytest.mark.every_durability
@pytest.mark.as_is
def test_a_kill_between_commits_loses_what_was_staged_and_nothing_that_survives_kills(case: Case, path: Path) -> None:
    with StoreProcess() as process:
        script = Script(process, case, path)
        for step in list(script.steps())[:4]:
            step()
        process.call("put", b"key00", b"uncommitted")
        process.call("put", b"staged", b"uncommitted")
        process.call("delete_range", b"key10", None)
        script.written.update({b"staged": {b"uncommitted"}})
        script.written[b"key00"].add(b"uncommitted")
    with case.open(path) as store:
        if store.persistent:
            script.check(store, survives_kills=case.durability is not Durability.CHANGELOG)
        else:
            assert list(store.all()) == []
