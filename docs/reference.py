"""Write the API reference, from the docstrings, as HTML: ``make docs``, or ``python docs/reference.py FOLDER``.

Needs the extra ``docs``. Every warning is an error: a type that cannot be resolved would be missing in the reference.
"""

from __future__ import annotations

import importlib
import sys
import typing
import warnings
from pathlib import Path
from types import ModuleType

import pdoc

MODULES = (
    "stores",
    "stores.changelog",
    "stores.records",
    "stores.records.schema_registry",
    "stores.records.serdes",
    "stores.changelog.files",
    "stores.snapshots",
    "stores.spark",
    "stores.spark.sources",
    "stores.tasks",
    "stores.telemetry",
    "stores.telemetry.opentelemetry",
    "stores.telemetry.prometheus",
    "stores.testing",
    "stores.worker",
    "stores.metrics",
    "stores.registry",
    "stores.engines.engine",
    "stores.failpoints",
)
"""The modules that an application, or a package with a backend, imports from."""


def write_reference(folder: Path) -> None:
    """Write a page for each of the modules, and an index, into ``folder``."""
    _show_inherited_members()
    for name in MODULES:
        _resolve_named_tuples(importlib.import_module(name))
    pdoc.render.configure(docformat="markdown", show_source=False, footer_text="txstores")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pdoc.pdoc(*MODULES, output_directory=folder)


def _show_inherited_members() -> None:
    """Show at each class what it inherits from a class of the library: pdoc leaves it out, as these have no pages."""
    own_members = pdoc.doc.Class.own_members.func

    def all_members(kind: pdoc.doc.Class) -> list[pdoc.doc.Doc]:
        inherited = kind.inherited_members.items()
        return own_members(kind) + [
            member for (module, _), members in inherited if module.split(".")[0] == "stores" for member in members
        ]

    pdoc.doc.Class.own_members = property(all_members)


def _resolve_named_tuples(module: ModuleType) -> None:
    """Let the constructors of named tuples have their types: as text, pdoc looks them up in the wrong module."""
    for found in list(vars(module).values()):
        if isinstance(found, type) and issubclass(found, tuple) and "_fields" in vars(found):
            found.__new__.__annotations__ = typing.get_type_hints(found)


if __name__ == "__main__":
    write_reference(Path(sys.argv[1]))
    print(f"The reference is {sys.argv[1]}/index.html.")
