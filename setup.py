"""The part of the build that pyproject.toml can't say: the only tests in a wheel are the conformance suite."""

from __future__ import annotations

from setuptools import setup
from setuptools.command.build_py import build_py

SHARED = (
    *("__init__", "conftest", "damages", "forked_call", "model", "overtaken_view", "quick_folder", "store_process"),
    "touched",
)
"""The modules of ``stores.tests`` that the conformance suite needs."""


class BuildModules(build_py):
    """Leaves the tests of the library itself out."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """Return the modules of ``package``: package, name and file of each."""
        found: list[tuple[str, str, str]] = super().find_package_modules(package, package_dir)
        return [module for module in found if package != "stores.tests" or module[1] in SHARED]


setup(cmdclass={"build_py": BuildModules})
