"""Enter a cgroup, and then run a module: ``python -m harness.processes.limited GROUP MODULE ARGUMENTS``.

The module is imported in the cgroup, so that its memory counts there.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path


def main() -> None:
    """Run the module with its arguments."""
    group, module = Path(sys.argv[1]), sys.argv[2]
    (group / "cgroup.procs").write_text(f"{os.getpid()}\n")
    sys.argv[:] = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
