"""The faults that tasks and workers over a Kafka broker must survive: each with its places, its words and its course.

A course is what happens until a successor may finish the work; it returns what went wrong on the way. A new fault is a
function here.

Raises, all courses: MeasurementFailedError if the fault did not strike; BrokenPromiseError if a process failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from harness.checkers.counting import PROCESS, Finding
from harness.experiments.broker_faults.kafka_proxy import END_TXN, has_ended_transaction
from harness.experiments.broker_faults.processes import TrialProcess, Workers
from harness.experiments.broker_faults.trial import (
    AT_LEAST_ONCE,
    COMMITS,
    EXACTLY_ONCE,
    INSIDE,
    LONG_S,
    PLACES_UNDER_LOAD,
    RECORDS_PER_COMMIT,
    RECORDS_PER_ROUND,
    SHORT_S,
    WAIT_EACH,
    BrokerTrial,
)
from harness.mutants import BROKER_TRIALS
from harness.processes.child import MeasurementFailedError
from harness.workloads.suggestion import check_known
from stores.changelog.group import AFTER_REVOKE, BEFORE_ASSIGN, BEFORE_REVOKE
from stores.changelog.producer import AFTER_COMMIT, BEFORE_COMMIT
from stores.errors import ConfigError
from stores.failpoints import Part, failpoint
from stores.registry import backend_named
from stores.tasks import task_transaction
from stores.tasks.stores.store_group import AFTER_LOG_COMMIT, AFTER_STORE_COMMIT
from stores.tasks.task_transaction import BEFORE_LOG_COMMIT

if TYPE_CHECKING:
    # It needs the extra kafka, which a plan does not.
    from harness.experiments.broker_faults.site import Site

LOG_COMMIT = (BEFORE_COMMIT, AFTER_COMMIT)
"""The failpoints of a transaction's end. At least once there are no transactions."""
ZOMBIE_STATE = "state-of-the-zombie"
"""The zombie has a state directory of its own, as on another machine."""
_ALL = RECORDS_PER_COMMIT * COMMITS
_HALF = _ALL // 2
_ANSWER_S = 600.0
_CUT_BYTES_MAX = 1_500
"""More than a client sends in a commit of these records."""
_RESTORING = frozenset(name for name in task_transaction.FAILPOINTS if failpoint(name).part is Part.RESTORE)
_FENCED = "ProducerFencedError"
_RECORDS_PER_PART, _PART_S = RECORDS_PER_ROUND // 50, 0.02
"""The parts of a round, of each partition, and the pause after each: they come more often than commits."""
_PAUSE_S_MAX = 12.0
"""Longer than the session of a worker, and of a broker with its controller: both lose what they had."""
_SLOW_S_MAX = 6.0
_SLOW_BYTES_PER_S = (20_000, 400_000)
_RESET_BYTES_MAX = 100_000
_STEPS = (INSIDE, BEFORE_LOG_COMMIT, BEFORE_COMMIT, AFTER_COMMIT, AFTER_LOG_COMMIT)

Course = Callable[["Site"], list[Finding]]
Strike = Callable[["Site"], None]


@dataclass(frozen=True, slots=True)
class BrokerFault:
    """A fault, the places in a commit or a rebalance at which it may strike, and its course."""

    words: str
    places: tuple[str, ...]
    course: Course
    partitions: int = 1
    """The partitions of the input. Workers share several."""
    records_per_commit: int = RECORDS_PER_COMMIT


_FAULTS: dict[str, BrokerFault] = {}
FAULTS: Mapping[str, BrokerFault] = MappingProxyType(_FAULTS)
"""Every fault by its name: that of its course, in words."""


_STRIKES: list[Strike] = []


def _fault(
    meaning: str, *places: str, partitions: int = 1, records_per_commit: int = RECORDS_PER_COMMIT
) -> Callable[[Course], Course]:
    def declare(course: Course) -> Course:
        name = course.__name__.replace("_", " ")
        _FAULTS[name] = BrokerFault(meaning, places, course, partitions, records_per_commit)
        return course

    return declare


def _strike(name: str, meaning: str) -> Callable[[Strike], Strike]:
    """Declare a fault that strikes busy workers again and again. What it did is over when the function returns."""

    def declare(strike: Strike) -> Strike:
        _STRIKES.append(strike)
        _declare_under_load(name, meaning, [strike])
        return strike

    return declare


def _declare_under_load(name: str, meaning: str, strikes: Sequence[Strike]) -> None:
    course = partial(_under_load, strikes)
    _FAULTS[name] = BrokerFault(meaning, tuple(PLACES_UNDER_LOAD), course, partitions=4)


@_fault("the process of a task is killed", INSIDE, *task_transaction.FAILPOINTS, *LOG_COMMIT)
def task_killed(site: Site) -> list[Finding]:
    """Kill a task at its place. For a place in a restore, kill another one before, so that there is work for it."""
    site.feed(0, _ALL)
    if site.trial.place in _RESTORING:
        site.kill_task("first", AFTER_LOG_COMMIT, site.hit())
        site.kill_task("second", site.trial.place, 1)
    else:
        site.kill_task("first", site.trial.place, site.hit())
    return []


@_fault(
    "one of two workers is killed in the middle of a rebalance",
    BEFORE_REVOKE,
    BEFORE_LOG_COMMIT,
    BEFORE_COMMIT,
    AFTER_COMMIT,
    AFTER_LOG_COMMIT,
    AFTER_STORE_COMMIT,
    AFTER_REVOKE,
    BEFORE_ASSIGN,
    partitions=4,
)
def worker_killed(site: Site) -> list[Finding]:
    """Kill a worker while tasks move: the one that releases them, or the one that gets them."""
    tasks, place = len(site.partitions), site.trial.place
    gets = place == BEFORE_ASSIGN
    site.feed(0, _HALF)
    with site.worker("first", "" if gets else place) as first:
        first.await_done(tasks, tasks * _HALF)
        with site.worker("second", place if gets else "") as second:
            killed, alive = (second, first) if gets else (first, second)
            killed.await_kill()
            site.feed(_HALF, _ALL)
            alive.await_done(tasks, tasks * _ALL)
            alive.terminate()
    return []


@_fault("the broker is killed, and comes back when the task has reported an error", *_STEPS)
def broker_killed(site: Site) -> list[Finding]:
    """Kill the broker, and start it again when the task has reported that it does not answer."""
    with site.waiting_task("first", timeout_s=SHORT_S) as process:
        site.broker.kill()
        process.go()
        process.await_error()
        site.broker.start()
        return _completed(process, struck=process.has_reported_errors)


@_fault("the broker is killed and started again within one step of the task", *_STEPS)
def broker_restarted(site: Site) -> list[Finding]:
    """Kill the broker, and start it again while the task does nothing."""
    with site.waiting_task("first", timeout_s=SHORT_S) as process:
        site.broker.kill()
        site.broker.start()
        process.go()
        return _completed(process)


@_fault(
    "the process of a task is stopped, and goes on when its successor has done all work",
    INSIDE,
    BEFORE_LOG_COMMIT,
    BEFORE_COMMIT,
)
def zombie_wakes(site: Site) -> list[Finding]:
    """Stop a task's process, let a successor do all work, and let the stopped one go on."""
    with site.waiting_task("zombie", state=ZOMBIE_STATE) as zombie:
        zombie.stop()
        site.finished("successor", mutant=True)
        zombie.go()
        zombie.resume()
        return _refused(zombie)


@_fault("the network passes on nothing until the task has reported an error", BEFORE_LOG_COMMIT, BEFORE_COMMIT)
def network_stalls(site: Site) -> list[Finding]:
    """Pass on no bytes."""
    return _stalled(site, site.proxy.stall)


@_fault("the network passes on requests and no answers until the task has reported an error", BEFORE_COMMIT)
def answers_stall(site: Site) -> list[Finding]:
    """Pass on no bytes of the broker."""
    return _stalled(site, site.proxy.stall_answers)


@_fault("in each commit, connections are cut at a random byte", BEFORE_LOG_COMMIT)
def connections_cut(site: Site) -> list[Finding]:
    """Cut all connections within each commit, after a random number of bytes of the client."""
    with site.waiting_task("first", act=WAIT_EACH, proxied=True, timeout_s=SHORT_S) as process:
        while True:
            site.proxy.cut_after(site.choose.randrange(_CUT_BYTES_MAX))
            process.go()
            if not process.reached():
                break
        return _completed(process, struck=bool(site.proxy.cuts))


@_fault("the network holds a commit back until the task's successor has done all work", BEFORE_COMMIT)
def commit_held_back(site: Site) -> list[Finding]:
    """Hold a task's commit in the network, let a successor do all work, and deliver the commit."""
    with site.waiting_task("zombie", state=ZOMBIE_STATE, proxied=True, timeout_s=LONG_S) as zombie:
        site.proxy.stall()
        zombie.go()
        site.finished("successor", mutant=True)
        site.proxy.resume()
        return _refused(zombie)


@_fault(
    "a commit's connection is cut, and its request arrives within the task's next transaction",
    BEFORE_LOG_COMMIT,
    # More than a producer holds, so that a part of a transaction is at the broker before its end.
    records_per_commit=600,
)
def commit_delivered_late(site: Site) -> list[Finding]:
    """Hold the request of a commit and cut its connection. Deliver it when the next transaction is at the broker.

    The client sends it again at once, so the task's commit succeeds.
    """
    with site.waiting_task("first", act=WAIT_EACH, proxied=True, timeout_s=LONG_S) as process:
        commit = site.hit()
        for _ in range(commit - 1):
            process.go()
            process.reached()
        site.proxy.hold(END_TXN)
        process.go()
        if not (site.proxy.await_held(_ANSWER_S) and process.reached()):
            raise MeasurementFailedError("no commit was held back")
        # All that the producer does not hold any more: more than half of the transaction.
        written = commit * site.records_per_commit + site.records_per_commit // 2
        site.await_written(written)
        answer = site.proxy.deliver(_ANSWER_S)
        if not answer:
            raise MeasurementFailedError("the broker did not answer the late request")
        if has_ended_transaction(answer):
            # Until its marker is there, the broker takes what comes next for a part of the ended transaction.
            site.await_written(written, committed=True)
        process.go()
        while process.reached():
            process.go()
        return _completed(process)


def _stalled(site: Site, stall: Callable[[], None]) -> list[Finding]:
    """Stall the network at the place, and resume when the task has reported that no answer comes."""
    with site.waiting_task("first", proxied=True, timeout_s=SHORT_S) as process:
        stall()
        process.go()
        process.await_error()
        site.proxy.resume()
        return _completed(process, struck=process.has_reported_errors)


def _completed(process: TrialProcess, *, struck: bool = True) -> list[Finding]:
    """Wait for the end of a task to which the fault may cost time only. ``struck`` is False if it cost not even that.

    Raises: MeasurementFailedError in that case.
    """
    figures = process.figures()
    if not struck:
        raise MeasurementFailedError("the task did not see the fault")
    findings = []
    if figures["refused"]:
        findings.append(Finding(PROCESS, f"a task without a successor ended with {figures['refused']}"))
    if figures["wiped"]:
        findings.append(Finding(PROCESS, "a store was wiped for a fault that costs time only"))
    return findings


def _refused(zombie: TrialProcess) -> list[Finding]:
    """Wait for the end of a zombie, which must be fenced."""
    refused = zombie.figures()["refused"]
    return [] if refused == _FENCED else [Finding(PROCESS, "the zombie was not fenced")]


def _under_load(strikes: Sequence[Callable[[Site], None]], site: Site) -> list[Finding]:
    """Feed input in rounds, let one of the strikes strike in each while it is fed, and replace dead workers.

    No worker may die of it.
    """
    tasks = len(site.partitions)
    with ExitStack() as running:
        workers = Workers(lambda: running.enter_context(_worker(site)))
        try:
            site.feed(0, RECORDS_PER_ROUND)
            workers.start()
            workers.await_done(tasks, tasks * RECORDS_PER_ROUND)
            for number in range(1, site.trial.rounds):
                with ThreadPoolExecutor(1) as feeder:
                    begin = number * RECORDS_PER_ROUND
                    end = begin + RECORDS_PER_ROUND
                    # Workers process a whole round at once. In parts it keeps them busy for a second.
                    fed = feeder.submit(site.feed, begin, end, at_a_time=_RECORDS_PER_PART, pause_s=_PART_S)
                    time.sleep(site.choose.uniform(0.2, 0.6))
                    site.choose.choice(strikes)(site)
                    fed.result()
                site.faults += 1
                workers.replace_dead()
                time.sleep(site.choose.uniform(0, 2))
            workers.await_done(tasks, tasks * RECORDS_PER_ROUND * site.trial.rounds)
            workers.terminate()
        finally:
            site.deaths = len(workers.deaths)
    return workers.findings()


def _worker(site: Site) -> TrialProcess:
    """Start a worker that reaches the broker through the proxy."""
    scope = PLACES_UNDER_LOAD[site.trial.place]
    properties = {"commit.interval.ms": "100", "transaction.scope": scope}
    return site.worker(f"worker-{site.processes + 1}", proxied=True, properties=properties)


@_strike("broker paused under load", "the broker is stopped again and again, for up to 12 s")
def broker_paused(site: Site) -> None:
    """Stop the broker in place (SIGSTOP). The first pause of a trial is the longest, and most others are short."""
    site.broker.pause()
    time.sleep(_PAUSE_S_MAX * (site.choose.random() ** 2 if site.faults else 1.0))
    site.broker.resume()


@_strike("connections reset under load", "all connections are reset again and again")
def connections_reset(site: Site) -> None:
    """Reset all connections (RST), several times: at once, or within a request."""
    for _ in range(site.choose.randint(1, 4)):
        if site.choose.random() < 0.5:
            site.proxy.cut()
        else:
            site.proxy.cut_after(site.choose.randrange(_RESET_BYTES_MAX))
        time.sleep(site.choose.uniform(0, 0.3))


@_strike("connections half-closed under load", "one direction of all connections ends again and again")
def connections_half_closed(site: Site) -> None:
    """End one direction of all connections (FIN): that to the clients, or that to the broker."""
    for _ in range(site.choose.randint(1, 3)):
        site.proxy.half_close(of_clients=site.choose.random() < 0.5)
        time.sleep(site.choose.uniform(0, 0.3))


@_strike("network slow under load", "the network is slow again and again")
def network_slow(site: Site) -> None:
    """Pass on few bytes in a second."""
    site.proxy.slow(site.choose.randint(*_SLOW_BYTES_PER_S))
    time.sleep(site.choose.uniform(0.5, _SLOW_S_MAX))
    site.proxy.resume()


_declare_under_load("all of these under load", "each of the four strikes in turn, by chance", _STRIKES)


def places_of(fault: str, guarantee: str = EXACTLY_ONCE) -> tuple[str, ...]:
    """Return the places of a fault that a task with this guarantee reaches."""
    left_out = () if guarantee == EXACTLY_ONCE else LOG_COMMIT
    return tuple(place for place in FAULTS[fault].places if place not in left_out)


def checked(trial: BrokerTrial) -> BrokerTrial:
    """Return the trial. Raises: ConfigError for an unknown name, and for a place that the fault does not have."""
    check_known("fault of a broker called", FAULTS, trial.fault)
    check_known("guarantee", (EXACTLY_ONCE, AT_LEAST_ONCE), trial.guarantee)
    backend_named(trial.backend)
    places = places_of(trial.fault, trial.guarantee)
    if trial.mutant:
        check_known("mutant of trials over a broker called", BROKER_TRIALS, trial.mutant)
        places += tuple(by.place for by in BROKER_TRIALS[trial.mutant])
    check_known(f"place of the fault {trial.fault!r} called", places, trial.place)
    if trial.guarantee == AT_LEAST_ONCE and not trial.fault.endswith("killed"):
        raise ConfigError(f"the fault {trial.fault!r} is about transactions: it needs guarantee {EXACTLY_ONCE!r}")
    return trial


def mutant_trials(mutant: str, backend: str, seed: int) -> list[BrokerTrial]:
    """Return the trials that must detect a mutant. Raises: ConfigError for an unknown one."""
    check_known("mutant of trials over a broker called", BROKER_TRIALS, mutant)
    return [BrokerTrial(by.fault, by.place, backend, by.guarantee, seed, mutant) for by in BROKER_TRIALS[mutant]]
