"""The command ``python -m stores.worker``: what it says and how it ends, with mistakes and with signals."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from stores.tests.worker.places import EmbeddedPlace, Place, expected_counts
from stores.tests.worker.worker_process import IDLE, WorkerProcess
from stores.worker.__main__ import FAILED, REFUSED, find_application, main

WORDS = ["to", "be", "or", "not", "to", "be"]
MODULE = "stores.tests.worker.counting_app"


@pytest.fixture
def embedded(tmp_path: Path) -> EmbeddedPlace:
    return EmbeddedPlace(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{MODULE}:ap", f"{MODULE}:app"),
        (MODULE, f"{MODULE}:app"),
        (f"{MODULE}:count", f"{MODULE}:app"),
        ("no_such_module_here:app", "no_such_module_here"),
        ("", "MODULE:NAME"),
        (":app", "MODULE:NAME"),
        (".counting:app", "MODULE:NAME"),
    ],
)
def test_an_application_that_is_not_there_is_an_error_without_a_traceback(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "worker.properties"
    config.write_text("")
    assert main([text, "--config", str(config)]) == REFUSED
    errors = capsys.readouterr().err
    assert said in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("error", [TypeError, ValueError, ModuleNotFoundError])
def test_an_error_of_the_module_itself_is_not_taken_for_a_wrong_name(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"broken_{error.__name__}.py").write_text(f"raise {error.__name__}('its own')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(error, match="its own") as failure:
        main([f"broken_{error.__name__}:app", "--config", str(tmp_path / "unread")])
    assert type(failure.value) is error


@pytest.mark.parametrize("named", ["num.stream.threads=0", "transaction.scope=none", "status.interval.ms"])
def test_a_property_of_the_command_replaces_that_of_the_file(
    named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "worker.properties"
    config.write_text(f"changelog.file={tmp_path}/log\nstate.dir={tmp_path}\nnum.stream.threads=2\n")
    assert main([f"{MODULE}:app", "--config", str(config), "--set", named]) == REFUSED
    assert (named.partition("=")[0] if "=" in named else "NAME=VALUE") in capsys.readouterr().err


def test_an_application_is_found() -> None:
    assert find_application(f"{MODULE}:app").name == "counting"


def test_the_help_names_the_arguments() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "stores.worker", "--help"], capture_output=True, text=True, timeout=600, check=True
    )
    assert "MODULE:NAME" in process.stdout


@pytest.mark.parametrize(
    ("application", "said"), [("unfit", "'words' has 2 partitions"), ("inputless", "'missing' does not exist")]
)
def test_inputs_that_do_not_fit_are_an_error_and_no_topic_is_made(place: Place, application: str, said: str) -> None:
    with WorkerProcess(place.folder, "w", place.properties(), application=f"{MODULE}:{application}") as worker:
        assert worker.ended() == REFUSED
        assert said in worker.errors
        assert "Traceback" not in worker.errors
    with place.open() as log:
        assert not log.topics()


def test_a_group_of_another_application_is_an_error_that_makes_no_topic_and_the_other_one_works_on(
    place: Place,
) -> None:
    place.feed(WORDS)
    with WorkerProcess(place.folder, "first", place.properties()) as first:
        first.await_line(f"4 {IDLE}")
        other = f"{MODULE}:same_name"
        with WorkerProcess(place.folder, "second", place.properties(), application=other) as second:
            assert second.ended() == FAILED
            assert "another application" in second.errors
        with place.open() as log:
            assert "missing" not in log.topics()
        place.feed(WORDS)
        place.await_counted(2 * len(WORDS))
        assert first.terminate() == 0, first.errors
    assert Counter(place.counted()) == expected_counts(WORDS * 2)


def test_sigterm_commits_and_ends(place: Place) -> None:
    place.feed(WORDS)
    with WorkerProcess(place.folder, "w", {**place.properties(), "commit.interval.ms": "3600000"}) as worker:
        worker.await_line(f"4 {IDLE}")
        assert place.counted() == []
        assert worker.terminate() == 0, worker.errors
    place.await_counted(len(WORDS))
    assert Counter(place.counted()) == expected_counts(WORDS)


def test_a_second_sigterm_ends_it_immediately_and_nothing_is_lost(embedded: EmbeddedPlace) -> None:
    embedded.feed(WORDS)
    settings = {**embedded.properties(), "commit.interval.ms": "3600000"}
    with WorkerProcess(embedded.folder, "w", settings, application=f"{MODULE}:stalled") as worker:
        worker.await_text("stalled")
        worker.send(signal.SIGTERM)
        worker.await_text("begins to end")
        worker.send(signal.SIGTERM)
        assert worker.ended() == -signal.SIGTERM
    assert embedded.counted() == []
    with WorkerProcess(embedded.folder, "next", embedded.properties()) as worker:
        worker.await_line(f"4 {IDLE}")
        assert worker.terminate() == 0
    assert Counter(embedded.counted()) == expected_counts(WORDS)


def test_a_function_that_never_returns_does_not_keep_the_worker(embedded: EmbeddedPlace) -> None:
    embedded.feed(WORDS)
    settings = {**embedded.properties(), "session.timeout.ms": "500"}
    with WorkerProcess(embedded.folder, "w", settings, application=f"{MODULE}:stalled") as worker:
        worker.await_text("stalled")
        assert worker.terminate() == FAILED
        assert "session.timeout.ms" in worker.errors


def test_an_error_of_the_function_ends_the_worker_after_the_other_tasks_have_committed(
    embedded: EmbeddedPlace,
) -> None:
    embedded.feed(WORDS)
    with WorkerProcess(embedded.folder, "w", {**embedded.properties(), "commit.interval.ms": "3600000"}) as worker:
        worker.await_line(f"4 {IDLE}")
        embedded.feed(["poison"])
        assert worker.ended() == FAILED
        assert "this word can't be counted" in worker.errors
    poisoned = sum(b"poison") % 4
    expected = expected_counts(word for word in WORDS if sum(word.encode()) % 4 != poisoned)
    assert Counter(embedded.counted()) == expected
