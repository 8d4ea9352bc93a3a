"""Answers to a mistyped subcommand: the nearest one, and all of them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from stores.errors import nearest


def check_command(
    parser: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser], argv: Sequence[str]
) -> None:
    """End the process with status 2 if the first argument is no option and none of ``commands``."""
    if argv and not argv[0].startswith("-") and argv[0] not in commands:
        parser.error(f"no command {argv[0]!r}{nearest(argv[0], commands)}; there are: {', '.join(commands)}")
