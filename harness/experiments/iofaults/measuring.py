"""The command that measures how often the default profile detects each mutant: ``python -m harness mutants``."""

from __future__ import annotations

from collections.abc import Sequence

from harness.experiments.iofaults.case import ENOUGH
from harness.experiments.iofaults.detection import detect
from harness.experiments.iofaults.plan import DEFAULT, subjects_with
from harness.experiments.iofaults.subjects import subject_named
from harness.io_trace.library import recorder_library
from harness.mutants.registry import IO_FAULTS
from harness.processes.fork_server import fork_server
from harness.workloads.suggestion import check_known
from stores.errors import ConfigError


def measure(mutants: Sequence[str] | None, backends: Sequence[str] | None, seeds: range) -> int:
    """Print how often the default profile's trials detect each mutant at ``seeds``. Return 1 if that is too rare.

    ``mutants`` None means all, and ``backends`` None all that a mutant fits. Raises: ConfigError for an unknown name,
    and if there is nothing to measure.
    """
    check_known("mutant", IO_FAULTS, *(mutants or ()))
    chosen = None if backends is None else [subject_named(name) for name in backends]
    pairs = [
        (mutant, subject)
        for mutant in mutants or IO_FAULTS
        for subject in subjects_with(mutant)
        if chosen is None or subject in chosen
    ]
    if not pairs or not seeds:
        raise ConfigError(
            "there is nothing to measure: name mutants and backends that fit each other, and at least one seed"
        )
    recorder_library()
    found: dict[str, list[bool]] = {}
    with fork_server(preload=True) as server:
        for mutant, subject in pairs:
            missed = []
            for seed in seeds:
                detection = detect(mutant, subject, seed, DEFAULT, server)
                if detection.row is None and detection.trouble:
                    raise ConfigError(f"{mutant} in {subject} at seed {seed} has no verdict: {detection.trouble}")
                found.setdefault(mutant, []).append(detection.row is not None)
                missed += [seed] if detection.row is None else []
            told = f", missed at {', '.join(map(str, missed))}" if missed else ""
            print(f"{mutant} in {subject}: {len(seeds) - len(missed)} of {len(seeds)} seeds{told}", flush=True)
    weak = [mutant for mutant, runs in found.items() if sum(runs) < ENOUGH * len(runs)]
    for mutant, runs in found.items():
        print(f"{mutant}: detected in {sum(runs)} of {len(runs)} runs, {100 * sum(runs) / len(runs):.0f} %")
    enough = f"{len(found) - len(weak)} of {len(found)} mutants"
    print(f"The {DEFAULT} profile detects {enough} in {ENOUGH:.0%} of their runs or more.")
    return 1 if weak else 0
