"""The command ``txstores``, which is also ``python -m stores``: look into stores on disk, run workers, move stores.

Commands that need an extra say so in the help, and check for it before they do anything.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from stores import relocate
from stores.extras import check_extra
from stores.shell.command import add_commands, check_command, run_guarded
from stores.shell.snapshot_files import add_snapshot_commands
from stores.version import __version__

Command = Callable[[Sequence[str]], int]
PROGRAM = "txstores"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit status: 0 for success, 2 for a mistake in the arguments."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments[:1] == ["worker"]:
        return _worker(arguments[1:])  # Errors of the application's modules are its own, and so are the signals.
    return run_guarded(lambda: _run(arguments))


def _run(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Show, check, copy, compact, move and remove stores on disk; run workers.",
        epilog="Commands marked with an extra need more packages than the library: they say how to install them.",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_commands(commands)
    add_snapshot_commands(commands)
    for name, (_, text) in _OWN_PARSERS.items():
        commands.add_parser(name, help=text, add_help=False)
    check_command(parser, commands.choices, arguments)
    name = arguments[0] if arguments else ""
    if name in _OWN_PARSERS:
        return _OWN_PARSERS[name][0](arguments[1:])
    options = parser.parse_args(arguments)
    return int(options.run(options))


def _relocate(arguments: Sequence[str]) -> int:
    return relocate.main(arguments, f"{PROGRAM} relocate")


def _worker(arguments: Sequence[str]) -> int:
    from stores.worker.__main__ import run_process

    return run_process(arguments, f"{PROGRAM} worker")


def _conformance(arguments: Sequence[str]) -> int:
    check_extra("conformance")
    from stores.tests.conformance.__main__ import main as run_suite

    return run_suite(arguments, f"{PROGRAM} conformance")


_OWN_PARSERS: dict[str, tuple[Command, str]] = {
    "relocate": (_relocate, "move the stores of a state directory to where a topology has them"),
    "worker": (_worker, "run a worker of an application: it shares the application's tasks with other workers"),
    "conformance": (_conformance, "run the tests that every backend must pass (extra conformance)"),
}
"""Commands with a parser of their own, and their line in the help."""
