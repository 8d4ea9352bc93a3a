"""The course of each fault, until a successor may finish the work. It returns what went wrong on the way.

Raises, all courses: MeasurementFailedError if the fault did not strike; BrokenPromiseError if a process failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from harness.checkers.counting import PROCESS, Finding
from harness.experiments.broker_faults.application import COMMITS, RECORDS_PER_COMMIT
from harness.experiments.broker_faults.moment import WAIT_EACH
from harness.experiments.broker_faults.processes import TrialProcess
from harness.experiments.broker_faults.site import LONG_S, SHORT_S, Site
from harness.processes.measured import MeasurementFailedError
from stores.changelog.group import BEFORE_ASSIGN
from stores.failpoints import Part, failpoint
from stores.tasks import task
from stores.tasks.stores.store_group import AFTER_LOG_COMMIT

Course = Callable[[Site], list[Finding]]
ZOMBIE_STATE = "state-of-the-zombie"
"""The zombie has a state directory of its own, as on another machine."""
_ALL = RECORDS_PER_COMMIT * COMMITS
_HALF = _ALL // 2
_CUT_BYTES_MAX = 1_500
"""More than a client sends in a commit of these records."""
_RESTORING = frozenset(name for name in task.FAILPOINTS if failpoint(name).part is Part.RESTORE)
_FENCED = "ProducerFencedError"


def task_killed(site: Site) -> list[Finding]:
    """Kill a task at its place. For a place in a restore, kill another one before, so that there is work for it."""
    site.feed(0, _ALL)
    if site.trial.place in _RESTORING:
        site.kill_task("first", AFTER_LOG_COMMIT, site.hit())
        site.kill_task("second", site.trial.place, 1)
    else:
        site.kill_task("first", site.trial.place, site.hit())
    return []


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


def broker_killed(site: Site) -> list[Finding]:
    """Kill the broker, and start it again when the task has reported that it does not answer."""
    with site.waiting_task("first", timeout_s=SHORT_S) as process:
        site.broker.kill()
        process.go()
        process.await_error()
        site.broker.start()
        return _completed(process, struck=process.has_reported_errors)


def broker_restarted(site: Site) -> list[Finding]:
    """Kill the broker, and start it again while the task does nothing."""
    with site.waiting_task("first", timeout_s=SHORT_S) as process:
        site.broker.kill()
        site.broker.start()
        process.go()
        return _completed(process)


def zombie_wakes(site: Site) -> list[Finding]:
    """Stop a task's process, let a successor do all work, and let the stopped one go on."""
    with site.waiting_task("zombie", state=ZOMBIE_STATE) as zombie:
        zombie.stop()
        site.finished("successor", mutant=True)
        zombie.go()
        zombie.resume()
        return _refused(zombie)


def commit_held_back(site: Site) -> list[Finding]:
    """Hold a task's commit in the network, let a successor do all work, and deliver the commit."""
    with site.waiting_task("zombie", state=ZOMBIE_STATE, proxied=True, timeout_s=LONG_S) as zombie:
        site.proxy.stall()
        zombie.go()
        site.finished("successor", mutant=True)
        site.proxy.resume()
        return _refused(zombie)


def network_stalls(site: Site) -> list[Finding]:
    """Pass on no bytes."""
    return _stalled(site, site.proxy.stall)


def answers_stall(site: Site) -> list[Finding]:
    """Pass on no bytes of the broker."""
    return _stalled(site, site.proxy.stall_answers)


def connections_cut(site: Site) -> list[Finding]:
    """Cut all connections within each commit, after a random number of bytes of the client."""
    with site.waiting_task("first", act=WAIT_EACH, proxied=True, timeout_s=SHORT_S) as process:
        while True:
            site.proxy.cut_after(site.choose.randrange(_CUT_BYTES_MAX))
            process.go()
            if not process.reached():
                break
        return _completed(process, struck=bool(site.proxy.cuts))


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
    found = []
    if figures["refused"]:
        found.append(Finding(PROCESS, f"a task without a successor ended with {figures['refused']}"))
    if figures["wiped"]:
        found.append(Finding(PROCESS, "a store was wiped for a fault that costs time only"))
    return found


def _refused(zombie: TrialProcess) -> list[Finding]:
    """Wait for the end of a zombie, which must be fenced."""
    refused = zombie.figures()["refused"]
    return [] if refused == _FENCED else [Finding(PROCESS, "the zombie was not fenced")]


COURSES: Mapping[str, Course] = MappingProxyType(
    {
        "task killed": task_killed,
        "worker killed": worker_killed,
        "broker killed": broker_killed,
        "broker restarted": broker_restarted,
        "zombie wakes": zombie_wakes,
        "network stalls": network_stalls,
        "answers stall": answers_stall,
        "connections cut": connections_cut,
        "commit held back": commit_held_back,
    }
)
"""The course of each fault, by its name."""
