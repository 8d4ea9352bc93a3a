"""What README shows works when pasted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("block", "printed"),
    [
        (0, "b'3' 41\n"),
        (1, "{'page': 'home'} 1000 ['ann', 'anna']\n"),
        (2, "{'home': 5, 'shop': 1} 9000 4\n"),
        (3, "[(b'apples', b'1'), (b'pears', b'1'), (b'apples', b'2')]\n"),
        (4, ""),
        (5, "[(0, 2), (60000, 1)]\n"),
        (6, "True\n"),
        (7, "1 0\n"),
    ],
)
def test_the_python_of_the_readme_runs_and_prints_what_it_says(tmp_path: Path, block: int, printed: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 8
    code = blocks[block]
    assert f"# {printed}" in code
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, printed, "")
    assert list(tmp_path.iterdir()) == []


def test_every_file_and_scenario_that_the_readme_names_is_there() -> None:
    text = (ROOT / "README.md").read_text()
    for scenario in re.findall(r"\bS=([a-z]\w*)", text):
        assert (ROOT / "scenarios" / f"{scenario}.py").is_file()
    for folder in re.findall(r"^    (\w+)/ ", text, re.MULTILINE):
        assert folder == "runs" or (ROOT / folder).is_dir()
