"""The page about I/O faults."""

from __future__ import annotations

from collections.abc import Sequence

from harness.experiments.iofaults.case import NOT_TRIED
from harness.experiments.iofaults.figures import MUTANTS, fault_findings
from harness.experiments.iofaults.tables import (
    damage_table,
    detection_table,
    mutant_table,
    power_tables,
    process_tables,
    promise_table,
)
from harness.report import text
from harness.report.figures import Figures
from harness.report.page import Page

SKIPPED = "effects_skipped"
"""The fact of a run that gives the reason why no I/O fault was tried."""

_HOW = """\
A writer process makes its commits above a library that sees every call which changes a file. The library counts these
I/O operations over all threads. It kills the process before one of them or inside one, or lets one fail.

For power loss, a run without faults is recorded. At every position between two I/O operations, the harness generates
crash states: all durable data, and of the pending writes none, all, and selections. Each distinct crash state is opened
in a process of its own, under a deadline, with another boot ID. A verifier recovers it, reads it whole, writes to it
twice, closes it, opens it and reads it again. It is compared with a model that shares no code with the stores. A state
that was detected as corrupt is restored, and goes through the same steps.

Syncs fail, too, also the one in a write through O_DSYNC. The process is then killed and another one continues. The data
of the failed sync stays pending, whatever is synced later. If it was a folder's sync, *names* refuses every later
operation, as ext4 and xfs do when they lose their journal; *strict* lets the process continue.

A second kill is tried before each I/O operation of a recovery, except those that change nothing that is ever read.
Stores of bytes, of timestamped values, of windows and of sessions take turns over backends and levels. In those of
windows and sessions records expire at every commit.
"""
_MODELS = """\
| persistence model | durable file names |
| --- | --- |
| names | the name of a synced file. Promises are checked against this model at every level |
| journal | those, and with any sync all earlier names, as on ext4 and xfs: fewer crash states are legal |
| strict | only names in a synced folder, as POSIX says. Promises at DISK are checked against this model, too |
| torn-sectors | as names, with garbage behind torn writes and tears at 64 bytes: only undetected wrong content counts |
"""
_DETECTION = """\
The search above ends when the mutant is detected or every point was tried. The default profile tries less: for most
faults it draws some points by the seed, and few states at each. The table below shows how often its trials detect each
mutant. They use the same points, states and variants as for sound code, of the mutant's own fault alone. A run is one
seed in one backend or file. These rates are those of the whole plan: a run that its budget cuts short tries fewer
points, and detects less. Few seeds fit into the time of a run; `python -m harness mutants --seeds 20` tries more.
"""
_NOT_SIMULATED = """\
Not simulated:

* disks that report a sync and have not done it;
* partially written sectors of less than 512 bytes (except in the variant *torn-sectors*);
* blocks that belonged to another file;
* partially written folders;
* metadata that a file system itself corrupts.

Writes through a shared map are not seen: a store that keeps data in one is refused. The files *written
unseen* in the tables are those that engines create again after a crash.

If more than six writes are pending, not every selection of them is tried. Prefixes, each one missing, each one alone,
and selections drawn by the seed are tried; smaller profiles draw some of these at each position. Threads of an engine
are seen in the order of one recording.
"""


_DAMAGE = """\
After a clean close a bit flips, or a file is truncated or missing. The store is then opened, verified
(`store.verify()`) and read whole. The corruption must be detected, and the store restored from the changelog, or it
must do no harm. RocksDB has checksums of its blocks. Records of LMDB and SQLite have ours, and their pages have none:
corruption that only `verify()` detects is in pages that lead elsewhere. A reader that does not verify may miss the keys
there. LMDB reads through a map, and may end the process at a record whose length is damaged. These cases are *harmful
unverified*. If no file is left at all, nothing can detect that: the opened store must then be new, empty and whole.

LMDB uses the meta page with the higher transaction ID. A flipped bit there could take a closed store back by one commit
without an error. The library keeps a checksum of each meta page, so that opening detects it: *an earlier commit,
undetected* must be 0.
"""


def page(figures: Figures, failures: Sequence[str], skipped: str) -> Page:
    """Return the page. ``skipped`` is the reason why no fault was tried, or ""."""
    measured = any(figure["trials"] for figure in figures["effect"]) or any(
        figure["result"] != NOT_TRIED for figure in figures["mutant"]
    )
    return Page(
        "io-faults",
        "I/O faults",
        ("At each I/O operation a process is killed, a call fails or power is lost; closed files are corrupted.",),
        _body(figures, failures) if measured and not skipped else (),
        f"{_HOW}\n{_NOT_SIMULATED}",
        fault_findings(figures),
        absent=f"skipped: {skipped}" if skipped else text.NOT_MEASURED,
    )


def _body(figures: Figures, failures: Sequence[str]) -> list[str]:
    parts = []
    if figures["effect"]:
        parts.append(promise_table(figures).markdown())
    parts.append(text.failures("Trials that failed", failures) if failures else "Nothing broke a promise.\n")
    if figures["effect"]:
        parts += ["## Power loss\n", _MODELS, *(table.folded() for table in power_tables(figures))]
        parts += ["## Kills and failing calls\n", *(table.folded() for table in process_tables(figures))]
        parts += ["## Corruption at rest\n", _DAMAGE, damage_table(figures).folded()]
    if figures["mutant"]:
        parts += [f"## {MUTANTS}\n", mutant_table(figures).folded()]
    if figures["detection"]:
        parts += [_DETECTION, detection_table(figures).folded()]
    return parts
