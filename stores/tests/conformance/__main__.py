"""Run the conformance suite on one backend, or on all: ``python -m stores.tests.conformance --backend NAME``."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import pytest

from stores.errors import ConfigError
from stores.registry import backend_named


def main(argv: Sequence[str] | None = None, program: str = "python -m stores.tests.conformance") -> int:
    """Pytest's exit status; 2 for a backend that does not exist."""
    parser = ArgumentParser(prog=program, description="What every backend promises, as tests.")
    parser.add_argument(
        "--backend", action="append", default=[], help="a registered backend's name; may be repeated; all by default"
    )
    given, for_pytest = parser.parse_known_args(argv)
    try:
        for name in given.backend:
            backend_named(name)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    here = Path(__file__).parent
    # Loads the settings of all tests of ``stores``, one folder above.
    # Settings of whichever project the caller stands in must not change what is tested.
    settings = ["-c", os.devnull, "--rootdir", str(here.parent), "-p", "no:cacheprovider"]
    backend_options = [argument for name in given.backend for argument in ("--backend", name)]
    return int(pytest.main([*settings, *backend_options, str(here), *for_pytest]))


if __name__ == "__main__":
    sys.exit(main())
