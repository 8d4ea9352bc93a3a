"""The processes of a trial: each dies as its fault says, and the next continues, until one completes the input."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from harness.budget import TimeOverError
from harness.checkers.evidence import Evidence, Log, Result, Verdict, worst
from harness.checkers.losses import NO_COMMITS, Commits, commits_of
from harness.checkers.state import (
    atomicity,
    bounded_restore,
    convergence,
    durability,
    fallback,
    outputs,
    replay_all,
    uncommitted,
)
from harness.experiments.crash.observation import Observation, evidence, mishap, missing, read_history, read_log
from harness.experiments.crash.operations import STORES
from harness.experiments.crash.trial import (
    CHANGELOG_FILE,
    FOUND_FOLDER,
    STATE_FOLDER,
    TRIAL_FILE,
    CrashTrial,
    changelog_topic,
    history_file,
)
from harness.processes.child import run_child, run_forked
from harness.processes.fork_server import ForkServer
from harness.typed_maps import PLAIN, logged_headers, logged_time_ms
from stores.changelog.sqlite import SqliteChangelog
from stores.interface import Durability, TopicPartition

CHECKERS: Mapping[str, Callable[[Evidence], Verdict]] = MappingProxyType(
    {
        check.__name__: check
        for check in (atomicity, durability, uncommitted, convergence, outputs, bounded_restore, fallback)
    }
)
"""The checkers of a trial, in the order of its verdicts."""
DEADLINE_S = 60.0
"""The deadline of one process of a trial. RocksDB may loop for ever while it opens a store after a crash."""
_PROCESS = "harness.experiments.crash.writer"
NO_KEY = b"no store has this key"


@dataclass(frozen=True, slots=True)
class CrashOutcome:
    """The result of a trial.

    ``verdicts`` are the same in every run of the same trial. ``seconds`` and ``complaint``, the last output of a failed
    process, are not.
    """

    trial: CrashTrial
    verdicts: tuple[Verdict, ...]
    seconds: float
    complaint: str = ""
    commits: Commits = NO_COMMITS
    """The outcome of its acknowledged commits. Background flushes of an engine may change how many were kept."""

    @property
    def result(self) -> Result:
        """The worst of the verdicts."""
        return worst(self.verdicts)

    @property
    def verdicts_text(self) -> str:
        """The verdicts as one line of JSON, with equal bytes for equal trials."""
        return json.dumps([verdict._asdict() for verdict in self.verdicts], separators=(",", ":"))


def run(
    trial: CrashTrial,
    work: Path,
    *,
    code: str | None = None,
    deadline_s: float = DEADLINE_S,
    fork_server: ForkServer | None = None,
) -> Observation:
    """Run the processes of ``trial`` in the empty folder ``work``, and return the observations.

    With ``fork_server`` they are forked from that fork server. Without it they are started, with ``code`` as their
    PYTHONPATH; None is that of this process.
    """
    (work / TRIAL_FILE).write_text(trial.text)
    histories, endings, logs = [], [], []
    for number in range(len(trial.fault.steps) + 1):
        if number:
            logs.append(_log(work, trial.records))
            _copy_state(work)
            if trial.fault.steps[number - 1].truncates:
                truncate(work / CHANGELOG_FILE, _log(work), trial.records)
        if fork_server is None:
            ending = run_child(_PROCESS, [str(number)], work, deadline_s, code)
        else:
            ending = run_forked(fork_server, _PROCESS, number, work, deadline_s)
        histories.append(read_history(work / history_file(number)))
        endings.append(ending)
        if mishap(trial, number, ending, histories[-1]):
            break
    logs.append(_log(work, trial.records))
    return Observation(histories, endings, logs)


def _judged(trial: CrashTrial, observation: Observation, of_trial: Evidence) -> tuple[Verdict, ...]:
    """Return the verdict of each checker, after one that says if the fault struck as planned."""
    gap = missing(trial, observation)
    course = Verdict("course", Result.UNKNOWN if gap else Result.VALID, gap)
    return (course, *(check(of_trial) for check in CHECKERS.values()))


def examine(
    trial: CrashTrial,
    *,
    work: Path | None = None,
    code: str | None = None,
    deadline_s: float = DEADLINE_S,
    fork_server: ForkServer | None = None,
) -> CrashOutcome:
    """Run and check ``trial``. An error becomes a verdict. Raises: TimeOverError, see ``ended_by``.

    The trial uses ``work``, an empty folder that is kept, or else a temporary folder that is removed.
    """
    start = time.monotonic()
    commits = NO_COMMITS
    folder = work or Path(tempfile.mkdtemp(prefix=f"trial-{trial.id}-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        observation = run(trial, folder, code=code, deadline_s=deadline_s, fork_server=fork_server)
        of_trial = evidence(trial, observation)
        verdicts, commits = _judged(trial, observation, of_trial), commits_of(of_trial)
        complaint = next((ending.complaint for ending in reversed(observation.endings) if ending.complaint), "")
    except TimeOverError:
        raise
    except Exception as error:  # Whatever it is, the other trials go on and this one is not forgotten.
        verdicts = (Verdict("course", Result.UNKNOWN, f"the trial could not be run: {type(error).__name__}"),)
        complaint = str(error)
    finally:
        if work is None:
            shutil.rmtree(folder, ignore_errors=True)
    return CrashOutcome(trial, verdicts, time.monotonic() - start, complaint, commits)


def truncate(changelog: Path, log: Log, records: str = PLAIN) -> None:
    """Append the state of ``log`` to each store's changelog, and truncate all records before.

    The state stays the same, in fewer records, which no longer reach back to any store's offset.

    ``log`` has the keys as stored, of stores of the kind ``records``. No process may have the changelog open. Between
    the old records and the new ones, a deletion of an unused key is truncated too. So even a store that has every old
    record is out of reach.
    """
    with SqliteChangelog(changelog, Durability.PROCESS) as log_file:
        for store in STORES:
            partition = TopicPartition(changelog_topic(store), 0)
            with log_file.producer() as producer:
                producer.send(partition, NO_KEY, None)
                start = producer.flush()[partition] + 1
                for key, value in sorted(replay_all(log.stores[store]).items()):
                    time_ms, headers = logged_time_ms(records, key, value), logged_headers(records, value)
                    producer.send(partition, key, value, time_ms, headers)
                producer.flush()
            log_file.truncate(partition, start)


def _log(work: Path, records: str = PLAIN) -> Log:
    """Return the committed log, read from a copy, because reading the file itself would change it."""
    with tempfile.TemporaryDirectory(dir=work) as aside:
        for file in work.glob(f"{CHANGELOG_FILE}*"):
            if not file.name.endswith("-shm"):
                shutil.copyfile(file, Path(aside, file.name))
        return read_log(Path(aside, CHANGELOG_FILE), records)


def _copy_state(work: Path) -> None:
    """Copy the stores so that the copy can be opened: opening recovers a store, and the next process must do that."""
    shutil.rmtree(work / FOUND_FOLDER, ignore_errors=True)
    if (work / STATE_FOLDER).exists():
        shutil.copytree(work / STATE_FOLDER, work / FOUND_FOLDER)
