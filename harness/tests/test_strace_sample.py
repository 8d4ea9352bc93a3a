"""Kills by strace, which shares nothing with the recorder, lead to the same verdict as kills by the recorder."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

import harness
from harness.checkers.prefix import PrefixFinding
from harness.experiments.iofaults.case import IoFaultCase
from harness.experiments.iofaults.fault import NOTHING
from harness.experiments.iofaults.processes import folded, read_account
from harness.experiments.iofaults.workshop import Workshop

SEED = 4
COMMITS = 4
KILLS = 6
DEADLINE_S = 600.0
CALLS = (
    *("write", "pwrite64", "writev", "pwritev", "ftruncate", "fallocate", "fsync", "fdatasync"),
    *("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir"),
)
"""The system calls that change files. Not every machine has each, so strace must ignore unknown ones."""
_CALL = re.compile(rf"^(\d+) +({'|'.join(CALLS)})\(")


@pytest.fixture(scope="module", autouse=True)
def _traces() -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    tried = subprocess.run(["strace", "-f", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"strace may not trace here: {tried.stderr.strip()[-200:]}")


def traced(shop: Workshop, log: Path, inject: str = "") -> int:
    """Let a writer work below the shop's root, under strace; the status it ended with."""
    shop.clear()
    account = shop.scratch("account")
    account.unlink(missing_ok=True)
    case = shop.case
    arguments = {"name": case.subject, "level": case.level, "mutant": case.mutant, "seed": shop.seed, "plan": NOTHING}
    arguments |= {"commits": case.commits, "root": str(shop.root), "account": str(account)}
    # Never with --seccomp-bpf, which turns the signals of inject off without a word.
    watched = ["strace", "-f", "-qq", "-o", str(log), "-e", "trace=" + ",".join(f"?{call}" for call in CALLS)]
    writer = [sys.executable, "-B", "-P", "-m", "harness.tests.traced_writer", json.dumps(arguments)]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(harness.__file__).parents[1])}
    process = subprocess.Popen(
        [*watched, *(["-e", inject] if inject else []), *writer],
        env=environment,
        cwd=shop.scratch(""),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        complaint = process.communicate(timeout=DEADLINE_S)[1]
    finally:
        # The writer is of the same group, and must not outlive its tracer.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode in (0, -signal.SIGKILL), complaint.decode(errors="replace")[-2000:]
    return process.returncode


def calls_made(log: Path) -> list[tuple[str, int]]:
    """Each call there was, with its number among those of its name and thread: what ``when`` counts."""
    counted: Counter[tuple[str, str]] = Counter()
    made = set()
    for line in log.read_text(errors="replace").splitlines():
        if found := _CALL.match(line):
            counted[found[1], found[2]] += 1
            made.add((found[2], counted[found[1], found[2]]))
    return sorted(made)


def sample(case: IoFaultCase, kills: int) -> Generator[tuple[str, PrefixFinding], None, None]:
    """Kill a writer of ``case`` at so many calls, drawn by the seed, and verify its files each time."""
    with Workshop(case, SEED) as shop:
        log = shop.scratch("log")
        assert traced(shop, log) == 0
        for call, number in Random(SEED).sample(calls_made(log), kills):
            inject = f"inject={call}:signal=SIGKILL:when={number}"
            ended = traced(shop, shop.scratch("log of the kill"), inject)
            promises = folded(read_account(shop.scratch("account")), shop.demanded)
            words = f"{inject}: {'killed' if ended else 'not reached'}, {promises.acknowledged} acknowledged"
            verdict = shop.verdict(promises)
            print(f"{case.subject}, seed {SEED}, {words}: {verdict.found}, commit {verdict.number}")
            yield words, verdict


@pytest.mark.parametrize("name", [pytest.param("rocksdb-dual-store", marks=pytest.mark.long), "sqlite-indexed-batch"])
def test_a_kill_by_strace_leaves_a_commit_that_was_promised(name: str) -> None:
    verdicts = list(sample(IoFaultCase(name, "DISK", "kill", commits=COMMITS), KILLS))
    assert [each for each in verdicts if not each[1].expected] == []
    # Threads may take another way than when they were counted.
    assert len([words for words, _ in verdicts if "killed" in words]) >= KILLS // 2


@pytest.mark.long
def test_a_store_that_acknowledges_too_early_is_detected_by_strace() -> None:
    case = IoFaultCase("sqlite-indexed-batch", "DISK", "kill", commits=COMMITS, mutant="early-acknowledgement")
    with closing(sample(case, 16)) as verdicts:
        assert any(not verdict.expected for _, verdict in verdicts)
