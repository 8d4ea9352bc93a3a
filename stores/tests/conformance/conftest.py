"""Parametrises every test over the backends, and reports each that did not run."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from itertools import product
from pathlib import Path
from zlib import crc32

import pytest

from stores import Durability, KeyValueStore
from stores.failpoints import Part, declared
from stores.tests.conformance.cases import (
    AT_THE_END,
    TIGHT,
    Case,
    cases,
    crash_cases,
    in_turn,
    of_closed_files,
    spread,
    spread_crashes,
    tightened,
)
from stores.tests.conformance.gaps import HeldInstead
from stores.tests.store_process import StoreProcess

FOLDER = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "every_durability: run at each level that the backend can carry")
    config.addinivalue_line("markers", "kills: run at PROCESS, and at CHANGELOG with tiny limits")
    config.addinivalue_line("markers", "spread: kills at each failpoint of a strategy over one of its engines")
    config.addinivalue_line(
        "markers", "spread_over(name=values): each combination of parameters with a part of the cases"
    )
    config.addinivalue_line("markers", "typed: of typed stores, which call the byte store below and no engine")
    config.addinivalue_line("markers", "closed_files: of the files of closed stores, which are those of the engine")
    config.addinivalue_line("markers", "long: with limits or a backend whose turn it is not; run by make test-long")
    config.addinivalue_line("markers", "timeout(seconds): heeded where pytest-timeout is installed")
    config.addinivalue_line("markers", "as_is: run with default options only, not with tiny limits as well")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" not in metafunc.fixturenames:
        return
    names = metafunc.config.getoption("--backend")
    marked = metafunc.definition.get_closest_marker
    if marked("spread"):
        metafunc.parametrize(("case", "failpoint"), spread_crashes(names), ids=str)
    elif "failpoint" in metafunc.fixturenames:
        # Creation is the same at each level.
        crashes = [
            (tightened(case) if failpoint in case.backend.load_strategy().persistent_failpoints else case, failpoint)
            for case in crash_cases(names)
            for failpoint in case.backend.failpoints or (AT_THE_END,)
            if case.durability is Durability.PROCESS or not _is_of_creation(failpoint)
        ]
        metafunc.parametrize(("case", "failpoint"), crashes, ids=str)
    elif marked("kills"):
        metafunc.parametrize("case", crash_cases(names), ids=str)
    else:
        levels = frozenset(Durability) if marked("every_durability") else frozenset({Durability.CHANGELOG})
        selection = cases(names, levels, {} if marked("as_is") else TIGHT)
        others: list[Case] = []
        turn = crc32(metafunc.definition.name.encode())
        if not (names or marked("every_durability")):
            selection, others = in_turn(selection, turn, lambda case: case.backend.name)
        if marked("typed") and not names:
            selection, others = in_turn(selection, turn >> 8, lambda case: case.backend.engine)
        if marked("closed_files") and not names:
            selection, others = in_turn(selection, turn >> 8, of_closed_files)
        parameters = mark.kwargs if (mark := marked("spread_over")) else {}
        chosen, rest = spread(selection, parameters), spread(others, parameters)
        if len(parameters) == 1:
            # Of several, each value comes with each case all the same.
            rest = [each for each in product([*selection, *others], *parameters.values()) if each not in chosen]
        if "not long" in metafunc.config.getoption("markexpr"):
            # To collect what is not run takes each process long enough.
            rest = []
        long = [pytest.param(*values, marks=pytest.mark.long) for values in rest]
        metafunc.parametrize(("case", *parameters), [*chosen, *long], ids=str)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test of the suite with a mark of a target that does not collect this folder."""
    for item in items:
        left_out = {"kafka", "spark"} & {mark.name for mark in item.iter_markers()}
        if left_out and item.path.is_relative_to(FOLDER):
            raise pytest.UsageError(f"{item.nodeid} is marked {left_out.pop()}, and would never run.")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Let a test pass that has held a backend with a gap to what it does instead."""
    try:
        return (yield)
    except HeldInstead:
        return True


def _is_of_creation(failpoint: str) -> bool:
    return failpoint != AT_THE_END and declared()[failpoint].part is Part.CREATION


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    # A promise that was not tested is not kept: a skip counts as a failure.
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    stats = reporter.stats if reporter else {}
    muted = [report for kind in ("skipped", "xfailed", "xpassed") for report in stats.get(kind, [])]
    if exitstatus == 0 and any("conformance" in str(report.fspath) for report in muted):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def store(case: Case, path: Path) -> Iterator[KeyValueStore]:
    """A new store, closed afterwards."""
    with case.open(path) as opened:
        yield opened


@pytest.fixture
def reopen(case: Case, path: Path, store: KeyValueStore) -> Iterator[Callable[[], KeyValueStore]]:
    """Closes ``store`` and opens it again, any number of times."""
    stores = [store]

    def again() -> KeyValueStore:
        stores[-1].close()
        stores.append(case.open(path))
        return stores[-1]

    yield again
    stores[-1].close()


@pytest.fixture
def process() -> Iterator[StoreProcess]:
    """A process that opens stores and can be killed."""
    with StoreProcess() as store_process:
        yield store_process
