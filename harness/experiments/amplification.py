"""The experiment that counts the engine operations of each strategy: read and write amplification."""

from __future__ import annotations

from dataclasses import dataclass

from harness.experiment import Request, StoresAlone
from harness.experiments import amplification_measured
from harness.report import text
from harness.report.listing import Column, Listing, Report
from stores.registry import StoreBackend, backend_named, backends

_METHOD = """\
Counted at the engines of a store alone, in a transaction that fits into a buffer of 256 KiB and in one that does not,
where a strategy has such a buffer. The bytes that engines make of this, in logs, flushes and compactions, are part of
what a task's process has written.
"""


QUERY = """select *, 1.0 * bytes_written / bytes_put as written_per_byte from amplification
    order by backend, bytes_put, bytes_written, durability, staged_records"""
_COUNTS = Listing(
    "Lookups in an engine per get, by where the key is, and bytes given to it",
    "amplification_figure",
    (
        Column("backend"),
        Column("level", "durability"),
        Column("records in the open transaction", "staged_records", text.exact),
        Column("staged", "lookups_staged", text.ratio),
        Column("just committed", "lookups_just_committed", text.ratio),
        Column("committed before", "lookups_committed", text.ratio),
        Column("absent", "lookups_absent", text.ratio),
        Column("bytes written per byte put", "written_per_byte", text.ratio),
    ),
)
_MOST = (
    "At most, a get took {ratio(max(max(lookups_staged, lookups_just_committed, lookups_committed, lookups_absent)))} "
    "lookups, and a byte was written {ratio(max(written_per_byte))} times."
)


REPORT = Report(
    ("amplification",),
    "amplification",
    "Read and write amplification of a store",
    (
        "A get of a store may look a key up in its engine more than once, and a commit may write a byte twice.",
        "The table counts both, for keys that are staged, committed or absent.",
        (_MOST, "amplification_figure"),
    ),
    (_COUNTS,),
    _METHOD,
)


@dataclass(frozen=True)
class AmplificationTrial:
    """One backend, whose operations are counted in a small transaction and in a large one."""

    backend: str
    seed: int


class Amplification(StoresAlone[AmplificationTrial]):
    """Lookups per get, and bytes written per byte put."""

    name = "amplification"
    words = "read and write amplification"
    trial = AmplificationTrial
    program = amplification_measured
    figures_by = {"amplification": QUERY}
    report = REPORT
    columns = {
        "amplification": {
            "backend": str,
            "durability": str,
            "staged_records": int,
            "lookups_staged": float,
            "lookups_just_committed": float,
            "lookups_committed": float,
            "lookups_absent": float,
            "bytes_put": int,
            "bytes_written": int,
        }
    }

    def plan(self, request: Request) -> list[AmplificationTrial]:
        """Return a trial for each backend with an engine to count at."""
        # A backend of another package with its own store class has no engine to count at.
        return [
            AmplificationTrial(name, request.seed)
            for name in request.among(backends())
            if not isinstance(backend_named(name), StoreBackend)
        ]
