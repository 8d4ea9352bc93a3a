"""A package of somebody else, installed: a venv with the packages of this one, and one distribution more."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from venv import EnvBuilder


def install(folder: Path, module: Path, backend: str, attribute: str) -> Path:
    """Make a venv in ``folder`` where ``backend`` is ``attribute`` of a copy of ``module``; returns its Python.

    A process of it needs this library on its PYTHONPATH: an editable install is not followed.
    """
    EnvBuilder(symlinks=True).create(folder)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    (packages / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (packages / "their_package.py").write_text(module.read_text())
    info = packages / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[stores.backends]\n{backend} = their_package:{attribute}\n")
    return folder / "bin" / "python"
