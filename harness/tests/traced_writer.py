"""A writer process without a recorder: ``strace`` kills it.

Its arguments are those of ``harness.experiments.iofaults.writer.run``, as JSON.
"""

from __future__ import annotations

import json
import sys

from harness.experiments.iofaults.writer import run
from harness.io_trace import recorder

if __name__ == "__main__":
    for name in ("begin", "note", "count", "fired"):
        setattr(recorder, name, lambda *_: 0)
    print(json.dumps(run(**json.loads(sys.argv[1]))))
