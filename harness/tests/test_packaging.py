"""The two wheels: what is in them, and their commands in a Python that has the library's own dependencies alone."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path
from venv import EnvBuilder
from zipfile import ZipFile

import pytest

import harness.cli
import stores.command
from harness.cli import guarded
from harness.folders import SOURCE
from stores import __version__

HARNESS = "txstores-harness"
BUILT_FROM = ("stores", "harness", "scenarios", HARNESS, "pyproject.toml", "setup.py", "README.md", "LICENSE")
COMMAND = "import sys; from stores.command import main; sys.exit(main())"
HARNESS_COMMAND = "import sys; from harness.cli import main; sys.exit(main())"


@dataclass(frozen=True)
class Installed:
    """Wheels in a venv: their files, and its Python."""

    packages: Path
    python: Path
    files: frozenset[str]

    def run(self, folder: Path, *arguments: str, code: str = COMMAND) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, "-P", "-c", code, *arguments],
            cwd=folder,
            env={"PATH": "/nowhere"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheels of the library and of the harness, built from a copy of the tree."""
    folder = tmp_path_factory.mktemp("wheels")
    tree = folder / "tree"
    tree.mkdir()
    for name in BUILT_FROM:
        source = SOURCE / name
        if source.is_dir():
            shutil.copytree(source, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "build"))
        else:
            shutil.copyfile(source, tree / name)
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*pip, str(tree), str(tree / HARNESS)], check=True, capture_output=True, timeout=600)
    [library], [harness_wheel] = folder.glob("txstores-*.whl"), folder.glob("txstores_harness-*.whl")
    return library, harness_wheel


def installed(folder: Path, *wheels: Path) -> Installed:
    """Return a venv with ``wheels``, rocksdict and lmdb."""
    EnvBuilder(symlinks=True).create(folder)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    files: set[str] = set()
    for wheel in wheels:
        with ZipFile(wheel) as archive:
            archive.extractall(packages)
            files.update(archive.namelist())
    for needed in Path(sysconfig.get_path("purelib")).glob("*"):
        if needed.name.split("-")[0].split(".")[0] in ("rocksdict", "lmdb"):
            (packages / needed.name).symlink_to(needed)
    return Installed(packages, folder / "bin" / "python", frozenset(files))


@pytest.fixture(scope="module")
def wheel(wheels: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The library's wheel."""
    return installed(tmp_path_factory.mktemp("library"), wheels[0])


@pytest.fixture(scope="module")
def both(wheels: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheels of library and harness, without the packages that the harness needs."""
    return installed(tmp_path_factory.mktemp("both"), *wheels)


def entry_points(wheel: Installed, distribution: str) -> dict[str, str]:
    """Return the commands of a wheel, by name: module and function."""
    [info] = wheel.packages.glob(f"{distribution}-*.dist-info")
    entries = ConfigParser()
    entries.read(info / "entry_points.txt")
    return dict(entries["console_scripts"])


def test_the_wheel_has_no_tests_but_the_conformance_suite_and_what_it_imports(wheel: Installed) -> None:
    tests = {file for file in wheel.files if "/tests/" in file}
    beside = {file for file in tests if not file.startswith("stores/tests/conformance/")}
    needed = {"stores.tests.conftest", *(name for file in tests for name in imported(wheel.packages / file))}
    assert {f"{name.replace('.', '/')}.py" for name in needed} | {"stores/tests/__init__.py"} == beside
    assert len(tests - beside) == len(list((SOURCE / "stores/tests/conformance").glob("*.py")))
    assert not [file for file in beside if "/test_" in file]


def imported(file: Path) -> set[str]:
    """The modules of ``stores.tests`` that a file imports, other than those of the suite."""
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
    names = {node.module for node in nodes if node.module}
    return {name for name in names if name.startswith("stores.tests.") and ".conformance" not in name}


def test_the_wheels_have_every_other_file_and_none_of_the_other_one(wheel: Installed, both: Installed) -> None:
    for house in ("stores", "harness", "scenarios"):
        for file in (SOURCE / house).rglob("*"):
            name = str(file.relative_to(SOURCE))
            if file.is_file() and "__pycache__" not in file.parts and "/tests/" not in name:
                assert name in both.files, name
                assert (name in wheel.files) == (house == "stores")
    tops = {name.split("/")[0] for name in both.files}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"stores", "harness", "scenarios"}
    assert {name for name in both.files - wheel.files if "/tests/" in name} == set()


def test_each_wheel_has_one_command_with_its_name(wheel: Installed, both: Installed, tmp_path: Path) -> None:
    assert entry_points(wheel, "txstores").keys() == {"txstores"}
    for distribution, name in (("txstores", "txstores"), ("txstores_harness", HARNESS)):
        [(command, entry)] = entry_points(both, distribution).items()
        module, function = entry.split(":")
        code = f"import sys; from {module} import {function}; sys.exit({function}())"
        done = both.run(tmp_path, "--version", code=code)
        assert (command, done.returncode, done.stdout) == (name, 0, f"{name} {__version__}\n")


def test_the_harness_needs_the_library_of_its_own_version() -> None:
    project = tomllib.loads((SOURCE / HARNESS / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["kafka"]]
    of_the_library = [each for each in needed if each.startswith("txstores")]
    assert project["version"] == __version__
    assert {each.partition("==")[2] for each in of_the_library} == {__version__}
    library = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    assert project["classifiers"][:7] == library["classifiers"][:7]
    assert (project["license"], project["requires-python"]) == (library["license"], library["requires-python"])


def test_the_command_shows_a_store_without_any_extra(wheel: Installed, tmp_path: Path) -> None:
    made = "from stores import open_store; s = open_store('lmdb', 's'); s.put(b'a', b'1'); s.commit(); s.close()"
    assert wheel.run(tmp_path, code=made).returncode == 0
    done = wheel.run(tmp_path, "dump", "s")
    assert (done.returncode, done.stdout, done.stderr) == (0, "a\t1\n", "")


def test_the_suite_without_its_extra_says_how_to_install_it_and_does_nothing(wheel: Installed, tmp_path: Path) -> None:
    done = wheel.run(tmp_path, "conformance")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    words = shlex.split(done.stderr)
    assert words[-5:] == [str(wheel.python), "-m", "pip", "install", "txstores[conformance]"]
    assert list(tmp_path.iterdir()) == []
    helped = re.split(r"^    conformance\b", wheel.run(tmp_path, "--help").stdout, flags=re.MULTILINE)[1]
    assert "(extra conformance)" in " ".join(helped.split())[:120]


@pytest.mark.parametrize(
    "arguments", [("bench", "--profile", "smoke"), ("repeat", "crash", "{}"), ("report",), ("list",)]
)
def test_a_command_without_the_packages_of_the_harness_says_how_to_install_them_and_does_nothing(
    both: Installed, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    done = both.run(tmp_path, *arguments, code=HARNESS_COMMAND)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert shlex.split(done.stderr)[-5:] == [str(both.python), "-m", "pip", "install", HARNESS]
    assert list(tmp_path.iterdir()) == []


def test_a_module_that_is_missing_all_the_same_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> int:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")

    assert guarded(run) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert HARNESS in line


def test_a_library_that_is_only_on_the_path_says_how_to_install_an_extra(wheel: Installed, tmp_path: Path) -> None:
    for needed in wheel.packages.iterdir():
        if not needed.name.endswith(".dist-info"):
            (tmp_path / needed.name).symlink_to(needed)
    here = f"import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p] + [{str(tmp_path)!r}]; "
    done = wheel.run(tmp_path, "conformance", code=here + COMMAND)
    assert done.returncode == 2
    assert shlex.split(done.stderr)[-7:] == [".[conformance]", "in", "the", "folder", "of", "your", "clone"]


def test_runs_and_results_of_an_installed_harness_are_in_the_working_folder(both: Installed, tmp_path: Path) -> None:
    code = "from harness.folders import RUNS, SCENARIOS; print(RUNS); print((SCENARIOS / 'flights.py').is_file())"
    assert both.run(tmp_path, code=code).stdout.splitlines() == [str(tmp_path / "runs"), "True"]


@pytest.mark.parametrize(
    ("main", "given", "meant"),
    [
        (harness.cli.main, "benhc", "bench"),
        (stores.command.main, "inspct", "inspect"),
        (stores.command.main, "realocate", "relocate"),
    ],
)
def test_a_mistyped_command_is_answered_with_the_nearest(
    main: Callable[[list[str]], int], given: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([given])
    assert ended.value.code == 2
    assert f"{meant!r}?" in capsys.readouterr().err


def test_a_file_that_hides_the_library_is_named_by_the_harness(both: Installed, tmp_path: Path) -> None:
    (tmp_path / "stores.py").write_text("x = 1\n")
    (tmp_path / "mine.py").write_text("from harness.scenario import Scenario\n")
    done = subprocess.run(
        [both.python, "mine.py"], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 1
    assert str(tmp_path / "stores.py") in done.stderr.splitlines()[-1]
