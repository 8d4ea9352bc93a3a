"""The experiment that counts the engine operations of each strategy: read and write amplification."""

from __future__ import annotations

from dataclasses import dataclass

from harness.experiment import Request
from harness.experiments.amplification import amplification as program
from harness.experiments.amplification.report import QUERY, REPORT
from harness.experiments.stores_alone import StoresAlone
from stores.registry import StoreBackend, backend_named, backends


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
    program = program
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
