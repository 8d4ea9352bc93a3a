"""The process of a function: ``python -m harness.processes.apart MODULE:FUNCTION FOLDER``, see ``child.figures_in``."""

from __future__ import annotations

import sys
from importlib import import_module

from harness.processes.child import measure

if __name__ == "__main__":
    module, _, function = sys.argv[1].partition(":")
    measure(getattr(import_module(module), function))
