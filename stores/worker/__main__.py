"""``txstores worker MODULE:NAME --config FILE``, or ``python -m stores.worker``: run a worker until SIGTERM.

Exit status: 0 after SIGTERM or SIGINT; 1 if a task fails; 2 for a mistake in the arguments, the configuration or the
topics, with the reason.
"""

from __future__ import annotations

import argparse
import atexit
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from stores.errors import ConfigError, StoreError, nearest
from stores.worker.property_list import FORMS
from stores.worker.settings import read_properties
from stores.worker.worker import Application, TaskNotReleasedError, Worker

FAILED, REFUSED = 1, 2


def main(argv: Sequence[str] | None = None, program: str = "python -m stores.worker") -> int:
    """Run a worker; return the exit status."""
    parser = argparse.ArgumentParser(
        prog=program,
        description="Run a worker of an application: it shares the application's tasks with the other workers.",
        epilog="SIGTERM and SIGINT end it after a commit; a second one ends it immediately, and nothing is lost.",
    )
    parser.add_argument("application", metavar="MODULE:NAME", help="the module, and the name of the Application in it")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="properties, one name=value a line")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a property beside those of the file, or in place of one; may be repeated",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="log tasks that open, and the messages of the Kafka client"
    )
    parser.add_argument(
        "--list-properties", action=_ListProperties, nargs="?", choices=FORMS, help="list all properties, and exit"
    )
    options = parser.parse_args(argv)
    try:
        application = find_application(options.application)
        worker = Worker(application, {**read_properties(options.config), **dict(map(_assignment, options.set))})
    except StoreError as error:
        print(error, file=sys.stderr)
        return REFUSED
    form = worker.settings.log_format
    form.configure(logging.INFO if options.verbose else logging.WARNING)
    if not options.verbose:
        # It logs each attempt to connect. What that means for a task is logged with the task.
        logging.getLogger("stores.changelog.kafka.client").setLevel(logging.CRITICAL)
    try:
        worker.run()
    except TaskNotReleasedError as error:
        form.report(error)
        os._exit(FAILED)  # A thread that does not end would be waited for.
    except Exception as error:
        form.report(error)
        return REFUSED if isinstance(error, ConfigError) else FAILED
    return 0


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigError("an argument of --set is no property: write NAME=VALUE")
    return name, value


class _ListProperties(argparse.Action):
    """Prints the reference of all properties, as ``--help`` prints the help."""

    def __call__(self, parser: argparse.ArgumentParser, _: object, form: object, __: object = None) -> None:
        print(FORMS["text" if form is None else str(form)](), end="")
        parser.exit()


def find_application(text: str) -> Application:
    """Return the application that ``MODULE:NAME`` names. Raises: ConfigError; the errors of the module itself."""
    module_name, colon, name = text.partition(":")
    if not all(module_name.split(".")):
        raise ConfigError(f"{text!r} is not an application: write MODULE:NAME")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(f"there is no module {module_name!r} on the path of Python, or in this folder") from None
    applications = {key: value for key, value in vars(module).items() if isinstance(value, Application)}
    if name in applications:
        return applications[name]
    names = ", ".join(f"{module_name}:{each}" for each in applications) or "no Application"
    if not colon or not name:
        raise ConfigError(f"{text!r} does not name the application: write MODULE:NAME. The module has {names}")
    raise ConfigError(f"{module_name} has no Application {name!r}{nearest(name, applications)}. It has {names}")


class _End:
    """The end of this process. It is registered first, so that it comes after all other functions of ``atexit``.

    Python's own end would destroy the clients of Kafka one after the other, which takes seconds on a busy machine.
    Everything that must last is closed before.
    """

    status = FAILED

    def __call__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(self.status)


def run_process(argv: Sequence[str] | None = None, program: str = "python -m stores.worker") -> int:
    """Run a worker in a process that ends after it; return the exit status."""
    end = _End()
    atexit.register(end)
    try:
        end.status = main(argv, program)
    except SystemExit as exits:  # Of the parser of arguments.
        end.status = exits.code if isinstance(exits.code, int) else FAILED
    return end.status


if __name__ == "__main__":
    sys.exit(run_process())
