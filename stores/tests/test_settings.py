"""Properties become settings in every spelling of Kafka and of the KIPs, or a mistyped name gets a suggestion."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

import stores
from stores.config import StoreConfig
from stores.contract.levels import Level
from stores.errors import ConfigError, nearest
from stores.interface import Durability, IsolationLevel, ProcessingGuarantee
from stores.registry import backend_named
from stores.settings import Property, UpgradeMode, read
from stores.tasks import OnError, TaskConfig
from stores.tests.worker.counting_app import app
from stores.worker.__main__ import find_application
from stores.worker.settings import WorkerSettings
from stores.worker.transaction_scope import TransactionScope

MODULE = "stores.tests.worker.counting_app"
EXACTLY_ONCE = ProcessingGuarantee.EXACTLY_ONCE
GUARANTEES = {
    "at_least_once": ProcessingGuarantee.AT_LEAST_ONCE,
    "exactly_once": EXACTLY_ONCE,
    "exactly_once_beta": EXACTLY_ONCE,
    "exactly_once_v2": EXACTLY_ONCE,
}


def spellings(text: str) -> set[str]:
    """Return a value in upper, lower and mixed case, with _ and with -."""
    return {
        form(joined)
        for joined in (text, text.replace("_", "-"), text.replace("_", "-", 1))
        for form in (str.lower, str.upper, str.title)
    }


@pytest.mark.parametrize(("text", "guarantee"), GUARANTEES.items())
def test_each_guarantee_is_taken_in_every_spelling(text: str, guarantee: ProcessingGuarantee) -> None:
    """Source: KIP-892 ("exactly-once(-v2|-beta)"), Kafka's own documentation ("exactly_once_v2")."""
    for spelling in spellings(text):
        properties = {"processing.guarantee": spelling, "application.id": "a", "state.dir": "s"}
        assert TaskConfig.from_properties(properties).guarantee is guarantee
        assert StoreConfig(processing_guarantee=spelling).processing_guarantee is guarantee  # type: ignore[arg-type]
        properties = {"processing.guarantee": spelling, "changelog.file": "log", "state.dir": "s"}
        assert WorkerSettings.from_properties(app, properties).tasks.guarantee is guarantee


@pytest.mark.parametrize(
    ("name", "setting", "kind"),
    [
        ("default.state.isolation.level", "isolation_level", IsolationLevel),
        ("default.interactive.query.isolation.level", "isolation_level", IsolationLevel),
        ("store.durability", "durability", Durability),
        ("upgrade.mode", "upgrade_mode", UpgradeMode),
    ],
)
def test_each_choice_of_a_store_is_taken_in_every_spelling(name: str, setting: str, kind: type[StrEnum]) -> None:
    for member in kind:
        for spelling in spellings(member.value):
            assert getattr(StoreConfig.from_properties({name: spelling}), setting) is member


@pytest.mark.parametrize("kind", [TransactionScope, OnError, UpgradeMode, Durability, IsolationLevel])
def test_each_choice_is_made_with_its_text_in_every_spelling(kind: type[StrEnum]) -> None:
    for member in kind:
        for spelling in spellings(member.value):
            assert kind(spelling) is member


def test_every_partitioner_is_taken_in_every_spelling() -> None:
    for spelling in spellings("consistent_random"):
        properties = {"partitioner": spelling, "query.partitioner": spelling, "changelog.file": "l", "state.dir": "s"}
        settings = WorkerSettings.from_properties(app, properties)
        assert settings.query_partitioner is settings.tasks.partitioner


@pytest.mark.parametrize("text", ["exactly_twice", "exactly once", "", "v2", "exactly_once_v3", "exactlyonce"])
def test_another_guarantee_is_refused_and_all_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match="at_least_once, exactly_once"):
        StoreConfig.from_properties({"processing.guarantee": text})


@pytest.mark.parametrize("value", [None, 7, b"exactly_once"])
def test_a_choice_that_is_no_text_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="there are"):
        ProcessingGuarantee(value)


def test_every_choice_by_text_is_a_level() -> None:
    assert {Durability, IsolationLevel, ProcessingGuarantee, OnError, UpgradeMode, TransactionScope} <= {
        *Level.__subclasses__()
    }


def test_only_one_function_words_suggestions() -> None:
    root = Path(stores.__file__).parents[1]
    sources = [path for house in ("stores", "harness", "scenarios") for path in (root / house).rglob("*.py")]
    wording = [path for path in sources if "tests" not in path.parts and "did you mean" in path.read_text("utf-8")]
    assert wording == [root / "stores/errors.py"]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: find_application(f"{MODULE}:appp"), "has no Application 'appp' (did you mean 'app'?). It has "),
        (lambda: WorkerSettings.from_properties(app, {"changelog.file": "l", "state.dirr": "s"}), "'state.dir'?). Set"),
        (
            lambda: TaskConfig.from_properties({"state.dirr": "s"}),
            "(did you mean 'state.dir'?); known:",
        ),
        (lambda: backend_named("lmbd"), "no backend 'lmbd' (did you mean 'lmdb'?); choose"),
    ],
)
def test_an_error_with_a_suggestion_is_well_formed(call: Callable[[], object], text: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        call()
    assert text in str(refusal.value)


def test_a_suggestion_is_whole_in_brackets_before_any_punctuation() -> None:
    assert nearest("appp", ["app", "other"]) == " (did you mean 'app'?)"
    assert nearest("appp", []) == ""
    assert nearest("zzz", ["app"]) == ""


KNOWN = dict.fromkeys(("size", "size.bytes"), Property("size_bytes", int, "a whole number", "a size", "none"))


def test_two_names_of_one_setting_may_only_say_the_same() -> None:
    assert read({"size": "1", "size.bytes": 1, "store.x": "2"}, KNOWN, "store.") == ({"size_bytes": 1}, {"x": "2"})
    for first, second in (("size", "size.bytes"), ("size.bytes", "size")):
        with pytest.raises(ConfigError):
            read({first: "1", second: "2"}, KNOWN, "store.")
