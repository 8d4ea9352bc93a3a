"""The options of the suites: the profile with the cases to time, and the seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.experiments.microbench.claim import cases


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--profile", default="smoke", choices=("smoke", "default", "night"), help="which cases to time")
    parser.addoption("--load-seed", type=int, default=1, help="seed of keys and values")
    parser.addoption(
        "--seconds-file",
        type=Path,
        help="append the seconds and CPU seconds of each case's rounds to this file, as JSON lines",
    )


def pytest_report_header(config: pytest.Config) -> str:
    return f"profile {config.getoption('--profile')}, --load-seed {config.getoption('--load-seed')}"


@pytest.fixture(scope="module")
def load_seed(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--load-seed"))


@pytest.fixture
def seconds_file(request: pytest.FixtureRequest) -> Path | None:
    file: Path | None = request.config.getoption("--seconds-file")
    return file


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        profile_cases = cases(metafunc.config.getoption("--profile"))
        metafunc.parametrize("case", profile_cases, ids=[case.id for case in profile_cases])
