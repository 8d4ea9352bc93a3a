"""The profiles: how much of everything a run does.

``smoke`` is a glance of some minutes. A change is accepted by ``default``. ``night`` plans everything, and tries in 90
minutes what nights before it have not tried. A budget bounds the time of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType

from harness.experiments.iofaults.case import VARIANTS
from harness.experiments.iofaults.subjects import OFFSET_IMPORTS, ONLINE_UPGRADE, PUNCTUATION, TASKS
from harness.experiments.stateful.trial import QuerySize
from harness.experiments.throughput.plan import Grid
from stores.errors import ConfigError, nearest
from stores.interface import Durability

_MIB = 1 << 20
LEVELS = ("CHANGELOG", "PROCESS", "DISK")


@dataclass(frozen=True, slots=True)
class Share:
    """The share of a profile that I/O faults have at some levels.

    ``points_max`` is None for every point, 0 for none.
    """

    faults: tuple[str, ...]
    levels: tuple[str, ...] = LEVELS
    points_max: int | None = None
    states_per_position: int | None = None


class Coverage(Enum):
    """The combinations of a backend, a level, a seed and a fault that the crash matrix of a profile has."""

    ALL = auto()
    """Every fault at every level with every seed."""
    LEVELS_IN_TURN = auto()
    """Every failpoint with every seed, and all other faults with the first one; the levels rotate."""
    FAULTS_ONCE = auto()
    """Every fault once, with the first seed; backends and levels rotate."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of a scenario in a profile other than ``default``, in which it is what its file says."""

    points_max: int | None = None
    """The largest number of points of an I/O fault; None for all."""
    states_per_position: int | None = None
    seeds: int | None = None
    """The number of seeds of crash trials without a mutant; None for ``seeds_times`` as many as the file says."""
    seeds_times: int = 1
    events_max: int | None = None
    """The largest number of events; None for ``events_times`` as many as the file says."""
    events_times: int = 1
    repeats_max: int | None = None
    repeats_min: int = 1
    checks_ratios: bool = True
    seconds: float | None = None
    """The seconds of readers; None for ``seconds_times`` as many as the file says."""
    seconds_times: int = 1


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The amount of each experiment that a profile runs."""

    budget_s: float = 600.0
    """The time that a bench takes unless another budget is given, in seconds."""
    budget_shares: Mapping[str, float] = field(default_factory=dict)
    """The shares of the budget of experiments that have another one than ``Experiment.share`` here."""
    crash_seeds: int
    """The number of seeds of the crash matrix. With one for each level, levels in turn are all levels."""
    crash_coverage: Coverage
    grids: tuple[Grid, ...]
    """The measurements of throughput, which take from about half a minute to hours on two cores."""
    event_log_repeats: int
    opening_records: tuple[int, ...]
    """Sizes of stores that are opened, with every backend."""
    opening_records_default: tuple[int, ...] = ()
    """More sizes, with the default backend only: the largest ones."""
    opening_repeats: int
    scale_records: tuple[int, ...] = ()
    """Sizes of stores that are filled, read and restored once, with the indexed batch of each engine."""
    scale_limited: bool = False
    """True if stores that exceed a limit on memory four times are filled, read and restored too."""
    microbench_repeats: int
    """Repeats of stores by themselves where a ratio compares them; five give it an interval."""
    microbench_others_repeats: int = 1
    """Repeats of the other stores by themselves."""
    jvm_repeats: int = 0
    """Repeats of the work that a store and the JVM do in turns, some ten seconds each for six kinds of work."""
    kafka_repeats: int = 0
    """Rounds over a broker of Kafka, some minutes each. Only a night has them, and only where the jars are."""
    kafka_restart_records: int = 0
    """The records in the store of a worker that is killed and started again; 0 for no restart. As ``kafka_repeats``."""
    stateful: tuple[QuerySize, ...] = ()
    """Stateful queries on Spark: keys, batches and rounds. They take minutes each."""
    early_commit_repeats: int
    every_backend: bool = False
    """True if early commits and visibility are measured with every backend, not only the default one."""
    large_steps_bytes: tuple[int, ...]
    """The sizes of a step's keys and values, for every backend."""
    larger_step_bytes: int | None = None
    """One more size, for the default backend alone."""
    visibility_intervals_s: tuple[float, ...]
    """Commit intervals. 0.1 s is the default of Kafka Streams under exactly once (``commit.interval.ms``)."""
    visibility_commits: int
    latency_commits: int
    shares: tuple[Share, ...]
    """The I/O faults."""
    task_points_max: int | None
    """The number of points of a fault that are tried on a task. Its stores and its changelog are also tried alone."""
    kills_at_disk: Mapping[str, int] = field(default_factory=dict)
    """More kills for subjects in which a mutant shows at few I/O operations of a commit: so many detect it in 95 % of
    runs."""
    measured_seeds: int
    """The number of seeds with which the default profile's own trials are run for each mutant. In the default profile
    it is one for kills, if it kills at every I/O operation."""
    variation_points_max: Mapping[str, int]
    """The number of points for variations of a subject that is tried at DISK: other pairs of engines, other levels. The
    key is the fault with its variant, else the fault, else an empty string."""
    unseen_points_max: int | None
    """The number of points of a fault that must not detect a mutant."""
    mutants_once: bool = False
    """True if there is one mutant for each fault, in one subject."""
    scale: Scale | None = None


_EACH = (Durability.CHANGELOG, Durability.PROCESS, Durability.DISK)
_PICKS = (
    Grid("count", 60_000, records_per_commit=(1_000, 10_000), repeats=5, work_s=2.0),
    Grid("count", 60_000, durabilities=_EACH[1:], repeats=5, work_s=2.0),
)
"""The measurements that picks rest on. They come first, and as one: none of them may be measured in another way."""
_QUERIES = (QuerySize(100_000, 5), QuerySize(2_000, 5), QuerySize(1_000_000, 1, restarts=1))
"""The sizes of states on Spark. The one that ratios have goals for comes first.

A trial that the budget has no time for is left out, and the next one has its turn."""
_BELOW_DISK = ("CHANGELOG", "PROCESS")
_ERRORS = tuple(f"error {variant}" for variant in VARIANTS["error"])
_DAMAGES = tuple(f"damage {variant}" for variant in VARIANTS["damage"])

NIGHT = "night"
"""The profile whose seeds and points move on from run to run."""
PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        "smoke": Profile(
            crash_seeds=1,
            crash_coverage=Coverage.FAULTS_ONCE,
            grids=(
                Grid("flights", 10_000),
                Grid("flights_by_hour", 4_000),
                Grid("aircraft_sessions", 4_000),
                Grid("count", 10_000),
            ),
            event_log_repeats=1,
            opening_records=(20_000,),
            opening_repeats=1,
            scale_records=(20_000,),
            microbench_repeats=1,
            early_commit_repeats=1,
            large_steps_bytes=(32 * _MIB,),
            visibility_intervals_s=(0.05,),
            visibility_commits=10,
            latency_commits=20,
            shares=(
                Share(("kill",), ("DISK",), 4),
                Share(("power names",), ("DISK",), 8, 2),
                Share(("error EIO once",), ("DISK",), 2),
            ),
            task_points_max=2,
            measured_seeds=0,
            variation_points_max={"": 2},
            unseen_points_max=0,
            mutants_once=True,
            scale=Scale(
                points_max=4,
                states_per_position=2,
                seeds=1,
                events_max=10_000,
                repeats_max=1,
                checks_ratios=False,
                seconds=0.5,
            ),
        ),
        "default": Profile(
            crash_seeds=3,
            crash_coverage=Coverage.LEVELS_IN_TURN,
            grids=(
                *_PICKS,
                Grid("flights", None),
                Grid("flights_by_hour", 20_000),
                Grid("aircraft_sessions", 20_000),
                Grid("count", 60_000, records_per_commit=(100,)),
            ),
            event_log_repeats=3,
            opening_records=(50_000, 500_000),
            opening_records_default=(5_000_000,),
            opening_repeats=5,
            scale_records=(1_000_000,),
            microbench_repeats=5,
            jvm_repeats=5,
            stateful=_QUERIES,
            early_commit_repeats=2,
            large_steps_bytes=(64 * _MIB,),
            larger_step_bytes=128 * _MIB,
            visibility_intervals_s=(0.02, 0.1),
            visibility_commits=20,
            latency_commits=100,
            shares=(
                Share(("kill",), ("DISK",)),
                Share(("power names",), ("DISK",), 280, 3),
                Share(("power names",), _BELOW_DISK, 64, 3),
                Share(("kill",), _BELOW_DISK, 16),
                Share(("tear",), ("DISK",), 24),
                # A missing sync of a folder shows at some positions of a commit only, and only under this model.
                Share(("power strict",), ("DISK",), 64, 4),
                Share(("power journal", "power torn-sectors"), ("DISK",), 8, 4),
                Share(_ERRORS, ("DISK",), 4),
                Share(("failed_sync",), ("DISK",), 6, 3),
                Share(("error EIO once", "error ENOSPC lasting"), _BELOW_DISK, 4),
                Share(_DAMAGES, ("DISK",), 48),
            ),
            task_points_max=24,
            kills_at_disk={TASKS[0]: 80, PUNCTUATION: 80, ONLINE_UPGRADE: 60, OFFSET_IMPORTS[1]: 120},
            measured_seeds=2,
            variation_points_max={"kill": 17, "power names": 8, "power": 0, "failed_sync": 0, "": 4},
            unseen_points_max=24,
        ),
        NIGHT: Profile(
            budget_s=5_400.0,
            # Ten minutes are too few for one trial of most of these.
            budget_shares={"jvm": 20, "kafka": 10, "kafka-restart": 28, "stateful": 36, "scale": 16},
            crash_seeds=5,
            crash_coverage=Coverage.ALL,
            grids=(
                *_PICKS,
                Grid("flights", None, durabilities=_EACH, records_per_commit=(100, 1_000, 10_000), repeats=5),
                Grid("flights_by_hour", None, durabilities=_EACH),
                Grid("aircraft_sessions", None, durabilities=_EACH),
                Grid("flights", None, partitions=1, repeats=5),
                Grid("flights", None, partitions=4, repeats=5),
                Grid("count", 1_000_000, durabilities=_EACH, records_per_commit=(100, 100_000), repeats=5),
                Grid("count", 1_000_000, durabilities=_EACH[1:], records_per_commit=(10_000,), repeats=5),
            ),
            event_log_repeats=5,
            opening_records=(50_000, 500_000, 5_000_000),
            opening_repeats=5,
            scale_records=(1_000_000, 10_000_000, 50_000_000),
            scale_limited=True,
            microbench_repeats=9,
            microbench_others_repeats=5,
            jvm_repeats=5,
            kafka_repeats=5,
            kafka_restart_records=5_000_000,
            stateful=_QUERIES,
            early_commit_repeats=5,
            every_backend=True,
            large_steps_bytes=(64 * _MIB, 256 * _MIB, 1024 * _MIB),
            visibility_intervals_s=(0.02, 0.1, 1.0),
            visibility_commits=50,
            latency_commits=500,
            shares=(
                Share(("kill", "tear", "power names", "power journal", "power strict", "power torn-sectors")),
                Share((*_ERRORS, *_DAMAGES)),
                Share(("kill_twice", "failed_sync names", "failed_sync strict")),
                Share(("power_twice",), points_max=64),
            ),
            task_points_max=None,
            measured_seeds=20,
            variation_points_max={"kill": 200, "": 48},
            unseen_points_max=None,
            scale=Scale(seeds_times=5, events_times=10, repeats_min=5, seconds_times=10),
        ),
    }
)
NAMES = tuple(PROFILES)
WHOLE = ("default", NIGHT)
"""The profiles whose reports go to ``results/`` if nothing was left out."""


def profile(name: str) -> Profile:
    """Return a profile. Raises: ConfigError for an unknown one."""
    if name not in PROFILES:
        raise ConfigError(f"no profile {name!r}: there are {', '.join(PROFILES)}{nearest(name, PROFILES)}")
    return PROFILES[name]
