"""The options of the suites: the profile with the cases to time, and the seed."""

from __future__ import annotations

import pytest

from harness.experiments.microbench.case import cases


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--profile", default="smoke", choices=("smoke", "default", "night"), help="which cases to time")
    parser.addoption("--load-seed", type=int, default=1, help="seed of keys and values")


def pytest_report_header(config: pytest.Config) -> str:
    return f"profile {config.getoption('--profile')}, --load-seed {config.getoption('--load-seed')}"


@pytest.fixture
def load_seed(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--load-seed"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        chosen = cases(metafunc.config.getoption("--profile"))
        metafunc.parametrize("case", chosen, ids=[case.id for case in chosen])
