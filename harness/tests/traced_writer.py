"""A writer process without a recorder: ``strace`` kills it.

Its arguments are those of ``harness.experiments.iofaults.processes.run_writer``, as JSON.
"""

from __future__ import annotations

import json
import sys

from harness.experiments.iofaults.processes import run_writer
from harness.io_trace import recorder

if __name__ == "__main__":
    for name in ("begin", "note", "count", "fired"):
        setattr(recorder, name, lambda *_: 0)
    print(json.dumps(run_writer(**json.loads(sys.argv[1]))))
