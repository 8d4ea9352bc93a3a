"""The digest of code changes with what a module does, and with nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import code

FIRST = '"""Words."""\nimport stores.inner\n\ndef double(x):\n    """More words."""\n    return 2 * x  # twice\n'


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module ``stores.outer``, which imports ``stores.inner``."""
    folder = tmp_path / "stores"
    folder.mkdir()
    (folder / "outer.py").write_text(FIRST)
    (folder / "inner.py").write_text("VALUE = 1\n")
    (folder / "apart.py").write_text("VALUE = 1\n")
    monkeypatch.setattr(code, "SOURCE", tmp_path)
    return folder


def digest() -> str:
    for cached in (code.digest_of, code._tree, code._file_digest, code._imported):
        cached.cache_clear()
    return code.digest_of(("stores.outer",))


@pytest.mark.parametrize(
    ("file", "old", "new", "changes"),
    [
        ("outer.py", "# twice", "# two times", False),
        ("outer.py", "More words.", "Fewer words.", False),
        ("outer.py", "2 * x", "3 * x", True),
        ("inner.py", "1", "2", True),
        ("apart.py", "1", "2", False),
    ],
)
def test_only_changes_of_the_code_that_a_module_imports_change_its_digest(
    library: Path, file: str, old: str, new: str, changes: bool
) -> None:
    before = digest()
    (library / file).write_text((library / file).read_text().replace(old, new))
    assert (digest() != before) is changes
