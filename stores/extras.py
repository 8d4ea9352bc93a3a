"""The extras of the package: what to install for a part that needs more than the library's own dependencies."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.util import find_spec

from stores.errors import ConfigError

NAME = "txstores"
_MODULES = {
    "conformance": "pytest hypothesis",
    "inspection": "sqlite_utils",
    "kafka": "confluent_kafka",
    "http": "bottle waitress",
    "prometheus": "prometheus_client",
}
"""Modules of the extras that commands need, for a library that is not installed. The extras are in pyproject.toml."""


def install_command(extra: str) -> str:
    """Return the command that installs ``extra`` for the Python that runs.

    It works for a wheel and for a clone: pip takes the extra of the version that is installed. Where the library is
    only on the path, the command is for the clone's folder.
    """
    requirement = f".[{extra}]" if _requirements(NAME) is None else f"{NAME}[{extra}]"
    return f"{shlex.quote(sys.executable or 'python')} -m pip install '{requirement}'"


def advice(extra: str) -> str:
    """Return the end of a message about missing packages: the extra and the command that installs it."""
    command = install_command(extra)
    where = " in the folder of your clone" if "'." in command else ""
    return f"install the extra {extra!r} with {command}{where}"


def check_extra(extra: str) -> None:
    """Check that every package of ``extra`` is installed, without importing any.

    Raises: ConfigError, which names what is missing and how to install it.
    """
    missing = _missing_packages(extra)
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise ConfigError(f"{', '.join(missing)} {are} not installed: {advice(extra)}")


def _missing_packages(extra: str) -> list[str]:
    """Return the packages that the installed library asks for; if it is only on the path, the modules known here."""
    of_extra = [each for each in _requirements(NAME) or [] if re.search(rf"extra == ['\"]{extra}['\"]", each)]
    if not of_extra:
        return [module for module in _MODULES[extra].split() if find_spec(module) is None]
    packages = [re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in of_extra]
    return [package for package in packages if _requirements(package) is None]


def _requirements(package: str) -> list[str] | None:
    """Return the requirements of a package, or None if it is not installed."""
    # A program that opens a store needs none of it: it takes a sixth of the time of "import stores".
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return distribution(package).requires or []
    except PackageNotFoundError:
        return None
