"""A process that writes versions until it reaches a failpoint, at which it is killed: PATH FAILPOINT FIRST LAST."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from stores import failpoints
from stores.changelog.files import Header
from stores.tests.changelog.files.log_model import changes, header, opened, snapshot, with_rows


def main() -> None:
    path, failpoint, first, last = sys.argv[1:]
    log = opened(Path(path), snapshot_versions=2, keep_versions=2).partition(0)
    for version in range(int(first), int(last) + 1):
        if failpoint and version == int(last):
            failpoints.arm(failpoint, lambda: os.kill(os.getpid(), signal.SIGKILL))
        own = with_rows(log, header(version), [version])
        if log.append(own, changes(version)).id == own.id and log.snapshot_due(log.listing()):
            log.write_snapshot(Header("snapshot", own.id, 0, version), snapshot(version))
        log.remove_old(log.listing())
        print(version, flush=True)


if __name__ == "__main__":
    main()
