"""The recorder is compiled when it is needed. Without a compiler, an error says what to install."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import sys
from importlib import resources
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from harness.io_trace import recorder
from harness.io_trace.recorder import recorder_library
from stores.errors import ConfigError


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache with nothing in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiler() -> str:
    found = shutil.which("cc")
    if found is None:
        pytest.skip("there is no C compiler, cc, here")
    return found


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_compilers", list)


def test_it_compiles_without_a_warning(compiler: str, tmp_path: Path) -> None:
    source = resources.files("harness.io_trace").joinpath("recorder.c").read_bytes()
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-xc", "-"]
    command = [compiler, *flags, "-o", str(tmp_path / "out")]
    ended = subprocess.run(command, input=source, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_it_is_compiled_once(compiler: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = recorder_library()
    assert first.is_relative_to(cache)
    monkeypatch.setattr(recorder, "_compilers", list)
    assert recorder_library() == first
    assert list(first.parent.iterdir()) == [first]


def test_a_compiler_that_fails_is_passed_over(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_compilers", lambda: [["/bin/false"], [compiler]])
    assert recorder_library().exists()


@pytest.mark.long
def test_where_there_is_no_compiler_the_ziglang_package_is_one(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("the package ziglang is not installed: it comes with the extra 'recorder'")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    loaded = ctypes.CDLL(str(recorder_library()))
    assert loaded.operations_count() == 0


@pytest.mark.parametrize("there", [True, False])
def test_ziglang_is_asked_last_and_only_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/somewhere/{name}" if name == "gcc" else None)
    found = ModuleSpec("ziglang", None) if there else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    zig = [sys.executable, "-P", "-m", "ziglang", "cc"]
    assert recorder._compilers() == [["/somewhere/gcc"], *([zig] if there else [])]


def test_without_a_compiler_the_error_says_so(no_compiler: None, cache: Path) -> None:
    with pytest.raises(ConfigError):
        recorder_library()
    assert list(cache.rglob("*.so")) == []


def test_elsewhere_than_on_linux_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ConfigError):
        recorder_library()


def test_no_folder_is_used_that_a_list_of_preloads_cannot_name(
    compiler: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "with blank"))
    assert " " not in str(recorder_library())
