"""Wrong arguments of ``stateful`` that need no Spark to be refused."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from stores.errors import ConfigError
from stores.spark.arguments import (
    FUNCTIONS,
    VARIABLE,
    check_batches,
    check_functions,
    check_idle,
    configs_of,
    prepare_python,
)


@pytest.mark.parametrize("stores", [[None], "counts", None])
def test_stores_without_names_are_refused(stores: Any) -> None:
    with pytest.raises(TypeError):
        configs_of(stores, times=False)


@pytest.mark.parametrize(("streaming", "timers"), [(True, False), (False, True), (False, False)])
def test_only_a_streaming_query_with_timers_has_batches_without_rows(streaming: bool, timers: bool) -> None:
    with pytest.raises(ConfigError, match="fire_when_idle"):
        check_idle(True, streaming=streaming, timers=timers)
    check_idle(True, streaming=True, timers=True)
    check_idle(False, streaming=streaming, timers=timers)


def two(given: object, context: object) -> None:
    """A function of the two arguments that each is called with."""


@pytest.mark.parametrize(
    ("functions", "topics", "error"),
    [
        ({}, (), ConfigError),
        ({"process": two, "process_record": two}, (), ConfigError),
        ({"process": two, "process_batch": two}, (), ConfigError),
        ({"process_record": two, "process_batch": two}, (), ConfigError),
        (dict.fromkeys(FUNCTIONS, two), (), ConfigError),
        ({"process": two}, ["a topic"], ConfigError),
        *(({name: wrong}, (), TypeError) for name in FUNCTIONS for wrong in (5, lambda one: None)),
    ],
)
def test_a_query_has_one_function_of_two_arguments(functions: Any, topics: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_functions({**dict.fromkeys(FUNCTIONS), **functions}, None, topics)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_kind_of_function_is_taken_with_a_function_of_timers_or_without(name: str) -> None:
    for on_timer in (None, lambda key, time_ms, context: None):
        check_functions({**dict.fromkeys(FUNCTIONS), name: two}, on_timer, ())
    with pytest.raises(TypeError):
        check_functions({**dict.fromkeys(FUNCTIONS), name: two}, two, ())


@pytest.mark.parametrize(
    ("bounds", "error"), [((0, 1), ConfigError), ((1, 0), ConfigError), ((1.5, 1), TypeError), ((1, "1"), TypeError)]
)
def test_a_batch_has_bounds_of_one_or_more(bounds: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_batches(*bounds)
    check_batches(1, 1)


_numbers = itertools.count()
Task = Callable[[object], Iterator[str]]


class Context:
    """A Spark context whose jobs run ``task`` here, or fail with ``error``."""

    def __init__(self, master: str, python: str, error: Exception | None = None) -> None:
        self.master, self.pythonExec, self._error = master, python, error
        self.applicationId = f"made-up-{next(_numbers)}"
        self.jobs = 0

    def parallelize(self, rows: list[int], partitions: int) -> Context:
        return self

    def mapPartitions(self, task: Task) -> Context:
        self._task = task
        return self

    def collect(self) -> list[str]:
        self.jobs += 1
        if self._error is not None:
            raise self._error
        return list(self._task(iter([0])))


def prepared(context: Context) -> Context:
    prepare_python(SimpleNamespace(sparkContext=context))  # type: ignore[arg-type]
    return context


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def test_a_local_master_runs_functions_in_the_python_of_the_driver_without_a_job() -> None:
    context = prepared(Context("local[2]", "python3"))
    assert (context.pythonExec, context.jobs) == (sys.executable, 0)


def test_a_python_that_the_user_names_is_kept_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/opt/app/bin/python")
    context = prepared(Context("local[2]", "/opt/app/bin/python"))
    assert (context.pythonExec, context.jobs) == ("/opt/app/bin/python", 1)


def test_a_cluster_is_checked_once_for_each_application() -> None:
    context = prepared(prepared(Context("spark://host:7077", "python3")))
    assert (context.pythonExec, context.jobs) == ("python3", 1)
    assert prepared(Context("spark://host:7077", "python3")).jobs == 1


def test_a_package_that_executors_lack_is_refused_by_its_name_and_that_of_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stores.spark.arguments._MODULES", ("json", "no_such_package"))
    context = Context("spark://host:7077", "python3")
    for _ in range(2):
        with pytest.raises(ConfigError) as error:
            prepared(context)
        assert all(name in str(error.value) for name in ("no_such_package", VARIABLE, "'python3'"))
    assert context.jobs == 2


@pytest.mark.parametrize(
    "text",
    [
        'a stack\njava.io.IOException: Cannot run program "python9": error=2, No such file or directory\nmore',
        "a stack\n[PYTHON_VERSION_MISMATCH] Python in worker has another version: 3.9, driver: 3.11\nmore",
        "something else",
    ],
)
def test_a_python_that_does_not_start_or_fit_is_refused_with_what_spark_says(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        prepared(Context("spark://host:7077", "python9", RuntimeError(text)))
    message = str(error.value)
    assert VARIABLE in message
    assert "more" not in message
    assert any(word in message for word in ("Cannot run program", "PYTHON_VERSION_MISMATCH", "something else"))


def test_a_session_without_a_context_is_left_to_its_server() -> None:
    prepare_python(SimpleNamespace())  # type: ignore[arg-type]
