"""The program of docs/kafka.md runs as it stands, beside that of docs/worker.md, and counts each word once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import stores
from stores.changelog.kafka.testing.broker import Broker
from stores.tests.kafka.fresh import fresh_changelog

ROOT = Path(stores.__file__).parents[1]


@pytest.mark.kafka
def test_the_word_count_of_the_documentation_counts_each_word_once(tmp_path: Path, broker: Broker) -> None:
    with fresh_changelog(broker) as log:
        for topic in ("lines", "words", "counted", "word-count-counts-changelog"):  # Those of docs/worker.md.
            log.create_topic(topic, 4)
    [program] = re.findall(r"```python\n(.*?)```", (ROOT / "docs/kafka.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "count_words.py").write_text(program)
    for run in (1, 2):
        command = [sys.executable, "-W", "error", "count_words.py", broker.address]
        process = subprocess.run(
            command,
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        assert process.stdout == f"{{'be': {2 * run}, 'not': {run}, 'or': {run}, 'to': {2 * run}}}\n"
