"""The resources of many stores in one process are measured by opening them, as far as the process can."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.many_stores import many_stores
from stores.errors import ConfigError


def test_every_backend_is_opened_as_often_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    assert many_stores(["memory-indexed-batch", "rocksdb-indexed-batch", "lmdb-native"], 3, said.append) == 0
    assert len(said) == 3
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    taken = {(line[0], line[1]): line[2:5] for line in lines if line and line[0].endswith(("-batch", "-native"))}
    assert taken["rocksdb-indexed-batch", "made"][:2] == ["3", "6.00"]
    assert taken["memory-indexed-batch", "made"][:2] == ["3", "0.00"]
    assert {count for count, _, _ in taken.values()} == {"3"}


def test_a_process_that_can_not_hold_them_goes_on_with_those_that_it_has(tmp_path: Path) -> None:
    script = f"""
import resource
from pathlib import Path
from harness.many_stores import Cost, hold
resource.setrlimit(resource.RLIMIT_NOFILE, (60, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
made, again = (Cost(**cost) for cost in hold("sqlite-indexed-batch", 40, Path({str(tmp_path)!r})).values())
print(5 < made.stores < 40, 5 < again.stores <= made.stores, "ulimit" in made.refused)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout.split() == ["True"] * 3


@pytest.mark.parametrize(("names", "count"), [(["rocksdb-direkt"], 3), (None, 0)])
def test_what_does_not_exist_is_refused(names: list[str] | None, count: int) -> None:
    with pytest.raises(ConfigError):
        many_stores(names, count, print)
