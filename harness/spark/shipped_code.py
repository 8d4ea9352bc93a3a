"""The code that a session sends to its executors: the packages of this project, as one zip file."""

from __future__ import annotations

import py_compile
import sys
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import cache_from_source, find_spec
from pathlib import Path

SHIPPED_PACKAGES = ("stores", "harness", "scenarios")
SHIPPED_SUFFIXES = (".py", ".properties", ".typed", ".c", ".java", ".sha256", ".xml")


def write_archive(archive: Path) -> None:
    """Write the files of ``SHIPPED_PACKAGES`` to a zip file, and beside each module its compiled form.

    Python keeps nothing that it compiles while it imports from a zip file: without the compiled form each process of an
    executor compiles every module again, which is most of the time of its start. Python itself ignores a compiled form
    that is of another version, or of an earlier source.
    """
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for file, name in _code_files():
            target.write(file, name)
            if file.suffix == ".py" and "/tests/" not in name and (compiled := _compiled(file)):
                target.write(compiled, f"{name}c")


def _code_files() -> Iterator[tuple[Path, str]]:
    for package in SHIPPED_PACKAGES:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for file in sorted(Path(folder).rglob("*")):
                if file.suffix in SHIPPED_SUFFIXES:
                    yield file, f"{package}/{file.relative_to(folder).as_posix()}"


def _compiled(source: Path) -> Path | None:
    """Return the compiled form of a module, made if Python may keep it; None if there is none."""
    compiled = Path(cache_from_source(source))
    is_old = not compiled.exists() or compiled.stat().st_mtime < source.stat().st_mtime
    if is_old and not sys.dont_write_bytecode:
        with suppress(OSError, py_compile.PyCompileError):
            py_compile.compile(str(source), doraise=True)
    return compiled if compiled.exists() else None
