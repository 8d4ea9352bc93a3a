"""Where runs and scenarios lie: in the folder that the harness itself lies in, from wherever it is started."""

from __future__ import annotations

from pathlib import Path

import harness

ROOT = Path(harness.__file__).resolve().parents[1]
RUNS = ROOT / "runs"
SCENARIOS = ROOT / "scenarios"
