"""The part of a report about faults below the process, and the sentences for what went wrong there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.report import text
from harness.report.effect_figures import Figure
from harness.report.effect_tables import (
    damage_table,
    detection_table,
    mutant_table,
    power_tables,
    process_tables,
    promise_table,
)
from harness.sweeps.gate import is_wrong

SKIPPED = "effects_skipped"
"""The fact of a run that says why nothing below the process was tried."""

_HOW = """\
A victim makes its commits below a library that sees every call which changes a file, counts these effects over all
threads, and kills the process before one of them, inside one, or lets one fail. From the recording of an undisturbed
victim the states are made that a disk may hold when the power is lost, at every position between two effects: what was
synced, and of the rest none, all, and choices between. Each distinct state is opened in a process of its own, under a
deadline, in what passes for another boot of the machine; it is recovered, read whole, written to twice, closed, opened
and read again, and judged against a model that shares no code with the stores; so is what was noticed and restored.
Syncs fail, too, also the one in a write through O_DSYNC: the process is killed upon that, another one goes on, and what
the failed sync had covered stays unsure whatever it syncs. Where it was a folder's, *gate* takes nothing more of the
other one, as ext4 and xfs do without their journal; *strict* lets it go on. A second kill is tried before each effect
of a recovery, but for those which change nothing that anybody reads. Stores of bytes, of timestamped values, of windows
and of sessions take turns over backends and levels; in those of windows and sessions records expire at every commit.
"""
_MODELS = """\
| model | which names of files are sure |
| --- | --- |
| gate | a synced file's own name. Promises are held to this one at every level |
| journal | those, and with any sync whatever was named earlier, as on ext4 and xfs: fewer states are legal |
| strict | only what a sync of its folder covers, as POSIX says. Promises at DISK are held to it, too |
| beyond | as gate, with noise behind torn writes and tears at 64 bytes: only wrong content that nobody noticed counts |
"""
_DETECTION = """\
The search above ends when the mutant is found or every point was tried. The default gate tries less: for most faults
it draws some points by the seed, and few states at each. The table below shows how often these trials find each mutant:
with the same points, states and variants as on sound code, of the mutant's own fault alone. A run is one seed in one
backend or file. Few seeds fit into the time of a run; `python -m harness mutants --seeds 20` tries more.
"""
_NOT_SIMULATED = """\
What is not simulated: disks that say they have synced and have not; sectors of less than 512 bytes that are half
written (but for the model *beyond*); blocks that were another file's; folders whose entries are half written;
metadata that a file system itself gets wrong. Writes through a shared map are not seen: a store that keeps data
in one is refused, and the files *written unseen* in the tables are those that engines make anew after a crash. Not
every choice of lost writes is tried where more than six are unsynced: prefixes, each one missing, each one alone, and
choices drawn by the seed are; smaller profiles draw some of these at each position. Threads of an engine
are seen in the order that they happened to take in one recording.
"""


def effect_section(figures: Mapping[str, Sequence[Figure]], rows: Sequence[Mapping[str, Any]], facts: object) -> str:
    """All of it. ``rows`` are of the kinds "effect" and "mutant"; ``facts`` may say why there are none."""
    title = "## Faults below the process\n\n"
    reason = facts.get(SKIPPED) if isinstance(facts, Mapping) else None
    if reason:
        return f"{title}Skipped: {reason}.\n"
    if not figures["effect"] and not figures["mutant"]:
        return f"{title}{text.NOT_MEASURED.capitalize()}.\n"
    parts = [title + _HOW]
    if figures["effect"]:
        parts += [promise_table(figures).markdown(), _failures(rows)]
        parts += ["### Power loss\n", _MODELS, *(table.folded() for table in power_tables(figures))]
        parts += ["### Kills and failing calls\n", *(table.folded() for table in process_tables(figures))]
        parts += ["### Damage at rest\n", _DAMAGE, damage_table(figures).folded()]
    if figures["mutant"]:
        parts += ["### Whether this would see a defect\n", mutant_table(figures).folded()]
    if figures["detection"]:
        parts += [_DETECTION, detection_table(figures).folded()]
    return "\n".join([*parts, _NOT_SIMULATED])


_DAMAGE = """\
After a clean close a bit flips, a file is cut short, or goes. The store is then opened, verified (`store.verify()`) and
read whole: that must be noticed, and the store restored from the changelog, or do no harm. RocksDB has checksums of its
blocks. The records of LMDB and SQLite have ours and their pages have none: what only verifying notices are pages that
lead elsewhere. Who does not verify may miss the keys there, and LMDB, which reads through a map, may end the process at
a record whose length is damaged: these are *harmful unverified*. Where no file at all is left nothing can notice
that: what is opened then must be new, empty and whole.

Of its two meta pages LMDB uses the one with the higher transaction ID. A flipped bit there could take a closed store
back by one commit, unnoticed. The library keeps a checksum of each meta page, so that opening detects it: *an earlier
commit, unnoticed* must be 0.
"""


def effect_failure_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence and a command for every trial below the process that fails the run; rows of slices may be among."""
    return [_failure(row) for row in rows if row["kind"] != "effect_slice" and is_wrong(row)]


def _failure(row: Mapping[str, Any]) -> str:
    name = row["mutant"] if row["kind"] == "mutant" else row["fault"]
    told = f"{row['backend']} at {row['durability']}, {name} {row['variant']}".rstrip()
    if row["kind"] == "mutant":
        seen = row["result"] or f"not seen in {row['states']} states"
        line = f"{told}: {row['fault']} should have left it {row['wanted']}, and it is {seen} {row['detail']}".rstrip()
    else:
        line = f"{told}, {row['description']}, seed {row['seed']}: {row['result']}: {row['detail']}"
    return f"{line}\n  repeat it with: {row['repeat']}" if row["repeat"] else line


def _failures(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = effect_failure_lines(rows)
    if not lines:
        return "Nothing broke a promise.\n"
    return text.failures("Trials that failed", lines)
