"""The code that a part of the library depends on, and a digest of it: evidence is about one state of the code.

A module depends on all that it imports, also late. Comments, docstrings and formatting are no part of the digest; the
versions of Python and of the packages that the code imports are.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path

from harness.folders import SOURCE
from stores.registry import Backend, StoreBackend

_LIBRARY = "stores"


def modules_of(backend: Backend) -> tuple[str, ...]:
    """Return the names of a backend's own modules: those of its engine and its strategy, or of its store class."""
    if isinstance(backend, StoreBackend):
        return (backend.load_store().__module__,)
    return backend.load_engine().__module__, backend.load_strategy().__module__


@cache
def digest_of(modules: tuple[str, ...]) -> str:
    """Return a digest of the code of ``modules``, given by name, and of all code of the library that they import.

    Of a module outside of the library, what it imports from the library counts, and nothing else that it imports.
    """
    names = sources(modules)
    imported = {top for name in names for top in _tops(name)}
    packages = sorted(f"{package} {version(package)}" for top in imported for package in _distributions().get(top, ()))
    files = [f"{name} {_file_digest(name)}" for name in names]
    parts = [sys.version.partition(" ")[0], *dict.fromkeys(packages), *files]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def sources(modules: Sequence[str]) -> list[str]:
    """Return the names of ``modules``, and of those of the library that they import at any depth, in order."""
    met: set[str] = set()
    ahead = list(modules)
    while ahead:
        name = ahead.pop()
        if name not in met:
            met.add(name)
            ahead += _imports(name)
    return sorted(met)


def _file(name: str) -> Path | None:
    """Return the source of a module of this project, or of one that is loaded; None if there is none."""
    place = SOURCE.joinpath(*name.split("."))
    for file in (place.with_suffix(".py"), place / "__init__.py"):
        if file.is_file():
            return file
    loaded = getattr(sys.modules.get(name), "__file__", None)
    return Path(loaded) if loaded and loaded.endswith(".py") else None


@cache
def _tree(name: str) -> ast.Module:
    """Return the code of a module without its docstrings."""
    file = _file(name)
    tree = ast.parse(file.read_bytes() if file else b"")
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            del body[0]
    return tree


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@cache
def _file_digest(name: str) -> str:
    return hashlib.sha256(ast.dump(_tree(name)).encode()).hexdigest()


@cache
def _imported(name: str) -> tuple[str, ...]:
    """Return all that a module imports, but for types only; a name from a module may be a module itself."""
    return tuple(dict.fromkeys(_names(_tree(name))))


def _names(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield child.module
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        else:
            yield from _names(child)


def _imports(name: str) -> list[str]:
    own = [each for each in _imported(name) if each.partition(".")[0] == _LIBRARY]
    return [each for each in own if _file(each) is not None]


def _tops(name: str) -> set[str]:
    return {each.partition(".")[0] for each in _imported(name)} - {_LIBRARY, "harness"}


@cache
def _distributions() -> dict[str, list[str]]:
    return dict(packages_distributions())
