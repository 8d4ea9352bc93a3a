"""The wheel: what is in it, and its one command in a Python that has nothing but the library's own dependencies."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path
from venv import EnvBuilder
from zipfile import ZipFile

import pytest

from harness.cli import guarded
from harness.command import main
from harness.folders import SOURCE

BUILT_FROM = ("stores", "harness", "scenarios", "pyproject.toml", "setup.py", "README.md", "LICENSE")
COMMAND = "import sys; from harness.command import main; sys.exit(main())"


@dataclass(frozen=True)
class Installed:
    """The wheel in a venv: its files, and its Python."""

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
            timeout=60,
            check=False,
        )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel, built from a copy of the tree, in a venv with rocksdict and lmdb."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    tree.mkdir()
    for name in BUILT_FROM:
        source = SOURCE / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, tree / name)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        str(tree),
    ]
    subprocess.run(pip, check=True, capture_output=True, timeout=120)
    [built] = folder.glob("*.whl")
    EnvBuilder(symlinks=True).create(folder / "venv")
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder / "venv")}))
    with ZipFile(built) as archive:
        archive.extractall(packages)
        files = frozenset(archive.namelist())
    for needed in Path(sysconfig.get_path("purelib")).glob("*"):
        if needed.name.split("-")[0].split(".")[0] in ("rocksdict", "lmdb"):
            (packages / needed.name).symlink_to(needed)
    return Installed(packages, folder / "venv" / "bin" / "python", files)


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


def test_the_wheel_has_every_other_file(wheel: Installed) -> None:
    for house in ("stores", "harness", "scenarios"):
        for file in (SOURCE / house).rglob("*"):
            name = str(file.relative_to(SOURCE))
            if file.is_file() and "__pycache__" not in file.parts and "/tests/" not in name:
                assert name in wheel.files, name


def test_the_one_command_is_txstores(wheel: Installed, tmp_path: Path) -> None:
    [info] = wheel.packages.glob("txstores-*.dist-info")
    entries = ConfigParser()
    entries.read(info / "entry_points.txt")
    assert set(entries["console_scripts"]) == {"txstores"}
    module, function = entries["console_scripts"]["txstores"].split(":")
    done = wheel.run(tmp_path, "--version", code=f"import sys; from {module} import {function}; sys.exit({function}())")
    assert (done.returncode, done.stdout.split()[0]) == (0, "txstores")


def test_the_command_shows_a_store_without_any_extra(wheel: Installed, tmp_path: Path) -> None:
    made = "from stores import open_store; s = open_store('lmdb', 's'); s.put(b'a', b'1'); s.commit(); s.close()"
    assert wheel.run(tmp_path, code=made).returncode == 0
    done = wheel.run(tmp_path, "dump", "s")
    assert (done.returncode, done.stdout, done.stderr) == (0, "a\t1\n", "")


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("bench", "--profile", "smoke"), "harness"),
        (("repeat", "crash", "{}"), "harness"),
        (("report",), "harness"),
        (("list",), "harness"),
        (("conformance",), "conformance"),
    ],
)
def test_a_command_without_its_extra_says_how_to_install_it_and_does_nothing(
    wheel: Installed, tmp_path: Path, arguments: tuple[str, ...], extra: str
) -> None:
    done = wheel.run(tmp_path, *arguments)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    words = shlex.split(done.stderr)
    assert words[-5:] == [str(wheel.python), "-m", "pip", "install", f"txstores[{extra}]"]
    assert list(tmp_path.iterdir()) == []
    helped = re.split(rf"^    {arguments[0]}\b", wheel.run(tmp_path, "--help").stdout, flags=re.MULTILINE)[1]
    assert f"(extra {extra})" in " ".join(helped.split())[:120]


def test_a_module_that_is_missing_all_the_same_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> int:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")

    assert guarded(run) == 2
    assert "[harness]" in capsys.readouterr().err.splitlines()[0]


def test_a_library_that_is_only_on_the_path_says_how_to_install_an_extra(wheel: Installed, tmp_path: Path) -> None:
    for needed in wheel.packages.iterdir():
        if not needed.name.endswith(".dist-info"):
            (tmp_path / needed.name).symlink_to(needed)
    here = f"import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p] + [{str(tmp_path)!r}]; "
    done = wheel.run(tmp_path, "bench", code=here + COMMAND)
    assert done.returncode == 2
    assert shlex.split(done.stderr)[-7:] == [".[harness]", "in", "the", "folder", "of", "your", "clone"]


def test_runs_and_results_of_an_installed_harness_are_in_the_working_folder(wheel: Installed, tmp_path: Path) -> None:
    code = "from harness.folders import RUNS, SCENARIOS; print(RUNS); print((SCENARIOS / 'flights.py').is_file())"
    assert wheel.run(tmp_path, code=code).stdout.splitlines() == [str(tmp_path / "runs"), "True"]


@pytest.mark.parametrize(("given", "meant"), [("benhc", "bench"), ("inspct", "inspect"), ("realocate", "relocate")])
def test_a_mistyped_command_is_answered_with_the_nearest(
    given: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([given])
    assert ended.value.code == 2
    assert f"{meant!r}?" in capsys.readouterr().err


def test_a_file_that_hides_the_library_is_named_by_the_harness(wheel: Installed, tmp_path: Path) -> None:
    (tmp_path / "stores.py").write_text("x = 1\n")
    (tmp_path / "mine.py").write_text("from harness.scenario import Scenario\n")
    done = subprocess.run(
        [wheel.python, "mine.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert str(tmp_path / "stores.py") in done.stderr.splitlines()[-1]
