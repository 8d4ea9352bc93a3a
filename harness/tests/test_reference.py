"""The API reference is made from the docstrings without a warning, and has every public name."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.folders import ROOT

MODULES = ("stores", "stores.changelog", "stores.records", "stores.tasks", "stores.telemetry")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    made = subprocess.run(
        [sys.executable, str(ROOT / "docs/reference.py"), str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return folder


@pytest.mark.parametrize("module", MODULES)
def test_the_reference_has_every_public_name_of_a_package(reference: Path, module: str) -> None:
    page = (reference / f"{module.replace('.', '/')}.html").read_text()
    named = set(re.findall(r'id="([\w.]+)"', page))
    public = set(importlib.import_module(module).__all__)
    assert public
    assert public <= named


def test_the_reference_has_the_text_of_the_contract(reference: Path) -> None:
    page = (reference / "stores.html").read_text()
    assert "visible and persistent in one step, or change nothing" in page
